"""A worker as an operating system process: spawned, watched through its pidfd, killed, reaped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

from headrace.worker.config import WorkerConfig, send_config

_POLL_S = 0.05
# The worker needs none of these, and what it does not have it cannot leak.
_SECRET_VARIABLES = ("HEADRACE_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


class WorkerProcess:
    """One worker. Spawn it on a thread that stays: the kernel kills the worker when it ends."""

    def __init__(self, config: WorkerConfig) -> None:
        environment = {k: v for k, v in os.environ.items() if k not in _SECRET_VARIABLES}
        fd = send_config(config)
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "headrace.worker.main", str(fd)],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_stderr() else subprocess.DEVNULL,
                pass_fds=(fd,) if config.lease_fd is None else (fd, config.lease_fd),
                env=environment,
                # Ctrl-C in the terminal is for the gateway alone.
                process_group=0,
            )
        finally:
            os.close(fd)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def poll(self) -> int | None:
        """The exit status (negative: the signal), or None while it runs."""
        return self._popen.poll()

    async def wait(self) -> int:
        """The exit status as soon as the process is dead."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            return await self._wait_by_polling()
        loop = asyncio.get_running_loop()
        died = asyncio.Event()
        loop.add_reader(pidfd, died.set)
        try:
            await died.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        return self._popen.wait()

    async def _wait_by_polling(self) -> int:
        while (status := self._popen.poll()) is None:
            await asyncio.sleep(_POLL_S)
        return status

    def kill(self) -> None:
        """SIGKILL, also for a stopped process; harmless when it is dead."""
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGKILL)

    def kill_and_reap(self) -> None:
        """Dead and gone when this returns (the kernel needs milliseconds)."""
        self.kill()
        self._popen.wait()


def describe_exit(status: int) -> str:
    """`exit status 1` or `SIGKILL`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _has_stderr() -> bool:
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
