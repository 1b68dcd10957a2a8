"""Charts: where values are, what is told when they lack, and settings that come later."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.plots import PLOTTED, plot
from benchmarks.rows import RESULTS, Figure, read_figures, write_figures
from benchmarks.runs import RUNS
from benchmarks.svg import Chart, Line, Panel, Scale, label, tick_label

SVG = "{http://www.w3.org/2000/svg}"


def parsed(chart: Chart) -> ET.Element:
    return ET.fromstring(chart.svg())  # made here


def kind_of(root: ET.Element, kind: str) -> list[ET.Element]:
    return [element for element in root.iter() if element.get("class") == kind]


def texts(root: ET.Element) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


def one_panel(values: dict[str, tuple[float, ...]], **more: object) -> Chart:
    lines = [Line(key, key, kind="ours" if key == "a" else "other") for key in ("a", "b <&> c")]
    panel = replace(Panel("a panel", "ms", values), **more)  # type: ignore[arg-type]  # any field
    return Chart("a chart", lines, [panel])


def test_bars_are_as_long_as_their_medians() -> None:
    root = parsed(one_panel({"a": (10.0, 30.0, 20.0), "b <&> c": (10.0,)}))
    (ours,), (other,) = kind_of(root, "ours"), kind_of(root, "other")
    assert float(ours.attrib["width"]) == pytest.approx(2 * float(other.attrib["width"]), abs=0.2)
    (span,) = kind_of(root, "span")  # 10 to 30, where the bar of 20 has its length
    low, high = span.attrib["d"][1:].split("H")
    start = float(ours.attrib["x"])
    assert float(high) - start == pytest.approx(1.5 * float(ours.attrib["width"]), abs=0.2)
    assert float(low.split()[0]) - start == pytest.approx(float(other.attrib["width"]), abs=0.2)
    assert {"20", "10", "b <&> c"} <= set(texts(root))


def test_what_was_not_measured_is_told() -> None:
    root = parsed(one_panel({"a": (1.0,)}))
    assert "not measured" in texts(root)
    assert "not measured" in texts(parsed(one_panel({}, is_log=True)))
    assert not kind_of(parsed(one_panel({})), "ours")


def test_bounds_and_the_line_are_within_the_scale() -> None:
    chart = one_panel({"a": (1.0,), "b <&> c": (2.0,)}, bounds={"a": 5.0}, line=4.0)
    root = parsed(chart)
    (bound,), (line,) = kind_of(root, "bound"), kind_of(root, "line")
    bar = kind_of(root, "other")[0]
    start, length = float(bar.attrib["x"]), float(bar.attrib["width"])
    assert float(bound.attrib["d"][1:].split()[0]) == pytest.approx(start + 2.5 * length, abs=0.3)
    assert float(line.attrib["d"][1:].split()[0]) == pytest.approx(start + 2 * length, abs=0.3)
    assert any("bound to reach" in text for text in texts(root))


def test_decades_are_equally_wide() -> None:
    scale = Scale.of(Panel("", "", {"a": (3.0, 4000.0)}, is_log=True), 10.0, 400.0)
    assert [scale.x(tick) for tick in scale.ticks] == pytest.approx([10, 110, 210, 310, 410])
    assert list(scale.ticks) == pytest.approx([1, 10, 100, 1000, 10_000])
    assert scale.x(0.0) == 10


@pytest.mark.parametrize("seed", range(20))
def test_ticks_are_few_and_hold_the_values(seed: int) -> None:
    rng = random.Random(seed)
    values = tuple(10 ** rng.uniform(-4, 6) for _ in range(4))
    for is_log in (False, True):
        scale = Scale.of(Panel("", "", {"a": values}, is_log=is_log), 0.0, 120.0)
        assert 2 <= len(scale.ticks) <= (12 if is_log else 5)
        assert all(0 <= scale.x(value) <= 120 for value in (*values, *scale.ticks))
        assert scale.x(max(values)) > 0


def test_numbers_are_short() -> None:
    assert [label(v) for v in (0.39561, 12.345, 143_582.0)] == ["0.396", "12.3", "143,582"]
    assert [tick_label(v) for v in (500.0, 1000.0, 50_000.0)] == ["500", "1,000", "50k"]


@pytest.mark.parametrize("number", sorted(PLOTTED - {"01"}))
def test_settings_that_come_later_get_a_line(tmp_path: Path, number: str) -> None:
    """As if every row had been measured of another setting, too; and if half of them were gone."""
    run = RUNS[number]
    if not run.path(RESULTS).is_file():
        pytest.skip(f"run {number} has no rows")
    figures = read_figures(run.path(RESULTS))
    before = plot(run, RESULTS)
    assert before is not None
    more = [Figure(f.round, f"new, {f.figure}", f.value, f.unit) for f in figures]
    write_figures(run.path(tmp_path), [*figures, *more])
    after = plot(run, tmp_path)
    assert after is not None
    assert len(after.lines) + len(after.panels) > len(before.lines) + len(before.panels)
    parsed(after)
    write_figures(run.path(tmp_path), figures[::2])
    half = plot(run, tmp_path)
    assert half is not None
    parsed(half)


def test_nothing_is_drawn_of_no_rows(tmp_path: Path) -> None:
    for number in PLOTTED:
        assert plot(RUNS[number], tmp_path) is None
    assert plot(RUNS["10"], RESULTS) is None
