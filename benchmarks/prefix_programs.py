"""Prefill that the prefix cache saves programs, and what it costs prompts that share nothing.

    python -m benchmarks.prefix_programs MODEL.gguf --rounds 3 --out rows.csv

Programs (benchmarks.workloads) run on engines of this process, with the cache and without it. Their
requests and answers are the same, which is checked. Ideally each distinct token, that is each place
in the tree of all prompts, is computed once, and not at all if decoding has computed it.

Prefill time is that of the native steps in which prompts are computed, less what their decodes take
in steps of their own. The ideal time is the share of the time without a cache that the distinct
tokens' rows have; a row costs twice as much in a context of 2,500 tokens as it does alone.

No sharing: batches of random prompts, each of which fills four fifths of the pool, so that all is
inserted and evicted in vain. Pairs of the same batch with the cache and without, in the order off,
on, on, off; tokens per second with the cache over those without, of each pair.

A program, and a pair, that others disturbed is run again (benchmarks.machine).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.arguments import count
from benchmarks.machine import MAX_ATTEMPTS, Attempted, undisturbed
from benchmarks.rows import Figure, medians, write_figures
from benchmarks.text import benchmark_text
from benchmarks.workloads import PROGRAMS, Pieces
from headrace import LLM, SamplingParams
from headrace.engine.base import Event
from headrace.program import Session
from headrace.program.base import Generated, Scored
from headrace.program.in_process import InProcessRuntime

KV_BYTES = 512 << 20
CONTEXT_SCALE = 2_500
UNSHARED_KV_BYTES = 96 << 20
UNSHARED_REQUESTS, UNSHARED_PROMPT, UNSHARED_TOKENS, UNSHARED_PAIRS = 12, 256, 32, 8
SETTINGS = {"off": False, "on": True}

Ids = tuple[int, ...]


class Recorder(InProcessRuntime):
    """A runtime that remembers what was asked and answered."""

    def __init__(self, llm: LLM) -> None:
        super().__init__(llm)
        self._asked: list[tuple[Ids, Future[Generated] | None]] = []

    def generate(self, ids: Sequence[int], params: SamplingParams) -> Future[Generated]:
        future = super().generate(ids, params)
        self._asked.append((tuple(ids), future))
        return future

    def score(self, prefix: Sequence[int], tails: Sequence[Sequence[int]]) -> list[Future[Scored]]:
        self._asked += [((*prefix, *tail), None) for tail in tails]
        return super().score(prefix, tails)

    def requests(self) -> list[tuple[Ids, Ids]]:
        """(prompt, answer) of every request; all must be over. Sorted, as threads sent them."""
        return sorted(
            (ids, () if future is None else future.result().token_ids)
            for ids, future in self._asked
        )


@dataclass
class Steps:
    """Native seconds of the steps of an engine: of each with prompts and its decode rows, and of
    those without prompts by their number of rows."""

    prefills: list[tuple[float, int]] = field(default_factory=list)
    decodes: dict[int, list[float]] = field(default_factory=dict)

    def watch(self, llm: LLM) -> None:
        """Log each step of the engine from now on."""
        engine, step = llm.engine, llm.engine.step

        def watched() -> list[Event]:
            events = step()
            stats = engine.stats
            num_decodes = stats.last_step_rows - sum(stats.last_chunks)
            if stats.last_chunks:
                self.prefills.append((stats.last_native_s, num_decodes))
            else:
                self.decodes.setdefault(num_decodes, []).append(stats.last_native_s)
            return events

        engine.step = watched  # type: ignore[method-assign]  # it is this object's from now on


def prefill_seconds(steps: Steps, decodes: dict[int, float]) -> float:
    """Seconds that prompts took. `decodes`: seconds of a step by its number of rows."""

    def decode_s(num_rows: int) -> float:
        nearest = min(decodes, key=lambda known: abs(known - num_rows), default=0)
        return decodes[nearest] if num_rows and decodes else 0.0

    return sum(max(0.0, seconds - decode_s(num_rows)) for seconds, num_rows in steps.prefills)


@dataclass(frozen=True)
class Work:
    """Rows of prompts, and what they cost: all of them, and those of distinct tokens that decoding
    does not compute. A cost is in rows without a context."""

    num_rows: int
    num_distinct: int
    cost: float
    distinct_cost: float

    @classmethod
    def of(cls, requests: Iterable[tuple[Ids, Ids]]) -> Work:
        nodes: dict[tuple[int, int], int] = {}  # (number of the node above, token) -> number
        asked: dict[int, int] = {}  # number -> position
        decoded: set[int] = set()
        num_rows, cost = 0, 0.0
        for prompt, answer in requests:
            node = -1
            # The last token of an answer is not computed.
            for position, token in enumerate((*prompt, *answer[:-1])):
                node = nodes.setdefault((node, token), len(nodes))
                if position < len(prompt):
                    asked[node] = position
                else:
                    decoded.add(node)
            num_rows += len(prompt)
            cost += sum(map(_cost, range(len(prompt))))
        distinct = [position for node, position in asked.items() if node not in decoded]
        return cls(num_rows, len(distinct), cost, sum(map(_cost, distinct)))


def _cost(position: int) -> float:
    return 1.0 + position / CONTEXT_SCALE


@dataclass
class Run:
    """A program on an engine of its own."""

    steps: Steps
    requests: list[tuple[Ids, Ids]]
    num_computed: int
    wall_s: float


def run_program(model: Path, name: str, body: str, *, cache: bool) -> Run:
    """One program from its beginning to its end, the engine warm and the cache cold."""
    with LLM(model, kv_cache_bytes=KV_BYTES, prefix_cache=cache) as llm:
        llm.generate([[5] * 64], SamplingParams(max_tokens=2, temperature=0.0))
        recorder, steps = Recorder(llm), Steps()
        steps.watch(llm)
        with Session(recorder, seed=1) as session:
            started = time.perf_counter()
            PROGRAMS[name](session, Pieces(body))
            wall_s = time.perf_counter() - started
            counts = session.counts
        return Run(steps, recorder.requests(), counts.prompt - counts.cached, wall_s)


def measure_program(
    model: Path, number: int, name: str, body: str, attempts: int
) -> Iterator[Figure]:
    """One program with the cache and without, in turns."""
    order = list(SETTINGS) if number % 2 else list(SETTINGS)[::-1]
    got = {
        key: undisturbed(partial(run_program, model, name, body, cache=SETTINGS[key]), attempts)
        for key in order
    }
    yield from program_figures(number, name, got["off"], got["on"])


def program_figures(
    number: int, name: str, without: Attempted[Run], with_it: Attempted[Run]
) -> Iterator[Figure]:
    """Rows of the work, of times and of what was saved. Ends the program if the answers differ."""
    off, on = without.value, with_it.value
    if off.requests != on.requests:
        raise SystemExit(f"{name}: requests or answers differ with the cache on and off")
    work = Work.of(off.requests)
    samples: dict[int, list[float]] = {}
    for run in (off, on):
        for num_rows, seconds in run.steps.decodes.items():
            samples.setdefault(num_rows, []).extend(seconds)
    decodes = {num_rows: statistics.median(seconds) for num_rows, seconds in samples.items()}
    off_s, on_s = (prefill_seconds(run.steps, decodes) for run in (off, on))
    ideal_s = off_s * work.distinct_cost / work.cost
    disturbed = [(got.attempts, int(got.contended)) for got in (without, with_it)]
    worst = max(attempts for attempts, _ in disturbed), max(flag for _, flag in disturbed)
    saved = (off.num_computed - on.num_computed) / (work.num_rows - work.num_distinct)
    yield Figure(number, f"{name}, prompt tokens", off.num_computed, "tokens")
    yield Figure(number, f"{name}, computed with the cache", on.num_computed, "tokens")
    yield Figure(number, f"{name}, distinct", work.num_distinct, "tokens")
    yield Figure(number, f"{name}, tokens saved of the ideal", 100 * saved, "%")
    yield Figure(number, f"{name}, prefill without the cache", off_s, "s", *disturbed[0])
    yield Figure(number, f"{name}, prefill with the cache", on_s, "s", *disturbed[1])
    time_saved = (off_s - on_s) / (off_s - ideal_s)
    yield Figure(number, f"{name}, prefill time saved of the ideal", 100 * time_saved, "%", *worst)
    ratio = on.wall_s / off.wall_s
    yield Figure(number, f"{name}, whole time with over without", ratio, "x", *worst)


def measure_unshared(model: Path, number: int, attempts: int) -> Iterator[Figure]:
    """Random prompts with the cache and without, in turns: a row of each pair, and quartiles."""
    rng = random.Random(f"round {number}")
    llms = {
        key: LLM(model, kv_cache_bytes=UNSHARED_KV_BYTES, prefix_cache=cache)
        for key, cache in SETTINGS.items()
    }
    name, ratios = "no sharing, speed with over without", []
    try:
        for _ in range(2):  # one batch leaves a fifth of the pool untouched
            run_pair(llms, rng, list(llms))
        for pair in range(UNSHARED_PAIRS):
            order = list(llms)[:: -1 if pair % 2 else 1]
            got = undisturbed(partial(run_pair, llms, rng, order), attempts)
            ratios.append(got.value)
            yield Figure(number, name, got.value, "x", got.attempts, int(got.contended))
    finally:
        for llm in llms.values():
            llm.close()
    quartiles = statistics.quantiles(ratios, n=4, method="inclusive")
    for which, value in (("lower", quartiles[0]), ("upper", quartiles[2])):
        yield Figure(number, f"no sharing, {which} quartile of the pairs", value, "x")


def run_pair(llms: Mapping[str, LLM], rng: random.Random, order: Sequence[str]) -> float:
    """The same new prompts once with the cache and once without; the first one's speed over the
    other's."""
    params = SamplingParams(max_tokens=UNSHARED_TOKENS, temperature=0.0, ignore_eos=True)
    last = llms["off"].tokenizer.vocab_size - 3
    prompts = [
        [rng.randrange(3, last) for _ in range(UNSHARED_PROMPT)] for _ in range(UNSHARED_REQUESTS)
    ]
    seconds = {}
    for key in order:
        started = time.perf_counter()
        llms[key].generate(list(prompts), params)
        seconds[key] = time.perf_counter() - started
    return seconds["off"] / seconds["on"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--busy", action="store_true", help="measure although others are busy")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    body = benchmark_text().body
    attempts = 1 if args.busy else MAX_ATTEMPTS
    figures: list[Figure] = []
    for number in range(args.rounds):
        for name in PROGRAMS:
            figures += measure_program(args.model, number, name, body, attempts)
        figures += measure_unshared(args.model, number, attempts)
        if args.out is not None:
            write_figures(args.out, figures)
    print(json.dumps({name: round(value, 4) for name, (value, _, _) in medians(figures).items()}))


if __name__ == "__main__":
    main()
