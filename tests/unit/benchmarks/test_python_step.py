"""The time outside the core, through the worker's loop over a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.machine import Attempted
from benchmarks.python_step import figures_of
from benchmarks.rows import read_figures
from benchmarks.targets import FIGURE_TARGETS
from tests.support.make_model import make_gguf


def test_median_and_percentile_in_milliseconds() -> None:
    figures = figures_of(2, 64, Attempted([s * 1e-3 for s in range(1, 102)], 3, True))
    assert [(f.round, f.figure, f.unit) for f in figures] == [
        (2, "64 sequences, median", "ms"),
        (2, "64 sequences, p99", "ms"),
    ]
    assert [f.value for f in figures] == pytest.approx([51.0, 100.0])
    assert [(f.attempts, f.contended) for f in figures] == [(3, 1)] * 2


def test_a_run_writes_the_figures_that_have_targets(tmp_path: Path) -> None:
    model = make_gguf(tmp_path / "m.gguf").path
    rows = tmp_path / "rows.csv"
    command = [sys.executable, "-m", "benchmarks.python_step", str(model)]
    command += ["--rounds", "1", "--threads", "1", "--out", str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = list(FIGURE_TARGETS["08"])
    assert [figure.figure for figure in read_figures(rows)] == names
    assert list(json.loads(done.stdout)) == names
