"""Options of the numbered runs that would leave rows that say nothing are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.runs import RUNS


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rounds", "0"], "argument --rounds: '0' is not from 1 to 1024"),
        (["--rounds", "-1"], "argument --rounds: '-1' is not from 1 to 1024"),
        (["--threads", "0"], "argument --threads: '0' is not from 1 to 1024"),
        (["--threads", "1025"], "argument --threads: '1025' is not from 1 to 1024"),
        (["--threads", "9" * 5000], "is not from 1 to 1024"),
        (["--results", "/dev/null"], "argument --results: /dev/null is no folder"),
        (["--results", "/proc/x"], "argument --results: /proc/x is no folder"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else None,
)
def test_what_cannot_be_is_wrong_usage(tmp_path: Path, words: list[str], message: str) -> None:
    command = [sys.executable, "-m", "benchmarks", "01", "--busy", "--results", str(tmp_path)]
    result = subprocess.run(
        [*command, "--models", str(tmp_path), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [number for number, run in RUNS.items() if run.repeats])
def test_runs_that_repeat_rows_can_be_told_not_to(number: str) -> None:
    command = [sys.executable, "-m", RUNS[number].module, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--busy" in done.stdout
