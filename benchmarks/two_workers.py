"""Workers that share a machine: the total of two busy ones beside one alone, and a crowded one.

    python -m benchmarks.two_workers MODEL.gguf --out rows.csv

Every worker is a process with an engine of its own, and shares a compute lease with the others, as
the gateway's workers do. Rounds visit every point and every situation in turn:

  one         one worker alone
  two         two workers at once, both busy: the sum of their rates
  two-free    the same without a lease (they fight for the processors)
  crowded     one worker with twice as many threads as processors
  neighbour   one worker beside one process that computes without a pause

The table shows medians of per-round ratios to `one`. Fair: two, two-free and crowded 1.00;
neighbour 1 - 0.5 / processors, as the other process can have half of one.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace import _native

if TYPE_CHECKING:
    from headrace.engine.engine import Engine

CONTEXT_LEN = 128
# point: (sequences that decode, or 0 for prefill; tokens of a prompt)
POINTS = {"decode 1": (1, CONTEXT_LEN), "decode 8": (8, CONTEXT_LEN), "prefill 512": (0, 512)}
SITUATIONS = ("one", "two", "two-free", "crowded", "neighbour")


@dataclass(frozen=True)
class Row:
    """One measurement: tokens of all workers, and the time they took."""

    round: int
    point: str
    situation: str
    seconds: float
    tokens: float


# ---- in the worker ----


def work(args: argparse.Namespace) -> None:
    """Answers commands on stdin: {"do": "fill" | "run" | "clear", "point", "seconds"}."""
    from headrace.engine.load import LoadOptions, load_engine

    lease_fd = None if args.lease_fd < 0 else args.lease_fd
    loaded = load_engine(args.model, LoadOptions(threads=args.threads, lease_fd=lease_fd))
    engine, rng = loaded.engine, random.Random(0)
    _say({})
    for line in sys.stdin:
        command = json.loads(line)
        num_seqs, prompt_len = POINTS[command["point"]]
        if command["do"] == "fill":
            _fill(engine, rng, num_seqs, prompt_len)
            _say({})
        elif command["do"] == "run":
            _say(_run(engine, rng, command["point"], command["seconds"]))
        else:
            for i in range(num_seqs):
                engine.abort(f"d{i}")
            _say({})
    loaded.close()


def _run(engine: Engine, rng: random.Random, point: str, seconds: float) -> dict[str, float]:
    num_seqs, prompt_len = POINTS[point]
    tokens = 0
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        if num_seqs:
            engine.step()
            tokens += num_seqs
        else:
            tokens += _prefill(engine, rng, prompt_len)
    return {"seconds": time.monotonic() - started, "tokens": tokens}


def _say(answer: dict[str, float]) -> None:
    print(json.dumps(answer), flush=True)


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(1000, 30000) for _ in range(length)]


def _fill(engine: Engine, rng: random.Random, num_seqs: int, prompt_len: int) -> None:
    from headrace.engine.sampling import SamplingParams

    params = SamplingParams(max_tokens=4000, temperature=0.0, ignore_eos=True)
    for i in range(num_seqs):
        engine.add(f"d{i}", _prompt(rng, prompt_len), params)
    while num_seqs and (
        engine.stats.last_step_rows != num_seqs or engine.stats.num_running != num_seqs
    ):
        engine.step()


def _prefill(engine: Engine, rng: random.Random, prompt_len: int) -> int:
    from headrace.engine.sampling import SamplingParams

    engine.add("p", _prompt(rng, prompt_len), SamplingParams(max_tokens=1, temperature=0.0))
    while engine.has_work():
        engine.step()
    return prompt_len


# ---- in the driver ----


class Worker:
    """A worker process."""

    def __init__(self, model: Path, threads: int, lease_fd: int | None) -> None:
        command = [sys.executable, "-m", "benchmarks.two_workers", str(model), "--work"]
        command += [
            "--threads",
            str(threads),
            "--lease-fd",
            str(-1 if lease_fd is None else lease_fd),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=() if lease_fd is None else (lease_fd,),
        )
        self.answer()

    def say(self, text: str) -> None:
        """One line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, float]:
        """Its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a worker ended early")
        answer: dict[str, float] = json.loads(line)
        return answer

    def close(self) -> None:
        """It ends when its input does."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)


