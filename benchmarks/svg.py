"""Bar charts as SVG: a line per setting, panels side by side, each with a scale of its own.

Small, the same bytes for the same figures, and readable in light and dark: the picture has a ground
of its own, and its colours follow what the reader prefers. Blue against orange is told apart by
colour-blind readers, too; nothing is said by colour alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

_ROW, _BAR, _HEAD, _FOOT, _PAD = 20, 11, 40, 24, 12
_FONT, _SMALL = 12, 11
_CHAR = 0.62  # width of a letter over its size, so that the room suffices with any font
_PANEL_GAP = 22
_STYLE = """
text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;fill:#1f2328}
.ground{fill:#fff}.title,.group{font-weight:600}.small{font-size:11px}
.value{font-size:11px}
.tick{fill:#59636e;font-size:11px}.grid{stroke:#d1d9e0}
.ours{fill:#0072b2}.other{fill:#e69f00}.limit{fill:#9aa4ae}
.span{stroke:#1f2328}.bound{stroke:#1f2328;stroke-width:2.5}
.line{stroke:#1f2328;stroke-dasharray:4 3}
@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.ground{fill:#0d1117}.tick{fill:#9198a1}
.grid{stroke:#3d444d}.ours{fill:#3fa3e0}.span,.bound,.line{stroke:#f0f6fc}}
""".strip()


@dataclass(frozen=True)
class Line:
    """A line of the chart. `key` names its values; lines of a `group` stand under its name. `kind`:
    ours, other, or a limit that nobody can pass."""

    key: str
    label: str
    group: str = ""
    kind: str = "other"


@dataclass(frozen=True)
class Panel:
    """`values`: key of a line -> its value in every round, in `unit`; a line that has none says so.
    `bounds`: key -> what it had to reach. `line`: one value to compare all with. Log scales show
    dots."""

    title: str
    unit: str
    values: Mapping[str, Sequence[float]]
    bounds: Mapping[str, float] = field(default_factory=dict)
    line: float | None = None
    is_log: bool = False
    end: float | None = None  # of the scale; else what its values need

    def shown(self) -> list[float]:
        """Everything that the scale must hold."""
        extra = [] if self.line is None else [self.line]
        values = [value for rounds in self.values.values() for value in rounds]
        return [*values, *self.bounds.values(), *extra]


@dataclass(frozen=True)
class Chart:
    """`note` stands below, in a sentence; what dashes and strokes mean is added to it."""

    title: str
    lines: Sequence[Line]
    panels: Sequence[Panel]
    note: str = ""
    panel_width: int = 190

    def svg(self) -> str:
        """The whole file."""
        return "\n".join(_draw(self)) + "\n"


@dataclass(frozen=True)
class Scale:
    """Values -> pixels from `left`."""

    ticks: Sequence[float]
    start: float
    end: float
    is_log: bool
    left: float
    width: float

    @classmethod
    def of(cls, panel: Panel, left: float, width: float) -> Scale:
        values = panel.shown()
        top = panel.end or max(values, default=1.0)
        if panel.is_log:
            low = min((value for value in values if value > 0), default=1.0)
            ticks = _decades(low, top)
            return cls(ticks, ticks[0], max(top, ticks[-1]), True, left, width)
        ticks = _round_steps(top, width)
        return cls(ticks, 0.0, max(top, ticks[-1]), False, left, width)

    def x(self, value: float) -> float:
        """Where a value is; what lies below a log scale is at its start."""
        if self.is_log:
            share = math.log(max(value, self.start) / self.start, self.end / self.start)
        else:
            share = max(value, 0.0) / self.end
        return self.left + self.width * min(share, 1.0)


def _round_steps(top: float, width: float) -> list[float]:
    """From zero up to the highest value at most, in steps of 1, 2 or 5 times a power of ten: up to
    five, and no more than there is room for."""
    if top <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(top))
    for step in (power / 5, power / 2, power, 2 * power, 5 * power):
        ticks = [number * step for number in range(int(top / step + 1e-9) + 1)]
        room = len(ticks) * (_width(tick_label(ticks[-1]), _SMALL) + 6)
        if len(ticks) <= 5 and room <= width:
            return ticks
    return [0.0, power]


def _decades(low: float, top: float) -> list[float]:
    """Powers of ten that hold all values."""
    first = math.floor(math.log10(low) + 1e-9)
    last = max(first + 1, math.ceil(math.log10(top) - 1e-9))
    return [10.0**power for power in range(first, last + 1)]


def label(value: float) -> str:
    """Three digits, or all of them left of the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def tick_label(value: float) -> str:
    """The same, and thousands in short."""
    return f"{value / 1000:g}k" if value >= 10_000 else label(value)


def _draw(chart: Chart) -> Iterator[str]:
    places, bottom = _places(chart.lines)
    gutter = _PAD + max((_width(line.label, _FONT) for line in chart.lines), default=0.0) + 8
    width = gutter + len(chart.panels) * (chart.panel_width + _PANEL_GAP)
    notes = _notes(chart, width - 2 * _PAD)
    height = bottom + _FOOT + 16 * len(notes) + _PAD / 2
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"'
        f' width="{width:.0f}" height="{height:.0f}" role="img">'
    )
    yield f"<title>{escape(chart.title)}</title><style>{_STYLE}</style>"
    yield f'<rect class="ground" width="{width:.0f}" height="{height:.0f}" rx="6"/>'
    group = ""
    for line, y in zip(chart.lines, places, strict=True):
        if line.group != group:
            group = line.group
            yield _text(_PAD, y - _ROW, group, "group")
        yield _text(gutter - 8, y, line.label, anchor="end")
    for number, panel in enumerate(chart.panels):
        left = gutter + number * (chart.panel_width + _PANEL_GAP)
        yield from _draw_panel(chart, panel, places, left, bottom)
    for number, note in enumerate(notes):
        yield _text(_PAD, bottom + _FOOT + 16 * number + 4, note, "small")
    yield "</svg>"


def _places(lines: Sequence[Line]) -> tuple[list[float], float]:
    """The middle of every line, and where the last one ends. A group's name takes a line."""
    places, y, group = [], float(_HEAD), ""
    for line in lines:
        if line.group != group:
            y, group = y + _ROW, line.group
        places.append(y + _ROW / 2)
        y += _ROW
    return places, y


def _draw_panel(
    chart: Chart, panel: Panel, places: Sequence[float], left: float, bottom: float
) -> Iterator[str]:
    medians = [label(statistics.median(rounds)) for rounds in panel.values.values() if rounds]
    room = max((_width(text, _SMALL) for text in medians), default=0.0) + 8
    scale = Scale.of(panel, left, chart.panel_width - room)
    unit = ", ".join(part for part in (panel.unit, "log" if panel.is_log else "") if part)
    words = [*panel.title.split(), *([f"({unit})"] if unit else [])]
    for number, part in enumerate(reversed(_wrap(words, chart.panel_width, _FONT))):
        yield _text(left, _HEAD - 12 - 15 * number, part, "title")
    for tick in scale.ticks:
        x = scale.x(tick)
        yield f'<path class="grid" d="M{x:.1f} {_HEAD}V{bottom:.1f}"/>'
        yield _text(x, bottom + 10, tick_label(tick), "tick", anchor="middle")
    if panel.line is not None:
        yield f'<path class="line" d="M{scale.x(panel.line):.1f} {_HEAD - 2}V{bottom:.1f}"/>'
    for line, y in zip(chart.lines, places, strict=True):
        yield from _draw_bar(line, panel, scale, y)
        rounds = panel.values.get(line.key)
        if rounds:
            text = label(statistics.median(rounds))
            yield _text(left + chart.panel_width, y, text, "value", anchor="end")


def _draw_bar(line: Line, panel: Panel, scale: Scale, y: float) -> Iterator[str]:
    """The median, from the least to the most of the rounds, and the bound."""
    rounds = panel.values.get(line.key, ())
    if not rounds:
        yield _text(scale.left + 3, y, "not measured", "tick")
        return
    x, top = scale.x(statistics.median(rounds)), y - _BAR / 2
    if scale.is_log:
        yield f'<path class="grid" d="M{scale.left:.1f} {y:.1f}H{x:.1f}"/>'
        yield f'<circle class="{line.kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
    else:
        size = f'width="{x - scale.left:.1f}" height="{_BAR}"'
        yield f'<rect class="{line.kind}" x="{scale.left:.1f}" y="{top:.1f}" {size}/>'
    low, high = scale.x(min(rounds)), scale.x(max(rounds))
    if high - low > 1:
        yield f'<path class="span" d="M{low:.1f} {y:.1f}H{high:.1f}"/>'
    if line.key in panel.bounds:
        yield f'<path class="bound" d="M{scale.x(panel.bounds[line.key]):.1f} {y - 8:.1f}v16"/>'


def _notes(chart: Chart, width: float) -> list[str]:
    """The note, and what the strokes mean."""
    parts = [chart.note] if chart.note else []
    if any(panel.bounds for panel in chart.panels):
        parts.append("Upright stroke: the bound to reach.")
    rounds = [values for panel in chart.panels for values in panel.values.values()]
    if any(len(values) > 1 for values in rounds):
        parts.append("Thin line: least to most of the rounds.")
    return _wrap(" ".join(parts).split(), width, _SMALL)


def _wrap(words: Iterable[str], width: float, size: int) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and _width(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _width(text: str, size: int) -> float:
    return _CHAR * size * len(text)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    """Text whose middle is at `y`."""
    more = f' class="{kind}"' if kind else ""
    more += f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y + 4:.1f}"{more}>{escape(text)}</text>'
