"""The run about orders of the queue: its mixes, and that it writes the figures with targets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import hit_rate, queue_order
from benchmarks.rows import read_figures
from benchmarks.targets import FIGURE_TARGETS
from headrace.bench.simulate import jobs_of


def test_a_small_run_writes_the_figures_that_have_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_DATA", raising=False)
    out = tmp_path / "rows.csv"
    sizes = ["--rounds", "1", "--requests", "4", "--sharing", "12"]
    monkeypatch.setattr("sys.argv", ["queue_order", *sizes, "--out", str(out)])
    queue_order.main()
    figures = {figure.figure: figure.value for figure in read_figures(out)}
    assert set(FIGURE_TARGETS["12"]) <= set(figures)
    assert figures["fcfs, mean over fcfs"] == figures["sharing: fcfs, p99 over fcfs"] == 1.0


def test_the_trace_keeps_its_order_and_what_it_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"timestamp": n, "input_length": 512 * 3, "output_length": 64, "hash_ids": [0, n // 2, n]}
        for n in range(10, 30)
    ]
    (tmp_path / "traces").mkdir()
    path = tmp_path / "traces" / "conversation.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    monkeypatch.setitem(hit_rate.TRACES, "conversation", "traces/conversation.jsonl")
    plain, sharing = queue_order.mixes(1, 3, 6, tmp_path)
    assert (len(plain.shapes), plain.divisor) == (3, 1)
    assert [shape.blocks[2] for shape in sharing.shapes] == list(range(16, 22))
    jobs = jobs_of(sharing.shapes, divisor=sharing.divisor)
    assert [(len(job.prompt), job.output_len) for job in jobs] == [(48, 2)] * 6
    assert jobs[0].prompt[:32] == jobs[1].prompt[:32] != jobs[2].prompt[:32]
    assert jobs[0].prompt[:16] == jobs[2].prompt[:16]
