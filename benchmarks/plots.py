"""What is plotted of each run: `python -m benchmarks report` writes docs/plots from the raw rows.

A chart has a line for every setting that has rows, so that new settings come by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Series, series_of
from benchmarks.lineup import OURS
from benchmarks.results_view import Results
from benchmarks.rivals import vllm_cpu
from benchmarks.rows import read_figures, read_run
from benchmarks.runs import Run
from benchmarks.svg import Chart, Line, Panel
from benchmarks.targets import FIGURE_TARGETS
from headrace.backends.layout import BLOCK_LEN

Found = Mapping[str, Series]
FOLDER = "plots"


def plot(run: Run, folder: Path) -> Chart | None:
    """The chart of a run, or None when none is made of it, or there are no rows for it."""
    path = run.path(folder)
    if run.number not in PLOTTED or not path.is_file():
        return None
    if run.kind == "speed":
        return _speed(run, Results(*read_run(path)))
    chart = _CHARTS[run.number](run, series_of(read_figures(path)))
    return chart if chart.lines else None


def plot_line(run: Run, folder: Path) -> str:
    """What the page says: the picture, or that there is none yet; nothing of unplotted runs."""
    if run.number not in PLOTTED:
        return ""
    chart = plot(run, folder)
    if chart is None:
        return "Not plotted: there are no rows yet."
    return f"![{chart.title}]({FOLDER}/{file_name(run)})"


def file_name(run: Run) -> str:
    return f"{run.number}-{run.name}.svg"


def by_setting(
    run: Run,
    found: Found,
    columns: Mapping[str, str],
    *,
    ours: Iterable[str] = (),
    log: Sequence[str] = (),
    line: tuple[str, Sequence[str]] = ("", ()),
    note: str = "",
) -> Chart:
    """A line per setting, a panel per column. `columns`: name -> title. `ours`: last parts of the
    settings to stand out. `line`: a figure to compare with, and in which columns."""
    settings = dict.fromkeys(s.setting for s in found.values() if s.column in columns and s.setting)
    targets = FIGURE_TARGETS.get(run.number, {})
    lines = []
    for setting in settings:
        group, _, label = setting.rpartition(", ")
        lines.append(Line(setting, label, group, "ours" if label in set(ours) else "other"))
    panels = []
    for column, title in columns.items():
        names = {setting: f"{setting}, {column}" for setting in settings}
        values = {key: found[name].values for key, name in names.items() if name in found}
        unit = next((found[name].unit for name in names.values() if name in found), "")
        bounds = {key: targets[name][0] for key, name in names.items() if name in targets}
        at = found[line[0]].median if line[0] in found and column in line[1] else None
        panel = Panel(title, _UNITS.get(unit, unit), values, bounds, at, column in log)
        panels.append(panel)
    return Chart(run.what, lines, panels, note)


_UNITS = {"x": "ratio", "us": "µs", "times": ""}


def _speed(run: Run, results: Results) -> Chart | None:
    """Tokens per second of ours and of every rival's best setting."""
    families = [OURS, *results.families()]
    lines = [Line(name, name, kind="ours" if name == OURS else "other") for name in families]
    panels = []
    for point in results.points():
        values = {name: results.rates(point, name) for name in families}
        panels.append(Panel(point, "tokens/s", values))
    note = "Each system at its best setting."
    return Chart(run.what, lines, panels, note, panel_width=140) if panels else None


def _python_step(run: Run, found: Found) -> Chart:
    columns = {"median": "median of the steps", "p99": "99th percentile"}
    chart = by_setting(run, found, columns, ours=_labels(found))
    return replace(chart, panel_width=250)


def _queue_order(run: Run, found: Found) -> Chart:
    columns = {
        "mean over fcfs": "mean time to first token over fcfs",
        "p99 over fcfs": "99th percentile over fcfs",
    }
    return by_setting(run, found, columns, ours=("shortest", "sharing: shortest"))


def _interference(run: Run, found: Found) -> Chart:
    columns = {
        "p99 gap": "99th percentile of gaps",
        "worst gap": "worst gap",
        "throughput": "throughput",
    }
    gaps = ("p99 gap", "worst gap")
    note = "Dashed: the objective, twice the step of the 16 streams alone."
    ours = ("objective", "derived", "objective over HTTP")
    line = ("objective", gaps)
    chart = by_setting(run, found, columns, ours=ours, log=gaps, line=line, note=note)
    p99, *others = chart.panels
    target = FIGURE_TARGETS[run.number].get("objective, p99 gap over objective")
    if target is not None and p99.line is not None:
        p99 = replace(p99, bounds={"objective": target[0] * p99.line})
    return replace(chart, panels=(p99, *others))


def _overcommit(run: Run, found: Found) -> Chart:
    columns = {
        "goodput over on-demand": "goodput over on-demand's",
        "recomputed over on-demand": "recomputed tokens over on-demand's",
        "extents at the end": "extents of a sequence",
        "kept free": "share of the pool kept free",
    }
    chart = by_setting(run, found, columns, ours=("lookahead",))
    return replace(chart, panel_width=165)


