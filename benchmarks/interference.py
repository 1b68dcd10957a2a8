"""What a long prompt does to streams beside it: 16 decode, and a prompt of 4,000 tokens comes.

    python -m benchmarks.interference MODEL.gguf --rounds 3 --out rows.csv

A cycle lasts 20 s: 16 streams that began with 128 tokens decode all the while, and the prompt comes
at its start. The objective is twice the median step of the 16 streams alone, over a cycle without a
prompt. Settings, one cycle each in every round:

  objective   --itl-target-ms at the objective
  derived     the server's default
  unchunked   no objective, and steps that hold the whole prompt

A gap is the time between two tokens of a stream. Throughput counts tokens of streams and prompt.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.arguments import count
from benchmarks.rows import Figure, medians, write_figures
from headrace.bench.load.stats import percentile
from headrace.engine.base import ChoiceDelta, Scheduling
from headrace.engine.engine import Engine
from headrace.engine.load import LoadOptions, load_engine
from headrace.engine.sampling import SamplingParams

STREAMS = 16
STREAM_PROMPT = 128
PROMPT_LEN = 4000
CYCLE_S = 20.0
CHUNK = 512
KV_BYTES = 1 << 30
MULTIPLE = 2.0
WARM_STEPS = 20


@dataclass
class Cycle:
    """`gaps_s`: one per step in which the streams drew tokens. `ttft_s`: of the prompt."""

    gaps_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    seconds: float = 0.0
    ttft_s: float = 0.0

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


def run_cycle(model: Path, threads: int | None, scheduling: Scheduling, args: Args) -> Cycle:
    """A cycle in an engine of its own."""
    options = LoadOptions(
        kv_cache_bytes=KV_BYTES,
        max_num_seqs=STREAMS + 1,
        max_step_tokens=args.step_tokens,
        threads=threads,
        scheduling=scheduling,
    )
    loaded = load_engine(model, options)
    try:
        return _drive(loaded.engine, loaded.tokenizer.vocab_size, args)
    finally:
        loaded.close()


@dataclass(frozen=True)
class Args:
    """What a cycle is."""

    step_tokens: int = CHUNK
    with_prompt: bool = True
    seconds: float = CYCLE_S


def _drive(engine: Engine, vocab_size: int, args: Args) -> Cycle:
    rng = random.Random(args.step_tokens)

    def prompt(length: int) -> list[int]:
        return [rng.randrange(3, vocab_size - 3) for _ in range(length)]

    endless = SamplingParams(max_tokens=4000, temperature=0.0, ignore_eos=True)
    for number in range(STREAMS):
        engine.add(f"stream{number}", prompt(STREAM_PROMPT), endless)
    started: set[str] = set()
    while len(started) < STREAMS:
        started |= {event.request_id for event in engine.step()}
    for _ in range(WARM_STEPS):
        engine.step()
    cycle, begun = Cycle(), time.perf_counter()
    if args.with_prompt:
        one = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        engine.add("prompt", prompt(PROMPT_LEN), one)
    last = begun
    while last - begun < args.seconds:
        events = engine.step()
        now = time.perf_counter()
        for event in events:
            if isinstance(event, ChoiceDelta):
                cycle.num_tokens += 1
                if event.request_id == "prompt":
                    cycle.num_tokens += PROMPT_LEN
                    cycle.ttft_s = now - begun
        cycle.gaps_s.append(now - last)
        last = now
    cycle.seconds = last - begun
    return cycle


def measure(model: Path, threads: int | None, number: int, seconds: float) -> list[Figure]:
    """One round: what the objective is, and every setting."""
    alone = run_cycle(model, threads, Scheduling(), Args(with_prompt=False, seconds=seconds))
    objective_s = MULTIPLE * statistics.median(alone.gaps_s)
    settings = {
        "objective": (Scheduling(itl_target_s=objective_s), Args(seconds=seconds)),
        "derived": (Scheduling(itl_target_s=None), Args(seconds=seconds)),
        "unchunked": (Scheduling(), Args(PROMPT_LEN + STREAMS, seconds=seconds)),
    }
    figures = [Figure(number, "objective", 1e3 * objective_s, "ms")]
    rates: dict[str, float] = {}
    for name, (scheduling, args) in settings.items():
        cycle = run_cycle(model, threads, scheduling, args)
        gaps = sorted(cycle.gaps_s)
        p99_s = percentile(gaps, 99)
        rates[name] = cycle.rate
        figures += [
            Figure(number, f"{name}, p99 gap", 1e3 * p99_s, "ms"),
            Figure(number, f"{name}, p99 gap over objective", p99_s / objective_s, "x"),
            Figure(number, f"{name}, worst gap", 1e3 * gaps[-1], "ms"),
            Figure(number, f"{name}, first token of the prompt", cycle.ttft_s, "s"),
            Figure(number, f"{name}, throughput", cycle.rate, "tokens/s"),
        ]
    figures += [
        Figure(number, f"{name}, throughput over unchunked", rates[name] / rates["unchunked"], "x")
        for name in ("objective", "derived")
    ]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=count, default=None)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--seconds", type=float, default=CYCLE_S)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    figures: list[Figure] = []
    for number in range(args.rounds):
        figures += measure(args.model, args.threads, number, args.seconds)
        if args.out is not None:
            write_figures(args.out, figures)
    print(json.dumps({name: round(value, 4) for name, (value, _, _) in medians(figures).items()}))


if __name__ == "__main__":
    main()
