"""Keeps one worker alive: starts, watches, restarts with back-off, opens the circuit, stops."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import zmq

from headrace.gateway.config import RestartPolicy
from headrace.gateway.link import WorkerLink
from headrace.gateway.process import WorkerProcess, describe_exit
from headrace.worker.config import WorkerConfig
from headrace.worker.frames import (
    PROTOCOL_VERSION,
    Drain,
    Hello,
    LoadFailed,
    Ready,
    ToGateway,
    ToWorker,
)

logger = logging.getLogger("headrace.gateway")


class State(enum.Enum):
    """Of a model. Only READY serves; LOADING and RESTARTING will, unless they fail."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


class WorkerEvents(Protocol):
    """What the owner of a supervisor is told, on the event loop."""

    def on_ready(self, ready: Ready) -> None: ...

    def on_frames(self, batch: list[ToGateway]) -> None: ...

    def on_down(self, reason: str) -> None:
        """The worker is gone; `state` says whether another one will come."""
        ...


class Supervisor:
    """Owns the process and the link of one model, one life after the other."""

    def __init__(
        self,
        make_config: Callable[[str], WorkerConfig],
        policy: RestartPolicy,
        runtime_dir: Path,
        context: zmq.Context[zmq.Socket[bytes]],
        events: WorkerEvents,
    ) -> None:
        self.state = State.LOADING
        self.load_error: str | None = None
        self.last_reason: str | None = None
        self._was_ready = False
        self.num_starts = 0
        self._make_config = make_config
        self._policy = policy
        self._runtime_dir = runtime_dir
        self._context = context
        self._events = events
        self._process: WorkerProcess | None = None
        self._link: WorkerLink | None = None
        self._stop = asyncio.Event()
        self._num_failures = 0
        self._last_news_s = 0.0
        self._ready_s: float | None = None
        self._kill_reason: str | None = None

    @property
    def pid(self) -> int | None:
        """Of the running worker, if any."""
        return None if self._process is None else self._process.pid

    def send(self, batch: Sequence[ToWorker]) -> None:
        """Send frames to the running worker; without one they are dropped."""
        if self._link is not None and not self._link.send(batch):
            self._kill("it did not read its socket")

    async def run(self) -> None:
        """Keep a worker alive until `stop`. A first load that fails is final."""
        while not self._stop.is_set():
            reason = await self._live()
            if self._stop.is_set():
                break
            delay_s = self._after_death(reason)
            self._events.on_down(reason)
            if delay_s is None:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), delay_s)
        self.state = State.STOPPED
        self._events.on_down("the server is stopping")

    async def stop(self, timeout_s: float) -> None:
        """Let the worker finish what it runs for up to `timeout_s`, then kill it."""
        self._stop.set()
        process = self._process
        if process is None:
            return
        if timeout_s > 0:
            self.send([Drain()])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), timeout_s)
        process.kill()

    def kill_now(self) -> None:
        """Kill and reap without waiting for the event loop (second signal, emergency)."""
        self._stop.set()
        if self._process is not None:
            self._process.kill_and_reap()

    # ---- one life ----

    async def _live(self) -> str:
        """Start a worker and wait for its death; returns the reason."""
        self.num_starts += 1
        self._ready_s = None
        self._kill_reason = None  # set by _kill
        self._last_news_s = self._now()
        socket_path = self._runtime_dir / f"w{id(self):x}-{self.num_starts}"
        endpoint = f"ipc://{socket_path}"
        self._link = WorkerLink(self._context, endpoint, self._on_frames)
        try:
            process = WorkerProcess(self._make_config(endpoint))
            self._process = process
            watch = asyncio.create_task(self._watch())
            try:
                status = await process.wait()
            finally:
                watch.cancel()
                process.kill_and_reap()
        finally:
            self._process = None
            # Last words (LoadFailed) may still be on their way through the socket.
            await asyncio.sleep(0.02)
            self._link.close()
            self._link = None
            socket_path.unlink(missing_ok=True)
        return self._why() or f"it ended with {describe_exit(status)}"

    def _why(self) -> str | None:
        return self._kill_reason or self.load_error

    async def _watch(self) -> None:
        """Kill a worker that has given no sign of life for too long."""
        policy = self._policy
        interval_s = min(1.0, policy.stall_s / 4)
        checked_s = self._now()
        while True:
            await asyncio.sleep(interval_s)
            now = self._now()
            if now - checked_s > 2 * interval_s + 1.0:
                # This process itself was stopped; unread news may be waiting.
                self._last_news_s = now
            checked_s = now
            limit_s = policy.load_s if self._ready_s is None else policy.stall_s
            if now - self._last_news_s > limit_s:
                self._kill(f"it gave no sign of life for {limit_s:g} seconds")
                return

    def _kill(self, reason: str) -> None:
        if self._process is not None:
            self._kill_reason = reason
            self._process.kill()

    def _on_frames(self, batch: list[ToGateway]) -> None:
        self._last_news_s = self._now()
        first = batch[0] if batch else None
        if isinstance(first, Hello):
            if first.version != PROTOCOL_VERSION:
                self._kill(f"it speaks version {first.version} of the frames, not ours")
        elif isinstance(first, LoadFailed):
            self.load_error = first.message
        elif isinstance(first, Ready):
            self.load_error = None
            self._ready_s = self._last_news_s
            self._was_ready = True
            self.state = State.READY
            self._events.on_ready(first)
        elif self._ready_s is not None:
            self._events.on_frames(batch)

    def _after_death(self, reason: str) -> float | None:
        """Set the state; returns seconds until the next start, or None for never."""
        logger.error("worker of a model is gone: %s", reason)
        self.last_reason = reason
        if self.load_error is not None and not self._was_ready:
            self.state = State.FAILED
            return None
        policy = self._policy
        if self._ready_s is not None and self._now() - self._ready_s >= policy.healthy_s:
            self._num_failures = 0
        self._num_failures += 1
        if self._num_failures >= policy.max_failures:
            self.state = State.FAILED
            return policy.open_s
        self.state = State.RESTARTING if self._was_ready else State.LOADING
        delay_s: float = policy.backoff_s * 2 ** (self._num_failures - 1)
        return min(policy.backoff_max_s, delay_s)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
