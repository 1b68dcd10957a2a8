"""The machine's limits: every table has probes, and sizes that cannot be are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace import _native
from headrace.bench.roof import COMPUTE, Roof, chosen_isa, last_level_cache_bytes, place_of
from headrace.errors import ResourceError

MIB = 1 << 20


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("threads", [1, 3])
def test_every_table_measures_every_limit(isa: str, threads: int) -> None:
    roof = Roof(threads=threads, isa=isa, max_bytes=4 * MIB)
    rates = list(roof.rates([MIB, 4 * MIB], 1))
    assert [rate.name for rate in rates] == ["read, 1 MiB", "read, 4 MiB", *COMPUTE.values()]
    for rate in rates:
        assert len(rate.alone) == len(rate.cpus) == roof.threads <= threads
        assert min(*rate.alone, rate.together) > 0
        assert all(cpu >= 0 for cpu in rate.cpus)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ResourceError, match="'sse9' is no kernel table of this processor; use"):
        Roof(isa="sse9")
    with pytest.raises(ResourceError, match=r"A working set of \d+ MiB is asked for, but"):
        Roof(max_bytes=1 << 50)
    probe = _native.RoofProbe(_native.ThreadPool(2), isa="scalar", max_bytes=8192)
    for num_bytes, repeat in [(0, 1), (-4096, 1), (8191, 1), (1 << 20, 1), (8192, 0)]:
        with pytest.raises(ValueError, match="a working set needs a page for each thread"):
            probe.read(num_bytes, repeat)
    for isa in ("", "neon9"):
        with pytest.raises(ValueError, match="no kernel table"):
            _native.RoofProbe(_native.ThreadPool(1), isa=isa, max_bytes=0)
    with pytest.raises(ValueError, match="no probe int3"):
        probe.compute("int3", 1)


def test_threads_beyond_the_processors_are_left_out() -> None:
    """A thousand of them, each alone in turn, would take most of an hour."""
    roof = Roof(threads=1000, max_bytes=MIB)
    assert roof.threads == len(os.sched_getaffinity(0))
    assert len(roof.compute("fma", 1).alone) == roof.threads


def test_a_forced_table_that_is_none_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ISA", "sse9")
    with pytest.raises(ResourceError, match="HEADRACE_ISA=sse9 is not a kernel table"):
        chosen_isa(None)
    assert chosen_isa("scalar") == "scalar"


def test_last_level_cache_is_the_one_of_the_highest_level(tmp_path: Path) -> None:
    assert last_level_cache_bytes(tmp_path) is None
    for index, (level, size) in enumerate([("1", "48K"), ("3", "32M"), ("2", "2048K"), ("x", "")]):
        folder = tmp_path / f"devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "level").write_text(level + "\n")
        (folder / "size").write_text(size + "\n")
    assert last_level_cache_bytes(tmp_path) == 32 * MIB


def test_a_working_set_says_where_it_stays() -> None:
    sizes = [24 * MIB, 25 * MIB, 63 * MIB, 64 * MIB]
    expected = ["last-level cache", "partly in cache", "partly in cache", "memory"]
    assert [place_of(size, 32 * MIB) for size in sizes] == expected
    assert place_of(64 * MIB, None) == ""
