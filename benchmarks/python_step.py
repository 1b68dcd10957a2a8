"""Time of a step outside the native core: what the engine's thread does between two native steps.

    python -m benchmarks.python_step MODEL.gguf --rounds 5 --out rows.csv

The worker's own loop runs the engine over tiny prompts (greedy, no logprobs): scheduling, building
the plan, binding it, commit, detokenizing, frames encoded for the gateway (and dropped: the socket
is not measured). Per step, the time from one look for frames to the next minus the seconds that the
core reports. One JSON line out; milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import machine
from benchmarks.arguments import count
from benchmarks.rows import Figure, write_figures
from headrace.engine.engine import Engine
from headrace.engine.load import LoadedEngine, LoadOptions, load_engine
from headrace.engine.sampling import SamplingParams
from headrace.worker import frames
from headrace.worker.loop import EngineLoop

STEPS = {1: 400, 64: 100}
# Steps before and after those that count: prompts, first tokens, warm caches; ends.
MARGIN = 12
PROMPT_LEN = 4


class _Channel:
    """The gateway's part: submits all requests at once, reads nothing. Takes the time."""

    def __init__(self, engine: Engine, submits: Sequence[frames.ToWorker]) -> None:
        self._engine = engine
        self._submits = list(submits)
        self._last = time.perf_counter()
        self.outside_s: list[float] = []

    def receive(self, timeout_s: float) -> list[frames.ToWorker]:
        now = time.perf_counter()
        self.outside_s.append(now - self._last - self._engine.stats.last_native_s)
        received, self._submits = self._submits, []
        self._last = time.perf_counter()
        return received or ([frames.Drain()] if timeout_s > 0 else [])

    def send(self, batch: Sequence[frames.ToGateway]) -> None:
        frames.encode(batch)


def measure(loaded: LoadedEngine, sequences: int) -> list[float]:
    """Seconds outside the core of every step at `sequences` sequences."""
    steps = STEPS[sequences]
    params = SamplingParams(max_tokens=steps + 2 * MARGIN, temperature=0.0, ignore_eos=True)
    last = loaded.tokenizer.vocab_size - 3
    ids = [[3 + (31 * i + j) % last for j in range(PROMPT_LEN)] for i in range(sequences)]
    submits = [
        frames.Submit(request_id=f"r{i}", prompt_ids=prompt, params=params, deadline_s=None)
        for i, prompt in enumerate(ids)
    ]
    channel = _Channel(loaded.engine, submits)
    EngineLoop(loaded.engine, loaded.tokenizer, channel).run()
    return channel.outside_s[MARGIN : MARGIN + steps]


def figures_of(number: int, sequences: int, got: machine.Attempted[list[float]]) -> list[Figure]:
    """Median and 99th percentile in milliseconds."""
    outside_s = got.value
    name = f"{sequences} sequence{'' if sequences == 1 else 's'}"
    values = {
        "median": statistics.median(outside_s),
        "p99": statistics.quantiles(outside_s, n=100, method="inclusive")[98],
    }
    return [
        Figure(number, f"{name}, {what}", 1e3 * s, "ms", got.attempts, int(got.contended))
        for what, s in values.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=count, default=None)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--busy", action="store_true", help="measure although others are busy")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    loaded = load_engine(args.model, LoadOptions(threads=args.threads, kv_cache_bytes=256 << 20))
    max_attempts = 1 if args.busy else machine.MAX_ATTEMPTS
    figures: list[Figure] = []
    for number in range(args.rounds):
        for sequences in STEPS:
            got = machine.undisturbed(partial(measure, loaded, sequences), max_attempts)
            figures += figures_of(number, sequences, got)
        if args.out is not None:
            write_figures(args.out, figures)
    loaded.close()
    names = dict.fromkeys(f.figure for f in figures)
    medians = {
        name: round(statistics.median(f.value for f in figures if f.figure == name), 4)
        for name in names
    }
    print(json.dumps(medians))


if __name__ == "__main__":
    main()
