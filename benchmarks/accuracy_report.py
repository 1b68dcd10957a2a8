"""The tables of the accuracy run: per model, ours beside the best setting of llama.cpp."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lineup import OURS
from benchmarks.runs import MODELS, Run
from benchmarks.targets import MAX_KL_RATIO, MIN_TOP1_POINTS

_HEAD = (
    "| model | system | tokens | mean KL | ratio | same best token | difference, lower bound"
    " | reached |"
)


@dataclass(frozen=True)
class Window:
    """What the comparison needs of one row of benchmarks.accuracy."""

    window: int
    system: str
    tokens: int
    mean_kl: float
    agreements: int


def read_windows(path: Path) -> list[Window]:
    with path.open(newline="") as file:
        return [
            Window(
                int(line["window"]),
                line["system"],
                int(line["tokens"]),
                float(line["mean_kl"]),
                int(line["agreements"]),
            )
            for line in csv.DictReader(file)
        ]


def mean_kl(windows: Sequence[Window], system: str) -> float:
    """Over all tokens of a system."""
    mine = [w for w in windows if w.system == system]
    return sum(w.mean_kl * w.tokens for w in mine) / max(1, sum(w.tokens for w in mine))


def top1_bound(windows: Sequence[Window], ours: str, other: str) -> float:
    """Lower 95 % bound of ours minus other, in points, paired by window (a normal mean)."""
    shares = {(w.window, w.system): 100 * w.agreements / w.tokens for w in windows}
    numbers = sorted({w.window for w in windows})
    differences = [shares[n, ours] - shares[n, other] for n in numbers]
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return mean
    return mean - 1.96 * statistics.stdev(differences) / math.sqrt(len(differences))


def accuracy_section(run: Run, folder: Path) -> str | None:
    """One table over all models that have rows, or None."""
    lines = []
    for model in MODELS:
        path = run.path(folder, model)
        if path.is_file():
            lines += model_lines(model, read_windows(path))
    if not lines:
        return None
    bar = "| --- " * (_HEAD.count("|") - 1) + "|"
    return "\n".join([_HEAD, bar, *lines])


def model_lines(model: str, windows: Sequence[Window]) -> list[str]:
    """Ours first; ratio and bound are against the other system of that line."""
    lines = []
    for system in dict.fromkeys(w.system for w in windows):
        mine = [w for w in windows if w.system == system]
        tokens = sum(w.tokens for w in mine)
        share = 100 * sum(w.agreements for w in mine) / tokens
        cells = ["-", "-", "-"]
        if not system.startswith(OURS):
            ratio = mean_kl(windows, OURS) / mean_kl(windows, system)
            bound = top1_bound(windows, OURS, system)
            reached = ratio <= MAX_KL_RATIO and bound >= MIN_TOP1_POINTS
            cells = [f"{ratio:.2f}x", f"{bound:+.2f} points", "yes" if reached else "no"]
        left = [model, system, str(tokens), f"{mean_kl(windows, system):.6f}", cells[0]]
        lines.append("| " + " | ".join([*left, f"{share:.2f} %", *cells[1:]]) + " |")
    return lines
