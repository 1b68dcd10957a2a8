"""headrace under test: prefill and decode through the real engine, greedy sampling included.

Reads one JSON command per line on stdin, answers one JSON line on stdout:
  {"do": "prefill", "tokens": 512}
  {"do": "decode", "sequences": 8, "context": 128, "tokens": 32}
answer {"seconds": s, "tokens": n}.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

from headrace.engine.engine import Engine
from headrace.engine.load import LoadOptions, load_engine
from headrace.engine.sampling import SamplingParams


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(1000, 30000) for _ in range(length)]


def prefill(engine: Engine, rng: random.Random, tokens: int) -> tuple[float, int]:
    """Seconds from an empty engine to the first token of a prompt of `tokens` tokens."""
    engine.add("p", _prompt(rng, tokens), SamplingParams(max_tokens=1, temperature=0.0))
    started = time.perf_counter()
    while engine.has_work():
        engine.step()
    return time.perf_counter() - started, tokens


def decode(
    engine: Engine, rng: random.Random, sequences: int, context: int, tokens: int
) -> tuple[float, int]:
    """Seconds for `tokens` steps of `sequences` sequences that all decode."""
    params = SamplingParams(max_tokens=tokens + 64, temperature=0.0, ignore_eos=True)
    for i in range(sequences):
        engine.add(f"d{i}", _prompt(rng, context), params)
    while engine.stats.last_step_rows != sequences or engine.stats.num_running != sequences:
        engine.step()
    started = time.perf_counter()
    for _ in range(tokens):
        engine.step()
    seconds = time.perf_counter() - started
    for i in range(sequences):
        engine.abort(f"d{i}")
    return seconds, sequences * tokens


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--step-tokens", type=int, default=512)
    args = parser.parse_args()
    options = LoadOptions(threads=args.threads, max_step_tokens=args.step_tokens)
    loaded = load_engine(args.model, options)
    print(json.dumps({"ready": "headrace", "version": loaded.backend.numerics_id[:12]}), flush=True)
    rng = random.Random(0)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "prefill":
            seconds, count = prefill(loaded.engine, rng, command["tokens"])
        else:
            seconds, count = decode(
                loaded.engine,
                rng,
                command["sequences"],
                command["context"],
                command["tokens"],
            )
        print(json.dumps({"seconds": seconds, "tokens": count}), flush=True)
    loaded.close()


if __name__ == "__main__":
    main()
