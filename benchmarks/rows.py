"""Raw rows of a numbered run: a CSV of what was measured, a JSON file of the facts beside it."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROOF = "roof"


@dataclass(frozen=True)
class Row:
    """`amount` of `unit` (tokens, bytes, operations, starts) in `seconds`.

    `attempts`: how often it was measured until nobody else was busy; `contended` when the last
    attempt was not free of others either. `system` is a family and its setting, or "roof".
    """

    round: int
    point: str
    system: str
    seconds: float
    amount: float
    unit: str = "tokens"
    attempts: int = 1
    contended: int = 0

    @property
    def rate(self) -> float:
        return self.amount / self.seconds

    @property
    def family(self) -> str:
        return self.system.partition(" ")[0]


def write_run(path: Path, rows: Sequence[Row], facts: dict[str, Any]) -> None:
    """All rows so far, so that an interrupted run keeps its rounds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    path.with_suffix(".json").write_text(text + "\n", "utf-8")


def read_run(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """What `write_run` wrote."""
    with path.open(newline="") as file:
        rows = [
            Row(
                int(line["round"]),
                line["point"],
                line["system"],
                float(line["seconds"]),
                float(line["amount"]),
                line["unit"],
                int(line["attempts"]),
                int(line["contended"]),
            )
            for line in csv.DictReader(file)
        ]
    facts: dict[str, Any] = json.loads(path.with_suffix(".json").read_text("utf-8"))
    return rows, facts


@dataclass(frozen=True)
class Figure:
    """One value of a run that measures something else than tokens of systems.

    `attempts` and `contended` as in Row; 0 attempts when nobody looked whether others were busy.
    """

    round: int
    figure: str
    value: float
    unit: str
    attempts: int = 0
    contended: int = 0


def write_figures(path: Path, figures: Sequence[Figure]) -> None:
    """Figures of the runs that are programs of their own (`--out` of http_streams, memory, ...)."""
    names = [field.name for field in fields(Figure)]
    if not any(figure.attempts for figure in figures):
        names = names[: names.index("attempts")]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(asdict(figure) for figure in figures)


def read_figures(path: Path) -> list[Figure]:
    """Figures, or those that rows of benchmarks.two_workers say."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    if lines and "situation" in lines[0]:
        return _situations(lines)
    return [
        Figure(
            int(line["round"]),
            line["figure"],
            float(line["value"]),
            line["unit"],
            int(line.get("attempts", 0)),
            int(line.get("contended", 0)),
        )
        for line in lines
    ]


def _situations(lines: Sequence[dict[str, str]]) -> list[Figure]:
    """Every situation's rate over that of one worker at the same point of the same round."""
    rates = {
        (line["point"], line["situation"], int(line["round"])): float(line["tokens"])
        / float(line["seconds"])
        for line in lines
    }
    return [
        Figure(number, f"{point}, {situation} over one", rate / rates[point, "one", number], "x")
        for (point, situation, number), rate in rates.items()
        if situation != "one" and (point, "one", number) in rates
    ]


def medians(figures: Iterable[Figure]) -> dict[str, tuple[float, str, int]]:
    """(median, unit, rounds) of every figure, in order."""
    grouped: dict[str, list[Figure]] = {}
    for figure in figures:
        grouped.setdefault(figure.figure, []).append(figure)
    return {
        name: (statistics.median(f.value for f in group), group[0].unit, len(group))
        for name, group in grouped.items()
    }
