"""Markdown tables made from the raw rows of the numbered runs.

`python -m benchmarks report` puts each between its markers in docs/benchmarks.md and README.md:
<!-- begin 01 --> ... <!-- end 01 -->. A run without rows leaves what is there. The plots of
benchmarks.plots go into docs/plots.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy_report import accuracy_section
from benchmarks.figures import figure_targets, figures_tables, rounds, series_of
from benchmarks.lineup import OURS
from benchmarks.markdown import table
from benchmarks.plots import FOLDER as PLOTS
from benchmarks.plots import file_name, plot, plot_line
from benchmarks.results_view import Results
from benchmarks.rows import RESULTS, ROOF, Row, read_figures, read_run
from benchmarks.runs import RUNS, Run
from benchmarks.targets import TARGETS, Target

_GIGA_UNITS = {"bytes": "GB", "operations": "Gop"}
ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "docs" / "benchmarks.md", ROOT / "README.md")
_MARKED = re.compile(r"(<!-- begin (?P<name>[\w-]+) -->\n).*?(<!-- end (?P=name) -->)", re.DOTALL)


def speed_table(rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """Per point: ours, its share of the roof, and every rival's best setting with the ratio."""
    results = Results(rows, facts)
    rivals = results.families()
    ours = list(dict.fromkeys(r.system for r in rows if r.family == OURS))
    head = ["point"]
    for system in ours:
        head += [system, "of the roof"]
    for rival in rivals:
        head += [rival, "its best setting", "ratio"]
    lines = []
    for point in results.points():
        line = [point]
        for system in ours:
            line += [_number(results.rate(point, system)), _percent(results.share(point, system))]
        for rival in rivals:
            best = results.best(point, rival)
            setting = "-" if best is None else best.partition(" ")[2]
            ratio = results.ratio(point, ours[0], rival) if ours else None
            line += [_number(results.rate(point, rival)), setting, _times(ratio)]
        lines.append(line)
    return table(head, lines)


def targets_table(number: str, results: Results) -> str:
    """What the run had to reach, and whether it did."""
    lines = []
    for target in TARGETS.get(number, ()):
        value = target.read(results)
        lines.append([target.what, _bound(target), *_outcome(target, value)])
    return table(["target", "bound", "measured", "reached"], lines) if lines else ""


def _bound(target: Target) -> str:
    return f"{'<=' if target.at_most else '>='} {target.bound:.4g} {target.unit}"


def _outcome(target: Target, value: float | None) -> list[str]:
    if value is None:
        return ["not measured", "-"]
    return [f"{value:.4g} {target.unit}", "yes" if target.is_reached(value) else "no"]


def run_section(run: Run, folder: Path = RESULTS) -> str | None:
    """Everything a page says of a run, or None while there are no rows."""
    if run.kind == "accuracy":
        return accuracy_section(run, folder)
    path = run.path(folder)
    if not path.is_file():
        return None
    if run.kind == "figures":
        return _figures_section(run, folder)
    rows, facts = read_run(path)
    results = Results(rows, facts)
    if not results.points():
        return None
    body = start_table(results) if run.kind == "start" else speed_table(rows, facts)
    parts = [conditions(facts), plot_line(run, folder), body]
    parts += [targets_table(run.number, results), remarks(results)]
    return "\n\n".join(part for part in parts if part)


def start_table(results: Results) -> str:
    """Seconds to the first token of every system and setting."""
    systems = dict.fromkeys(r.system for r in results.rows if r.system != ROOF)
    lines = []
    for system in systems:
        rate = results.rate(results.points()[0], system)
        lines.append([system, "-" if rate is None else f"{1 / rate:.2f}"])
    return table(["system", "seconds"], lines)


def conditions(facts: Mapping[str, Any]) -> str:
    """One line: model, machine, date."""
    machine = facts["machine"]
    sets = ", ".join(machine["instruction_sets"])
    model = f"{facts['model']}; " if "model" in facts else ""
    return (
        f"{model}{machine['cpu']}, {machine['cores']} cores ({sets}), kernel table"
        f" {machine['kernel_table']}, {machine['date'][:10]}, commit {machine['commit']}."
    )


def remarks(results: Results) -> str:
    """Roof, rounds, contended rows, and what was left out with the reason."""
    num_rounds = len({r.round for r in results.rows})
    lines = [f"- {num_rounds} rounds; {results.contended()} of {len(results.rows)} rows contended."]
    for point in dict.fromkeys(r.point for r in results.rows if r.system == ROOF):
        rate = results.rate(point, ROOF)
        unit = next(r.unit for r in results.rows if r.point == point)
        if rate is not None:
            lines.append(f"- Roof, {point}: {rate / 1e9:.1f} {_GIGA_UNITS[unit]}/s.")
    lines += [f"- Left out: {what} ({why})." for what, why in results.facts["left_out"].items()]
    return "\n".join(lines)


def _figures_section(run: Run, folder: Path) -> str:
    path = run.path(folder)
    figures = read_figures(path)
    found = series_of(figures)
    facts = path.with_suffix(".json")
    head = conditions(json.loads(facts.read_text("utf-8"))) if facts.is_file() else ""
    parts = [head, plot_line(run, folder), figures_tables(found), figure_targets(run.number, found)]
    return "\n\n".join(part for part in [*parts, rounds(figures)] if part)


def readme_table(folder: Path = RESULTS) -> str | None:
    """SmolLM2 beside every rival's best setting, points as columns."""
    path = RUNS["01"].path(folder)
    if not path.is_file():
        return None
    rows, facts = read_run(path)
    results = Results(rows, facts)
    points = results.points()
    lines = [[OURS, *(_number(results.rate(p, OURS)) for p in points)]]
    lines.append(["of the roof", *(_percent(results.share(p)) for p in points)])
    for rival in results.families():
        lines.append([f"{rival}, best setting", *(_number(results.rate(p, rival)) for p in points)])
    return table(["tokens/s", *points], lines)


def sections(folder: Path = RESULTS) -> dict[str, str]:
    """Marker name -> text, of everything that has rows."""
    found = {number: run_section(run, folder) for number, run in RUNS.items()}
    found["readme"] = readme_table(folder)
    return {name: text for name, text in found.items() if text is not None}


def fill(page: str, texts: Mapping[str, str]) -> str:
    """A page with the text of every marker that has one."""

    def replace(match: re.Match[str]) -> str:
        text = texts.get(match["name"])
        return match[0] if text is None else f"{match[1]}{text}\n{match[3]}"

    return _MARKED.sub(replace, page)


def main(
    folder: Path = RESULTS, pages: Sequence[Path] = PAGES, plots: Path = ROOT / "docs" / PLOTS
) -> None:
    """Write the tables into the pages, and the plots into their folder."""
    texts = sections(folder)
    written = {page: fill(page.read_text("utf-8"), texts) for page in pages}
    for run in RUNS.values():
        chart = plot(run, folder)
        if chart is not None:
            written[plots / file_name(run)] = chart.svg()
    plots.mkdir(exist_ok=True)
    for path, text in written.items():
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"{path.name}: changed")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
