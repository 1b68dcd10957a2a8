"""Entry of a worker process: `python -m headrace.worker.main FD` with a WorkerConfig behind FD."""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from headrace.errors import HeadraceError
from headrace.observe.logging import setup_logging
from headrace.worker.channel import WorkerChannel
from headrace.worker.config import WorkerConfig, receive_config
from headrace.worker.frames import PROTOCOL_VERSION, Hello, LoadFailed
from headrace.worker.loaded import WorkerEngine
from headrace.worker.loop import EngineLoop

logger = logging.getLogger("headrace.worker")

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies; exit if that has happened."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def resolve(import_string: str) -> Callable[[WorkerConfig], WorkerEngine]:
    """The function behind `package.module:name`."""
    module_name, _, name = import_string.partition(":")
    function: Callable[[WorkerConfig], WorkerEngine] = getattr(
        importlib.import_module(module_name), name
    )
    return function


def serve(config: WorkerConfig) -> int:
    """Load, then loop until drained. Returns the exit status."""
    drain = _DrainFlag()
    # Ctrl-C reaches the whole process group; only the gateway decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, drain.on_signal)
    channel = WorkerChannel(config.endpoint)
    try:
        channel.send([Hello(version=PROTOCOL_VERSION, pid=os.getpid())])
        try:
            loaded = resolve(config.builder)(config)
        except HeadraceError as error:
            channel.send([LoadFailed(message=str(error))])
            return 1
        except MemoryError:
            message = f"There is not enough memory to load {config.model_name}."
            channel.send([LoadFailed(message=message)])
            return 1
        channel.send([loaded.ready])
        EngineLoop(loaded.engine, loaded.tokenizer, channel, should_drain=drain).run()
        return 0
    finally:
        channel.close()


class _DrainFlag:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self._is_set = False

    def __call__(self) -> bool:
        return self._is_set

    def on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        self._is_set = True


def main() -> int:
    """Read the config and serve. Returns the exit status."""
    config = receive_config(int(sys.argv[1]))
    die_with_parent(config.parent_pid)
    setup_logging(config.log_level, config.log_format)
    return serve(config)


if __name__ == "__main__":
    sys.exit(main())
