"""The machine under the benchmarks: what it is, and who else used it while a row was measured.

The rule: a row is contended when, while it ran, other processes and the hypervisor together took
more than `CONTENDED_SHARE` of the cores' time, plus two clock ticks, the resolution of the
counters. `undisturbed` measures a row until it is not, `MAX_ATTEMPTS` times at most.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

CONTENDED_SHARE = 0.05
MAX_ATTEMPTS = 5
BUSY_SHARE = 0.10
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).parent.parent
_SHOWN_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd")


@dataclass(frozen=True)
class CpuClock:
    """Seconds of all cores since boot: worked, and stolen by the hypervisor."""

    worked_s: float
    stolen_s: float
    wall_s: float
    own_s: float  # of this process and of the session that is measured

    @classmethod
    def read(cls, session: int | None = None) -> CpuClock:
        """`session`: the one under test, a number as that of the process that leads it."""
        own = time.process_time() + (0.0 if session is None else session_cpu_s(session))
        worked, stolen = parse_stat(Path("/proc/stat").read_text())
        return cls(worked, stolen, time.perf_counter(), own)


@dataclass(frozen=True)
class Contention:
    """What others took between two clocks, in seconds of a core."""

    others_s: float
    stolen_s: float
    core_s: float  # cores times wall time

    @classmethod
    def between(cls, before: CpuClock, after: CpuClock) -> Contention:
        worked = after.worked_s - before.worked_s
        own = after.own_s - before.own_s
        wall = after.wall_s - before.wall_s
        return cls(
            max(0.0, worked - own), after.stolen_s - before.stolen_s, wall * (os.cpu_count() or 1)
        )

    @property
    def is_contended(self) -> bool:
        allowed = CONTENDED_SHARE * self.core_s + 2 * TICK_S
        return self.others_s + self.stolen_s > allowed


Value = TypeVar("Value")


@dataclass(frozen=True)
class Attempted(Generic[Value]):
    """What the last of so many attempts gave; `contended` if others disturbed that one, too."""

    value: Value
    attempts: int
    contended: bool


def undisturbed(
    measure: Callable[[], Value], max_attempts: int = MAX_ATTEMPTS, session: int | None = None
) -> Attempted[Value]:
    """Measure, and again while others were busy meanwhile. `session`: the one that works, beside
    this process."""
    attempt = 0
    while True:
        attempt += 1
        before = CpuClock.read(session)
        value = measure()
        seen = Contention.between(before, CpuClock.read(session))
        if attempt >= max_attempts or not seen.is_contended:
            return Attempted(value, attempt, seen.is_contended)


def parse_stat(text: str) -> tuple[float, float]:
    """(worked, stolen) seconds of the first line of /proc/stat. Guests are part of user time."""
    user, nice, system, _idle, _wait, irq, softirq, stolen = map(int, text.split()[1:9])
    return (user + nice + system + irq + softirq) * TICK_S, stolen * TICK_S


def session_cpu_s(session: int) -> float:
    """User and system seconds of every live process of a session, and of children that ended. A
    server's worker is one, though its process group is its own."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks * TICK_S


def busy_share(seconds: float = 2.0) -> float:
    """Share of all cores that others use now, stolen time included."""
    before = CpuClock.read()
    time.sleep(seconds)
    seen = Contention.between(before, CpuClock.read())
    return (seen.others_s + seen.stolen_s) / seen.core_s


def multiplies_bf16() -> bool:
    """Whether this processor has instructions for bfloat16 products."""
    _, flags = _cpu(Path("/proc/cpuinfo").read_text())
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


def facts() -> dict[str, object]:
    """What a reader must know about a run besides its rows."""
    from headrace import __version__, _native

    cpu, flags = _cpu(Path("/proc/cpuinfo").read_text())
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu or platform.machine(),
        "cores": os.cpu_count(),
        "instruction_sets": [flag for flag in _SHOWN_FLAGS if flag in flags],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "headrace": __version__,
        "kernel_table": _native.isa(),
        "commit": _commit(),
    }


def _cpu(text: str) -> tuple[str, set[str]]:
    pairs = [line.partition(":") for line in text.splitlines()]
    values = {name.strip(): value.strip() for name, _, value in pairs}
    flags = values.get("flags", values.get("Features", ""))
    name = values.get("model name", "")
    if "model" in values:  # virtual machines often say no more than the maker
        name += f" (family {values.get('cpu family')}, model {values['model']})"
    return name, set(flags.split())


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def usable_cores() -> int:
    from headrace import _native

    return _native.default_threads()
