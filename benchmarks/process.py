"""A system under test: a process that is stopped whenever it is not its turn."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.machine import CpuClock, undisturbed

ROOT = Path(__file__).parent.parent
GUARD = Path(__file__).with_name("guard.py")


class Guarded:
    """A command that leads a session, under a guard (benchmarks.guard): with this process, or
    when it is closed, everything ends that the command has started. `popen` is the guard, which
    ends with the command and has its status; input and output are the command's."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int | None,
        stdout: int | IO[bytes],
        stderr: IO[bytes],
    ) -> None:
        """Returns when the command's process is there. One that cannot be run ends early."""
        lifeline, self._lifeline = os.pipe()
        report, told = os.pipe()
        try:
            self.popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(GUARD), str(lifeline), str(told), *command],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                text=True,
                cwd=ROOT,
                env={**os.environ, **environment},
                start_new_session=True,
                pass_fds=(lifeline, told),
            )
        finally:
            os.close(lifeline)
            os.close(told)
        with open(report, "rb") as file:
            self.session = int(file.read())

    def signal(self, number: signal.Signals) -> None:
        """Signal the group; it may have ended."""
        with contextlib.suppress(ProcessLookupError):
            if self.popen.poll() is None:
                os.killpg(self.session, number)

    def terminate(self) -> None:
        """Ask the command alone to end; it may have ended."""
        with contextlib.suppress(ProcessLookupError):
            if self.popen.poll() is None:
                os.kill(self.session, signal.SIGTERM)

    def close(self, seconds: float) -> None:
        """Wait until it has left by itself, at most so long; then end whatever there is."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout=seconds)
        os.close(self._lifeline)
        self.popen.wait()


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
        self._process = Guarded(
            launch.command,
            launch.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._started_s = time.perf_counter()
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
        return self._process.session

    def clock(self) -> CpuClock:
        """The machine's time now; what this system used counts as its own."""
        return CpuClock.read(self.session)

    def close(self) -> None:
        """End it; what does not leave by itself is killed."""
        stdin, stdout = self._process.popen.stdin, self._process.popen.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
        self._process.signal(signal.SIGCONT)
        self._process.close(seconds=15)
        self._log.close()
        stdout.close()

    def _ask(self, command: Mapping[str, object]) -> dict[str, Any]:
        stdin = self._process.popen.stdin
        assert stdin is not None
        self._process.signal(signal.SIGCONT)
        try:
            stdin.write(json.dumps(command) + "\n")
            stdin.flush()
            return self._answer()
        except BrokenPipeError:
            raise UnavailableError(last_words(self._log)) from None
        finally:
            self._process.signal(signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        stdout = self._process.popen.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise UnavailableError(last_words(self._log))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise UnavailableError(str(answer["error"]))
        return answer
