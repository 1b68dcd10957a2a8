"""Tokens per second of headrace and of rivals on the same file, interleaved in one run.

    python -m benchmarks.speed MODEL.gguf --rival llama.cpp=/path/to/its/python --out rows.csv

Rounds visit every point and every system in turn, so that a slow minute of the machine hits all.
Ratios are medians of per-round ratios. Without a rival it measures headrace alone and says so.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

POINTS: dict[str, dict[str, object]] = {
    "prefill 512": {"do": "prefill", "tokens": 512},
    "prefill 2048": {"do": "prefill", "tokens": 2048},
    "decode 1": {"do": "decode", "sequences": 1, "context": 128, "tokens": 32},
    "decode 8": {"do": "decode", "sequences": 8, "context": 128, "tokens": 16},
    "decode 32": {"do": "decode", "sequences": 32, "context": 128, "tokens": 8},
}


@dataclass
class Row:
    """One measurement."""

    round: int
    point: str
    system: str
    seconds: float
    tokens: int

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class System:
    """A system under test in a process of its own."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment if name == "headrace" else None,
        )
        self.version = str(self._answer()["version"])

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended early")
        answer: dict[str, object] = json.loads(line)
        return answer

    def measure(self, command: dict[str, object]) -> tuple[float, int]:
        """(seconds, tokens) of one command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return float(str(answer["seconds"])), int(str(answer["tokens"]))

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)


def start_systems(args: argparse.Namespace) -> list[System]:
    """Ours first, then each rival at each of its settings."""
    threads = ["--threads", str(args.threads)]
    ours = [sys.executable, str(HERE / "systems" / "headrace_system.py"), args.model, *threads]
    systems = [System("headrace", ours)]
    for rival in args.rival:
        name, _, python = rival.partition("=")
        script = str(HERE / "systems" / "llama_cpp_system.py")
        for setting in ([], ["--flash"]):
            label = name + ("+fa" if setting else "")
            systems.append(System(label, [python, script, args.model, *threads, *setting]))
    return systems


def summarize(rows: Sequence[Row], systems: Sequence[str]) -> str:
    """A table: median rates, and headrace's median per-round ratio to the best rival setting."""
    lines = ["| point | " + " | ".join(systems) + " | ratio to best rival |"]
    lines.append("| --- " * (len(systems) + 2) + "|")
    for point in dict.fromkeys(r.point for r in rows):
        mine = [r for r in rows if r.point == point]
        medians = {s: statistics.median(r.rate for r in mine if r.system == s) for s in systems}
        cells = [f"{medians[s]:.1f}" for s in systems]
        lines.append(f"| {point} | " + " | ".join(cells) + f" | {_ratio(mine, medians)} |")
    return "\n".join(lines)


def _ratio(rows: Sequence[Row], medians: dict[str, float]) -> str:
    rivals = [s for s in medians if s != "headrace"]
    if not rivals:
        return "no rival measured"
    best = max(rivals, key=lambda s: medians[s])
    by_round: dict[int, dict[str, float]] = {}
    for row in rows:
        by_round.setdefault(row.round, {})[row.system] = row.rate
    ratio = statistics.median(r["headrace"] / r[best] for r in by_round.values())
    return f"{ratio:.2f}x ({best})"


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """All rows so far, so that an interrupted run keeps its rounds."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["round", "point", "system", "seconds", "tokens"])
        writer.writerows((r.round, r.point, r.system, r.seconds, r.tokens) for r in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rival", action="append", default=[], help="NAME=PYTHON")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--points", default=",".join(POINTS))
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    systems = start_systems(args)
    points = [p for p in args.points.split(",") if p]
    for system in systems:  # warms up: pages, threads, caches
        system.measure(POINTS[points[0]])
    rows: list[Row] = []
    for number in range(args.rounds):
        for point in points:
            for system in systems:
                seconds, tokens = system.measure(POINTS[point])
                rows.append(Row(number, point, system.name, seconds, tokens))
        if args.out is not None:
            write_rows(args.out, rows)
    for system in systems:
        system.close()
    print(summarize(rows, [s.name for s in systems]))


if __name__ == "__main__":
    main()
