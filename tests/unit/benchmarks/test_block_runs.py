"""Tables lie as their names say, and a small run compares them on a real backend."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks import block_runs
from benchmarks.rows import read_figures
from headrace.kv.extents import num_extents
from tests.support.make_model import make_gguf


@pytest.mark.parametrize("shape", block_runs.SHAPES)
@pytest.mark.parametrize("arrangement", block_runs.RUN_LEN)
def test_tables_are_in_as_many_runs_as_said(shape: str, arrangement: str) -> None:
    num_seqs, num_keys = block_runs.SHAPES[shape]
    tables = block_runs.tables_of(arrangement, num_seqs, num_keys, 1)
    length = -(-num_keys // 16)
    assert [len(table) for table in tables] == [length] * num_seqs
    blocks = list(itertools.chain(*tables))
    assert len(set(blocks)) == len(blocks)
    assert min(blocks) >= 0
    assert max(blocks) < block_runs.NUM_BLOCKS
    run_len = block_runs.RUN_LEN[arrangement] or length
    most = -(-length // run_len)
    # Two that follow each other by chance are one.
    assert all(0.9 * most <= num_extents(table) <= most for table in tables)


def test_a_run_compares_all_arrangements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rows.csv"
    model = make_gguf(tmp_path / "m.gguf").path
    monkeypatch.setattr(block_runs, "SHAPES", {"2 x 150": (2, 150)})
    monkeypatch.setattr(block_runs, "TURNS", 2)
    options = ["--rounds", "1", "--threads", "1", "--out", str(rows)]
    monkeypatch.setattr("sys.argv", ["block_runs", str(model), *options])
    block_runs.main()
    ratios = [f"{name} over {block_runs.ONE_RUN}" for name in ("runs of 6", "scattered")]
    assert [figure.figure for figure in read_figures(rows)] == [
        f"{kv_dtype}, 2 x 150 keys, {what}"
        for kv_dtype in ("fp16", "int8")
        for what in [*block_runs.RUN_LEN, *ratios]
    ]
