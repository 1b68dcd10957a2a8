"""Tables of the runs that measure figures: a line per setting, a column per figure.

A figure's name is its setting and what was measured: "cores, lookahead, goodput" is the `goodput`
of `cores, lookahead`. What most settings of a table have is a column of it; what few have gets a
table of its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.markdown import table
from benchmarks.rows import Figure
from benchmarks.targets import FIGURE_TARGETS


@dataclass(frozen=True)
class Series:
    """A figure's value in every round, or all of them if a round has several."""

    name: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def setting(self) -> str:
        """Nothing when the name has one part."""
        return self.name.rpartition(", ")[0]

    @property
    def column(self) -> str:
        return self.name.rpartition(", ")[2]


def series_of(figures: Iterable[Figure]) -> dict[str, Series]:
    """By name, in the order of the first rows."""
    values: dict[str, list[Figure]] = {}
    for figure in figures:
        values.setdefault(figure.figure, []).append(figure)
    return {
        name: Series(name, rows[0].unit, tuple(row.value for row in rows))
        for name, rows in values.items()
    }


@dataclass
class Sheet:
    """One table: its settings and columns, in the order of the first rows."""

    settings: list[str]
    columns: list[str]


def sheets(found: Mapping[str, Series]) -> list[Sheet]:
    """Tables that hold every figure whose name has a setting. A column joins the table with the
    most settings of which more than half have it; a blank is left for those that do not."""
    having: dict[str, list[str]] = {}
    for series in found.values():
        if series.setting:
            having.setdefault(series.column, []).append(series.setting)
    made: list[Sheet] = []
    for column in sorted(having, key=lambda column: -len(having[column])):
        settings = having[column]
        for sheet in made:
            if set(settings) <= set(sheet.settings) and 2 * len(settings) > len(sheet.settings):
                sheet.columns.append(column)
                break
        else:
            made.append(Sheet(settings, [column]))
    order = list(having)
    for sheet in made:
        sheet.columns.sort(key=order.index)
    return sorted(made, key=lambda sheet: order.index(sheet.columns[0]))


def figures_tables(found: Mapping[str, Series]) -> str:
    """Medians of all figures; single ones come last."""
    parts, single = [], [series for series in found.values() if not series.setting]
    for sheet in sheets(found):
        if len(sheet.settings) == len(sheet.columns) == 1:
            single.append(found[f"{sheet.settings[0]}, {sheet.columns[0]}"])
        else:
            parts.append(_sheet_table(sheet, found))
    if single:
        lines = [[series.name, f"{number(series.median)} {series.unit}"] for series in single]
        parts.append(table(["figure", "median"], lines))
    return "\n\n".join(parts)


def _sheet_table(sheet: Sheet, found: Mapping[str, Series]) -> str:
    """Units stand in the head, or in the cells of a column that has several."""
    head, lines = [""], [[setting] for setting in sheet.settings]
    for column in sheet.columns:
        cells = [found.get(f"{setting}, {column}") for setting in sheet.settings]
        units = {cell.unit for cell in cells if cell is not None}
        head.append(f"{column} ({min(units)})" if len(units) == 1 else column)
        for line, cell in zip(lines, cells, strict=True):
            unit = f" {cell.unit}" if cell is not None and len(units) > 1 else ""
            line.append("-" if cell is None else number(cell.median) + unit)
    return table(head, lines)


def figure_targets(run: str, found: Mapping[str, Series]) -> str:
    """What the run had to reach, and whether its medians did; empty if nothing was asked."""
    lines = []
    for name, (bound, at_most) in FIGURE_TARGETS.get(run, {}).items():
        sign, series = "<=" if at_most else ">=", found.get(name)
        if series is None:
            lines.append([name, f"{sign} {bound:g}", "not measured", "-"])
            continue
        value, unit = series.median, series.unit
        reached = value <= bound if at_most else value >= bound
        lines.append([name, f"{sign} {bound:g} {unit}", f"{number(value)} {unit}", _yes(reached)])
    return table(["target", "bound", "measured", "reached"], lines) if lines else ""


def _yes(reached: bool) -> str:
    return "yes" if reached else "no"


def rounds(figures: Sequence[Figure]) -> str:
    """How many rounds there were, and how many rows others disturbed, if that was seen."""
    num_rounds = len({figure.round for figure in figures})
    text = f"- Medians of {num_rounds} rounds" if num_rounds > 1 else "- One round"
    watched = [figure for figure in figures if figure.attempts]
    if watched:
        num_contended = sum(figure.contended for figure in watched)
        text += f"; {num_contended} of {len(watched)} rows contended"
    return f"{text}."


def number(value: float) -> str:
    """Four digits, or all of them left of the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
