"""headrace under test: prefill and decode through the real engine, greedy sampling included.

`verify` runs backend plans instead: rows of one sequence at consecutive positions in one step, all
sampled, as a speculative step checks a draft. No prefix cache.
"""

from __future__ import annotations

import argparse
import time
from array import array
from pathlib import Path

from benchmarks.systems import protocol
from headrace import _native
from headrace.backends.base import SamplingSpec, StepPlan, WantedRow
from headrace.backends.layout import BLOCK_LEN, DEFAULT_KV_DTYPE, KV_DTYPES
from headrace.engine.load import LoadOptions, load_engine
from headrace.engine.sampling import SamplingParams


class Headrace:
    """One loaded engine; see protocol.Adapter."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._loaded = load_engine(args.model, _options(args))
        self._engine = self._loaded.engine
        self.version = f"{_native.isa()} {self._loaded.backend.numerics_id[:12]}"

    def prefill(self, prompt: list[int]) -> float:
        engine = self._engine
        engine.add("p", prompt, SamplingParams(max_tokens=1, temperature=0.0))
        started = time.perf_counter()
        while engine.has_work():
            engine.step()
        return time.perf_counter() - started

    def decode(self, prompts: list[list[int]], tokens: int) -> float:
        engine, count = self._engine, len(prompts)
        params = SamplingParams(max_tokens=tokens + 64, temperature=0.0, ignore_eos=True)
        for i, prompt in enumerate(prompts):
            engine.add(f"d{i}", prompt, params)
        while engine.stats.last_step_rows != count or engine.stats.num_running != count:
            engine.step()
        started = time.perf_counter()
        for _ in range(tokens):
            engine.step()
        seconds = time.perf_counter() - started
        for i in range(count):
            engine.abort(f"d{i}")
        return seconds

    def verify(self, tokens: list[int], rows: int, steps: int) -> float:
        """Seconds of `steps` steps that all compute the last `rows` rows of one sequence.

        No request runs, so the blocks of the pool are free to use; every step writes the same KV.
        """
        backend = self._loaded.backend
        backend.collect(backend.submit(self._plan(tokens, 0, len(tokens) - rows)))
        step = self._plan(tokens, len(tokens) - rows, len(tokens))
        backend.collect(backend.submit(step))
        started = time.perf_counter()
        for _ in range(steps):
            backend.collect(backend.submit(step))
        return time.perf_counter() - started

    def _plan(self, tokens: list[int], start: int, end: int) -> StepPlan:
        groups = len(self._loaded.backend.layout.groups)
        blocks = -(-end // BLOCK_LEN)
        spec = SamplingSpec(temperature=0.0)
        return StepPlan(
            tokens=array("i", tokens[start:end]),
            positions=array("i", range(start, end)),
            seq_starts=array("i", [0, end - start]),
            tables=[array("i", range(g, g + blocks * groups, groups)) for g in range(groups)],
            table_starts=[array("i", [0]) for _ in range(groups)],
            wanted=[WantedRow(row, spec) for row in range(end - start)],
        )


def _options(args: argparse.Namespace) -> LoadOptions:
    # As with the others: every prompt is computed, and `verify` may write to any block.
    return LoadOptions(
        threads=args.threads,
        max_step_tokens=args.step_tokens,
        kv_dtype=args.kv_dtype,
        prefix_cache=False,
    )


def main() -> None:
    """Serve measurement commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--step-tokens", type=int, default=512)
    parser.add_argument("--kv-dtype", choices=list(KV_DTYPES), default=DEFAULT_KV_DTYPE)
    args = parser.parse_args()
    protocol.run("headrace", lambda: Headrace(args))


if __name__ == "__main__":
    main()
