"""The machine's own limits, by native probes that know nothing of any model: memory and arithmetic.

A working set far larger than the last-level cache measures memory; a smaller one measures that
cache, in which a small model may live. Both are roofs, of different models.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace import _native
from headrace.backends.threads import make_pool
from headrace.errors import ResourceError

MIB = 1 << 20
WORKING_SETS = (64 * MIB, 96 * MIB, 256 * MIB, 1024 * MIB)

# name of the native probe -> what it measures.
COMPUTE = {
    "fma": "float32 multiply-add",
    "int8": "int8 multiply-add",
    "int4-1": "int4 unpacked, 1 row",
    "int4-4": "int4 unpacked, 4 rows",
}


@dataclass(frozen=True, slots=True)
class Rate:
    """One limit. `alone[i]`: thread i while the others sleep, on processor `cpus[i]`."""

    name: str
    unit: str
    together: float
    alone: tuple[float, ...]
    cpus: tuple[int, ...]
    where: str = ""


class Roof:
    """Probes with a pool of threads of their own, and memory up to `max_bytes`.

    At most a thread for each processor, `threads` of them: more wait for each other, and find no
    more. Raises ResourceError for a table or an amount of memory that the machine lacks.
    """

    def __init__(
        self, *, threads: int | None = None, isa: str | None = None, max_bytes: int = 0
    ) -> None:
        available = _native.memory_info().available_bytes
        if max_bytes > available:
            raise ResourceError(
                f"A working set of {max_bytes >> 20} MiB is asked for, but {available >> 20} MiB "
                "are available; use a smaller one."
            )
        self.isa = chosen_isa(isa)
        try:
            processors = len(os.sched_getaffinity(0))
            self._pool = make_pool(min(threads or _native.default_threads(), processors))
            self._probe = _native.RoofProbe(self._pool, isa=self.isa, max_bytes=max_bytes)
        except (ValueError, RuntimeError) as error:
            raise ResourceError(f"{error}.") from error
        self.threads = self._pool.num_threads
        self.cache_bytes = last_level_cache_bytes()

    def read(self, num_bytes: int, repeat: int) -> Rate:
        """GB/s of reading the same `num_bytes` again and again."""
        alone, cpus, together = self._probe.read(num_bytes, repeat)
        return Rate(
            f"read, {num_bytes / MIB:.0f} MiB",
            "GB/s",
            together / 1e9,
            tuple(rate / 1e9 for rate in alone),
            tuple(cpus),
            place_of(num_bytes, self.cache_bytes),
        )

    def compute(self, op: str, repeat: int) -> Rate:
        """Gop/s (two for each multiply-add) of a probe of COMPUTE."""
        alone, cpus, together = self._probe.compute(op, repeat)
        unit = "GFLOP/s" if op == "fma" else "Gop/s"
        return Rate(
            COMPUTE[op], unit, together / 1e9, tuple(rate / 1e9 for rate in alone), tuple(cpus)
        )

    def rates(self, working_sets: Sequence[int], repeat: int) -> Iterator[Rate]:
        """Every limit, in the order of the report."""
        for num_bytes in working_sets:
            yield self.read(num_bytes, repeat)
        for op in COMPUTE:
            yield self.compute(op, repeat)


def chosen_isa(isa: str | None) -> str:
    """A kernel table by name; without one, HEADRACE_ISA or the best. Raises ResourceError."""
    try:
        chosen = isa or _native.isa()
    except ValueError as error:
        raise ResourceError(f"{error}.") from error
    if chosen not in _native.isas():
        known = ", ".join(_native.isas())
        raise ResourceError(f"{chosen!r} is no kernel table of this processor; use {known}.")
    return chosen


def place_of(num_bytes: int, cache_bytes: int | None) -> str:
    """Where a working set stays between two reads; the cache may be shared with other programs."""
    if cache_bytes is None:
        return ""
    if num_bytes * 4 <= cache_bytes * 3:
        return "last-level cache"
    return "memory" if num_bytes >= cache_bytes * 2 else "partly in cache"


def last_level_cache_bytes(root: Path = Path("/sys")) -> int | None:
    """Size of the last-level cache of the first processor, or None where it is not told."""
    largest: tuple[int, int] | None = None
    for folder in (root / "devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level = int((folder / "level").read_text())
            size = (folder / "size").read_text().strip()
            scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 1)
            found = level, int(size.rstrip("KMG")) * scale
        except (OSError, ValueError):
            continue
        largest = max(largest or found, found)
    return largest[1] if largest else None