@contextlib.contextmanager
def busy_neighbour(is_wanted: bool) -> Iterator[None]:
    """A process that computes without a pause, if it is wanted."""
    if not is_wanted:
        yield
        return
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


def ask(workers: Sequence[Worker], **command: object) -> list[dict[str, float]]:
    """One command to all of `workers` at the same time, and their answers."""
    for worker in workers:
        worker.say(json.dumps(command))
    return [worker.answer() for worker in workers]


def measure(workers: Sequence[Worker], point: str, seconds: float) -> tuple[float, float]:
    """(seconds, tokens) of all of `workers` at the same time."""
    answers = ask(workers, do="run", point=point, seconds=seconds)
    return seconds, sum(seconds * answer["tokens"] / answer["seconds"] for answer in answers)


def start(args: argparse.Namespace, situations: Sequence[str]) -> dict[str, list[Worker]]:
    """The workers of each situation; some take part in several."""
    fd = _native.ComputeLease.make()
    shared = [Worker(args.model, args.threads, fd) for _ in range(2)]
    groups = {"one": shared[:1], "two": shared, "neighbour": shared[:1]}
    if "two-free" in situations:
        groups["two-free"] = [Worker(args.model, args.threads, None) for _ in range(2)]
    if "crowded" in situations:
        groups["crowded"] = [Worker(args.model, 2 * args.threads, fd)]
    os.close(fd)
    return groups


def run(args: argparse.Namespace) -> list[Row]:
    """All rounds. Every second one visits the situations backwards, as contexts grow in a round."""
    situations = [s for s in args.situations.split(",") if s]
    unknown = set(situations) - set(SITUATIONS)
    if unknown:
        raise SystemExit(f"unknown situation {min(unknown)}; there are {', '.join(SITUATIONS)}")
    groups = start(args, situations)
    everyone = list({id(w): w for group in groups.values() for w in group}.values())
    rows: list[Row] = []
    for number in range(args.rounds):
        for point in args.points.split(","):
            ask(everyone, do="fill", point=point)
            for situation in situations if number % 2 == 0 else situations[::-1]:
                with busy_neighbour(situation == "neighbour"):
                    seconds, tokens = measure(groups[situation], point, args.seconds)
                rows.append(Row(number, point, situation, seconds, tokens))
            ask(everyone, do="clear", point=point)
        if args.out is not None:
            write_rows(args.out, rows)
    for worker in everyone:
        worker.close()
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """All rows so far, so that an interrupted run keeps its rounds."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["round", "point", "situation", "seconds", "tokens"])
        writer.writerows(
            (r.round, r.point, r.situation, f"{r.seconds:.3f}", f"{r.tokens:.1f}") for r in rows
        )


def summarize(rows: Sequence[Row]) -> str:
    """A table: tokens per second of one worker, and the ratio of every other situation to it."""
    situations = list(dict.fromkeys(row.situation for row in rows))
    others = [s for s in situations if s != "one"]
    lines = ["| point | one, tokens/s | " + " | ".join(others) + " |"]
    lines.append("| --- " * (len(others) + 2) + "|")
    for point in dict.fromkeys(row.point for row in rows):
        rates: dict[str, dict[int, float]] = {s: {} for s in situations}
        for row in rows:
            if row.point == point:
                rates[row.situation][row.round] = row.tokens / row.seconds
        cells = [f"{statistics.median(rates['one'].values()):.1f}"]
        for situation in others:
            ratios = [rate / rates["one"][number] for number, rate in rates[situation].items()]
            cells.append(f"{statistics.median(ratios):.2f}x")
        lines.append(f"| {point} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=_native.default_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--points", default=",".join(POINTS))
    parser.add_argument("--situations", default=",".join(SITUATIONS))
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--lease-fd", type=int, default=-1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args)
    else:
        print(summarize(run(args)))


if __name__ == "__main__":
    main()
