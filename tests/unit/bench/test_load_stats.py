"""Percentiles as NumPy has them, and goodput by its definition."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.load.client import Outcome
from headrace.bench.load.report import COLUMNS, latency_rows, lines_of, write_csv
from headrace.bench.load.run import LoadRun
from headrace.bench.load.stats import Objectives, percentile, summarize

FLOATS = st.floats(-1e6, 1e6)


@given(st.lists(FLOATS, min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent))
    assert percentile(sorted(values), percent) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_no_values_have_no_percentile() -> None:
    assert math.isnan(percentile([], 50))


def outcome(index: int, at_s: float, times: list[float], error: str = "") -> Outcome:
    end_s = times[-1] if times else at_s + 1
    return Outcome(index, at_s, 5, len(times), at_s + 0.001, end_s, times, 5, len(times), error)


RUN = LoadRun(
    "m",
    [
        outcome(0, 0.0, [0.1, 0.2, 0.3]),  # 100 ms, then 100 ms each
        outcome(1, 1.0, [1.2, 1.25, 1.3]),  # 200 ms, then 50 ms each
        outcome(2, 2.0, [2.05]),  # one token
        outcome(3, 3.0, [3.01], "timeout"),
    ],
    duration_s=4.0,
)


@pytest.mark.parametrize(
    ("objectives", "num_good"),
    [
        (Objectives(), 3),
        (Objectives(ttft_ms=150), 2),
        (Objectives(tpot_ms=60), 2),
        (Objectives(e2e_ms=299), 1),
        (Objectives(ttft_ms=150, tpot_ms=60), 1),
        (Objectives(ttft_ms=1), 0),
    ],
)
def test_goodput_counts_what_keeps_every_objective(objectives: Objectives, num_good: int) -> None:
    summary = summarize(RUN, objectives)
    assert summary["request_goodput"] == num_good / 4.0
    assert summary["good_share"] == num_good / 4


def test_the_summary_is_exact() -> None:
    summary = summarize(RUN, Objectives())
    assert (summary["completed"], summary["failed"]) == (3, 1)
    assert summary["errors"] == {"timeout": 1}
    assert summary["ttft_ms"]["p50"] == pytest.approx(100)
    assert summary["ttft_ms"]["max"] == pytest.approx(200)
    assert summary["tpot_ms"]["mean"] == pytest.approx(75)
    assert summary["itl_ms"]["p50"] == pytest.approx(75)
    assert summary["output_throughput"] == 7 / 4.0
    assert summary["generator"]["late_ms"]["p99"] == pytest.approx(1)
    assert latency_rows(summary)[0] == [
        "time to first token",
        "116.67",
        "100.00",
        "180.00",
        "198.00",
        "200.00",
    ]
    text = "\n".join(lines_of(summary, Objectives(ttft_ms=150)))
    assert "3 of 4 requests succeeded in 4.0 s" in text
    assert "1 failed: timeout." in text


def test_a_run_without_answers_has_dashes() -> None:
    summary = summarize(LoadRun("m"), Objectives())
    assert latency_rows(summary)[0] == ["time to first token", *"-----"]
    assert lines_of(summary, Objectives())[0].startswith("0 of 0 requests")


def test_rows_hold_all_that_was_measured(tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", RUN, Objectives(ttft_ms=150))
    lines = (tmp_path / "rows.csv").read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(lines))
    assert tuple(rows[0]) == COLUMNS
    assert [row["is_good"] for row in rows] == ["1", "0", "1", "0"]
    assert rows[1]["token_ms"] == "200.000 250.000 300.000"
    assert rows[3]["error"] == "timeout"
