"""Tables of figures: which column stands in which table, and whether the pages are up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.figures import figure_targets, figures_tables, number, rounds, series_of, sheets
from benchmarks.report import PAGES, ROOT, main, run_section
from benchmarks.rows import RESULTS, Figure, read_figures, write_figures
from benchmarks.runs import MODELS, RUNS


def figures_of(values: dict[str, float], unit: str = "s") -> list[Figure]:
    return [Figure(0, name, value, unit) for name, value in values.items()]


def test_a_setting_is_a_line_and_a_figure_a_column() -> None:
    figures = figures_of({"a, x": 1, "a, y": 2, "b, x": 3, "b, y": 4, "alone": 5})
    figures += [Figure(1, "a, x", 3, "s"), Figure(2, "a, x", 2.5, "s")]
    assert figures_tables(series_of(figures)) == (
        "|  | x (s) | y (s) |\n| --- | --- | --- |\n| a | 2.5 | 2 |\n| b | 3 | 4 |\n\n"
        "| figure | median |\n| --- | --- |\n| alone | 5 s |"
    )


def test_what_most_have_is_a_column_and_what_few_have_a_table() -> None:
    names = [f"{setting}, {column}" for setting in "abcd" for column in ("x", "y")]
    names += ["a, most", "b, most", "d, most", "b, few", "c, few", "a, other z", "e, x"]
    found = series_of(figures_of(dict.fromkeys(names, 1.0)))
    made = [(sheet.settings, sheet.columns) for sheet in sheets(found)]
    assert made == [
        (["a", "b", "c", "d", "e"], ["x", "y", "most"]),
        (["b", "c"], ["few"]),
        (["a"], ["other z"]),
    ]
    text = figures_tables(found)
    assert "| c | 1 | 1 | - |" in text
    assert "| e | 1 | - | - |" in text
    assert text.endswith("| figure | median |\n| --- | --- |\n| a, other z | 1 s |")


def test_every_figure_is_told_once() -> None:
    for run in RUNS.values():
        if run.kind == "figures" and run.path(RESULTS).is_file():
            found = series_of(read_figures(run.path(RESULTS)))
            told = [
                name
                for sheet in sheets(found)
                for setting in sheet.settings
                for column in sheet.columns
                if (name := f"{setting}, {column}") in found
            ]
            told += [series.name for series in found.values() if not series.setting]
            assert sorted(told) == sorted(found), run.number


def test_units_that_differ_stand_in_the_cells() -> None:
    figures = [Figure(0, "a, x", 1500, "us"), Figure(0, "b, x", 2, "ms")]
    assert "| a | 1,500 us |" in figures_tables(series_of(figures))
    assert number(143_582.4) == "143,582"
    assert number(0.396) == "0.396"


def test_targets_that_were_missed_or_not_measured_are_told() -> None:
    found = series_of(figures_of({"shortest, mean over fcfs": 0.66}, "x"))
    text = figure_targets("12", found)
    assert "| shortest, mean over fcfs | <= 0.65 x | 0.66 x | no |" in text
    assert "| shortest, p99 over fcfs | <= 1.05 | not measured | - |" in text
    assert figure_targets("00", found) == ""


def test_rounds_and_contended_rows() -> None:
    figures = [Figure(n, "a, x", 1, "s", 1, int(n == 1)) for n in range(3)]
    assert rounds(figures) == ("- Medians of 3 rounds; 1 of 3 rows contended.")
    more = [*figures_of({"a, x": 1}), *figures_of({"a, x": 1, "b, x": 1})]
    assert rounds(more) == "- One round."


def test_attempts_are_kept_where_they_were_counted(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    watched = [Figure(0, "x", 1.0, "s", 3, 1), Figure(0, "y", 2.0, "s", 1)]
    write_figures(path, watched)
    assert read_figures(path) == watched
    write_figures(path, figures_of({"x": 1.0}))
    assert path.read_text("utf-8").startswith("round,figure,value,unit\n0,x,1.0,s")


def test_rows_that_are_kept_belong_to_a_run() -> None:
    known = {run.path(RESULTS, model) for run in RUNS.values() for model in ("", *MODELS)}
    assert set(RESULTS.glob("*.csv")) <= known


def test_pages_and_plots_say_what_the_rows_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = [tmp_path / page.name for page in PAGES]
    for page, copy in zip(PAGES, pages, strict=True):
        copy.write_bytes(page.read_bytes())
    plots = tmp_path / "plots"
    main(RESULTS, pages, plots)
    for page, copy in zip(PAGES, pages, strict=True):
        assert copy.read_text("utf-8") == page.read_text("utf-8"), "python -m benchmarks report"
    committed = ROOT / "docs" / "plots"
    assert {path.name for path in plots.iterdir()} == {path.name for path in committed.iterdir()}
    for path in plots.iterdir():
        assert path.read_bytes() == (committed / path.name).read_bytes()
        assert path.stat().st_size <= 40_000
    capsys.readouterr()
    main(RESULTS, pages, plots)
    assert capsys.readouterr().out == ""


def test_a_run_that_is_plotted_says_when_there_is_nothing(tmp_path: Path) -> None:
    write_figures(RUNS["12"].path(tmp_path), figures_of({"other": 1.0}))
    text = run_section(RUNS["12"], tmp_path)
    assert text is not None
    assert "Not plotted: there are no rows yet." in text
    write_figures(RUNS["10"].path(tmp_path), figures_of({"peak": 1.0}))
    assert "plotted" not in str(run_section(RUNS["10"], tmp_path))
