"""A system under test: a process that is stopped whenever it is not its turn."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.machine import CpuClock, undisturbed

ROOT = Path(__file__).parent.parent
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """In the child: a driver that is killed may not leave a stopped process behind (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def signal_group(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """Signal the group that a process leads; it may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def last_words(log: IO[bytes]) -> str:
    """The last line of what a process wrote before it ended."""
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return f"it ended early: {lines[-1][:200]}" if lines else "it ended early"


class UnavailableError(Exception):
    """A system cannot be measured, or not at this point; the text says why."""


@dataclass(frozen=True)
class Launch:
    """How a system is started. `name`: a family and its setting."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """One answer of a system, and how many attempts it took until nobody else was busy."""

    seconds: float
    tokens: int
    attempts: int
    contended: bool


class System:
    """Started when made; raises UnavailableError with the reason when it does not get ready.

    The process leads a group of its own, which is stopped between its turns: engines whose idle
    threads spin would otherwise slow whoever is measured.
    """

    def __init__(self, launch: Launch) -> None:
        """Returns when it is ready."""
        self.name = launch.name
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        self._started_s = time.perf_counter()
        self._process = subprocess.Popen(
            launch.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env={**os.environ, **launch.environment},
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 (this process has no other threads)
        )
        try:
            self.version = str(self._answer()["version"])
            self.ready_s = time.perf_counter() - self._started_s
        except BaseException:
            self.close()
            raise

    def measure(self, command: Mapping[str, object], *, max_attempts: int = 1) -> Measured:
        """Run one command, again while others were busy meanwhile, up to `max_attempts` times."""
        got = undisturbed(lambda: self._ask(command), max_attempts, self.session)
        seconds, tokens = float(got.value["seconds"]), int(got.value["tokens"])
        return Measured(seconds, tokens, got.attempts, got.contended)

    def first_token_s(self) -> float:
        """Seconds from the start of the process to the first token of a short prompt."""
        self._ask({"do": "prefill", "tokens": 16, "cold": True})
        return time.perf_counter() - self._started_s

    @property
    def session(self) -> int:
        """Its session, and its process group."""
        return self._process.pid

    def clock(self) -> CpuClock:
        """The machine's time now; what this system used counts as its own."""
        return CpuClock.read(self._process.pid)

    def close(self) -> None:
        """End it; what does not leave by itself is killed."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        signal_group(self._process, signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=15)
        signal_group(self._process, signal.SIGKILL)  # also what it has left behind in its group
        self._process.wait()
        self._log.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ask(self, command: Mapping[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None
        signal_group(self._process, signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            return self._answer()
        except BrokenPipeError:
            raise UnavailableError(last_words(self._log)) from None
        finally:
            signal_group(self._process, signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise UnavailableError(last_words(self._log))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise UnavailableError(str(answer["error"]))
        return answer
