"""How the command line speaks."""

from __future__ import annotations

import sys

import pytest

from headrace.cli import console
from headrace.cli.console import ProgressLine, human_bytes, print_table


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (98_362_432, "93.8 MiB"),
        (270_590_880, "258 MiB"),
        (5 << 40, "5.0 TiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_human_bytes(num_bytes: int, text: str) -> None:
    assert human_bytes(num_bytes) == text


def test_a_table_aligns_numbers_right_and_texts_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "size"], [["a", "1 B"], ["long", "100 B"]])
    assert capsys.readouterr().out == "name   size\na       1 B\nlong  100 B\n"


def test_progress_off_a_terminal_is_one_line_and_only_for_a_download(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ProgressLine("m") as progress:
        pass
    assert capsys.readouterr().err == ""
    with ProgressLine("m") as progress:
        for done in range(0, 101, 10):
            progress(done << 20, 100 << 20)
    assert capsys.readouterr().err == "Fetching m (100 MiB).\n"


def test_progress_on_a_terminal_is_a_bar_that_ends_full(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with ProgressLine("m") as progress:
        progress(0, 100)
        progress(100, 100)
    shown = capsys.readouterr().err
    assert shown.endswith("\n")
    assert shown.count("\n") == 1
    assert "█" * console.BAR_LEN in shown.rsplit("\r", 1)[1]