def _prefix_tree(run: Run, found: Found) -> Chart:
    """A panel per shape, a line per operation, all in microseconds."""
    scale = {"us": 1.0, "ms": 1e3}
    shapes = dict.fromkeys(name.partition(", ")[0] for name in found)
    timed = {name: s for name, s in found.items() if s.unit in scale}
    operations = dict.fromkeys(name.partition(", ")[2] for name in timed)
    targets, panels = FIGURE_TARGETS.get(run.number, {}), []
    for shape in shapes:
        names = {name: f"{shape}, {name}" for name in operations}
        of_shape = {key: timed[name] for key, name in names.items() if name in timed}
        values = {key: [scale[s.unit] * v for v in s.values] for key, s in of_shape.items()}
        bounds = {
            key: scale[s.unit] * targets[s.name][0]
            for key, s in of_shape.items()
            if s.name in targets
        }
        panels.append(Panel(shape, "µs", values, bounds, is_log=True))
    lines = [Line(name, name, kind="ours") for name in operations]
    return Chart(run.what, lines, panels, panel_width=260)


def _hit_rate(run: Run, found: Found) -> Chart:
    """A panel per trace and pool, a line per order of eviction."""
    orders = dict.fromkeys(("lfu", "lru"), "other") | {OURS: "ours"}
    orders |= dict.fromkeys(("Belady's bound", "endless"), "limit")
    pools = dict.fromkeys(s.setting for s in found.values() if s.column == OURS)
    panels = []
    for pool in pools:
        names = {order: f"{pool}, {order}" for order in orders}
        # An endless pool is the same for every share of a trace: "conversation 10 %".
        names["endless"] = f"{pool.partition(' ')[0]}, endless"
        values = {key: found[name].values for key, name in names.items() if name in found}
        panels.append(Panel(f"{pool}: tokens found", "%", values))
    lines = [Line(order, order, kind=kind) for order, kind in orders.items()] if pools else []
    note = "Belady's bound ignores the tree. endless: a pool that evicts nothing."
    return Chart(run.what, lines, panels, note, panel_width=165)


def _programs(run: Run, found: Found) -> Chart:
    """Both prefill times on one scale."""
    columns = {
        "prefill without the cache": "prefill without the cache",
        "prefill with the cache": "prefill with it",
        "prefill time saved of the ideal": "time saved of the ideal",
    }
    chart = by_setting(run, found, columns, ours=_labels(found))
    off, on, saved = chart.panels
    end = max(off.shown(), default=1.0)
    return replace(chart, panels=(replace(off, end=end), replace(on, end=end), saved))


def _warm_ttft(run: Run, found: Found) -> Chart:
    """The bounds of ours are told of a rival's time, so they are drawn where it leads."""
    columns = {
        "alone": "32 tokens alone: first token",
        "warm": "behind 2,005 warm tokens",
        "crowd": "32 prompts at once: all answered",
    }
    chart, panels = by_setting(run, found, columns, ours=(OURS,)), []
    for column, panel in zip(columns, chart.panels, strict=True):
        target = FIGURE_TARGETS[run.number].get(f"{column}, {vllm_cpu.NAME} over {OURS}")
        rivals = [
            found[f"{line.key}, {column}"].median
            for line in chart.lines
            if line.key.startswith(vllm_cpu.NAME) and f"{line.key}, {column}" in found
        ]
        if target is None or not rivals:
            panels.append(panel)
        else:
            panels.append(replace(panel, bounds={OURS: min(rivals) / target[0]}))
    return replace(chart, panels=panels)


def _block_runs(run: Run, found: Found) -> Chart:
    columns = {
        "one run": "attention over one run",
        "runs of 6 over one run": "runs of 6 blocks over one run",
        "scattered over one run": "scattered blocks over one run",
    }
    return by_setting(run, found, columns)


def _block_length(run: Run, found: Found) -> Chart:
    columns = {
        "decode 1 at 8,000": "decode 1 at 8,000",
        "decode 32 at 1,000": "decode 32 at 1,000",
        "prefill 2,048": "prefill 2,048",
        "match of 8,000 tokens": "match of 8,000 tokens",
        "unfilled": "unfilled",
    }
    ours = (f"blocks of {BLOCK_LEN}",)
    return replace(by_setting(run, found, columns, ours=ours), panel_width=140)


def _labels(found: Found) -> set[str]:
    return {series.setting.rpartition(", ")[2] for series in found.values()}


_CHARTS: dict[str, Callable[[Run, Found], Chart]] = {
    "08": _python_step,
    "12": _queue_order,
    "13": _interference,
    "14": _overcommit,
    "15": _prefix_tree,
    "16": _hit_rate,
    "17": _programs,
    "18": _warm_ttft,
    "19": _block_runs,
    "20": _block_length,
}
PLOTTED = {"01", *_CHARTS}
