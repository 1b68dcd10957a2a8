"""The over-committed pool is what its page says, and a small run writes what has targets."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from benchmarks import overcommit
from benchmarks.rows import medians, read_figures
from benchmarks.targets import FIGURE_TARGETS
from headrace.engine.load import LoadOptions, load_engine
from headrace.kv.lookahead.base import Allocation
from headrace.kv.tables import blocks_for
from headrace.sim.run import Job
from tests.support.make_model import make_gguf


def test_the_pool_is_too_small_and_holds_the_longest() -> None:
    shapes = overcommit.shapes_of(0, 200, None)
    assert len(shapes) == 200
    assert max(s.output_len for s in shapes) <= overcommit.MAX_TOKENS
    num_blocks = overcommit.pool_for(shapes)
    total = sum(blocks_for(s.prompt_len + s.output_len) for s in shapes)
    assert num_blocks == pytest.approx(0.4 * total * 64 / 200, abs=1)
    assert num_blocks >= max(blocks_for(s.prompt_len + 1024) for s in shapes)


def test_every_policy_that_engines_have_is_played() -> None:
    assert {allocation for allocation, _ in overcommit.POLICIES.values()} == set(Allocation)
    for allocation, make in overcommit.POLICIES.values():
        assert make().name is allocation


def test_a_run_writes_the_figures_that_have_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.csv"
    monkeypatch.delenv("HEADRACE_DATA", raising=False)
    arguments = ["overcommit", "--rounds", "1", "--requests", "100", "--out", str(rows)]
    monkeypatch.setattr("sys.argv", arguments)
    monkeypatch.setattr(overcommit, "MACHINES", {"cores": overcommit.MACHINES["cores"]})
    overcommit.main()
    found = {name: value for name, (value, _, _) in medians(read_figures(rows)).items()}
    wanted = {name for name in FIGURE_TARGETS["14"] if name.startswith("cores")}
    assert wanted <= set(found)
    assert found["cores, lookahead, recomputed"] < found["cores, on-demand, recomputed"]
    assert found["cores, reserve-max, recomputed"] == 0
    assert {value for name, value in found.items() if name.endswith("deadlocks")} == {0.0}


def test_a_real_model_ends_its_answers_where_the_trace_says(tmp_path: Path) -> None:
    loaded = load_engine(
        make_gguf(tmp_path / "m.gguf").path, LoadOptions(kv_cache_bytes=4 << 20, threads=1)
    )
    lengths = [3, 1, 17, 40, 9]
    jobs = [Job(0.0, array("i", [1 + i] * (5 + i)), n, 50) for i, n in enumerate(lengths)]
    try:
        found = overcommit.play(overcommit.real(loaded), "lookahead", 12, jobs)
    finally:
        loaded.close()
    assert sorted(len(o.token_times) for o in found.run.good) == sorted(lengths)
    assert found.run.computed_rows >= sum(5 + i + n - 1 for i, n in enumerate(lengths))
    assert found.run.recomputed_rows == found.foresight.num_recomputed
    assert found.num_stuck == 0
    assert found.foresight.score.num_outputs == len(lengths)
