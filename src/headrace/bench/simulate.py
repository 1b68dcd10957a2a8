"""Traces and made loads for the simulator: shapes become jobs, runs become rows of a table."""

from __future__ import annotations

import functools
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.bench.load.shapes import BLOCK_LEN, Shape, poisson
from headrace.bench.load.stats import percentile
from headrace.sim.backend import VOCAB_SIZE
from headrace.sim.run import Job, SimRun, Site, simulate


class PromptIds:
    """Token ids of shapes. Same seed and index, same ids; equal blocks, equal ids.

    `divisor`: prompts are so many times shorter, their blocks too, so that a Mooncake block of 512
    tokens becomes a KV block of 16 with 32.
    """

    def __init__(self, seed: int, divisor: int = 1) -> None:
        self._seed = seed
        self._block_len = BLOCK_LEN // divisor
        self._block = functools.lru_cache(maxsize=1 << 16)(self._make_block)

    def make(self, index: int, shape: Shape) -> array[int]:
        """The prompt of request number `index`; `shape` is scaled already."""
        if not shape.blocks:
            return _ids(f"request {self._seed} {index}", shape.prompt_len)
        ids = array("i")
        for block in shape.blocks:
            ids.extend(self._block(block))
        return ids[: shape.prompt_len]

    def _make_block(self, block: int) -> array[int]:
        return _ids(f"block {self._seed} {block}", self._block_len)


def _ids(key: str, length: int) -> array[int]:
    """No end-of-sequence id among them (it is 0)."""
    assert VOCAB_SIZE == 1 << 16
    return array("i", (i or 1 for i in array("H", random.Random(key).randbytes(2 * length))))


def scaled(shape: Shape, prompts: int, outputs: int = 1) -> Shape:
    """A shape with its prompt and its output so many times shorter; its blocks stay."""
    prompt_len = -(-shape.prompt_len // prompts)
    return replace(shape, prompt_len=prompt_len, output_len=-(-shape.output_len // outputs))


def jobs_of(
    shapes: Sequence[Shape], seed: int = 0, *, divisor: int = 1, max_tokens: int | None = None
) -> list[Job]:
    """A job for each shape. `max_tokens`: all that the engine knows of the answers' lengths."""
    prompts = PromptIds(seed, divisor)
    return [
        Job(shape.at_s, prompts.make(index, shape), shape.output_len, max_tokens)
        for index, shape in enumerate(shapes)
    ]


def saturation(site: Site, shapes: Sequence[Shape], seed: int = 0, *, divisor: int = 1) -> float:
    """Requests per second when all have come before the first step."""
    jobs = jobs_of([replace(shape, at_s=0.0) for shape in shapes], seed, divisor=divisor)
    return len(jobs) / simulate(site, jobs).duration_s


def overload(
    site: Site, shapes: Sequence[Shape], factor: float, seed: int = 0, *, divisor: int = 1
) -> list[Job]:
    """Jobs whose arrivals, independent of each other, are `factor` times what the site can do."""
    rate = factor * saturation(site, shapes, seed, divisor=divisor)
    return jobs_of(poisson(shapes, rate, seed), seed, divisor=divisor)


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a run, in seconds."""

    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    ttft_max: float
    tpot_mean: float
    gap_p50: float
    gap_p99: float
    gap_max: float
    tokens_per_s: float
    duration: float
    preemptions: int

    @classmethod
    def of(cls, run: SimRun) -> Summary:
        """Of the answers that succeeded; nan where there is none."""
        good = run.good
        ttft = sorted(o.ttft_s for o in good)
        tpot = [o.tpot_s for o in good if o.tpot_s is not None]
        gaps = sorted(gap for o in good for gap in o.gaps_s)
        return cls(
            ttft_mean=_mean(ttft),
            ttft_p50=percentile(ttft, 50),
            ttft_p99=percentile(ttft, 99),
            ttft_max=percentile(ttft, 100),
            tpot_mean=_mean(tpot),
            gap_p50=percentile(gaps, 50),
            gap_p99=percentile(gaps, 99),
            gap_max=percentile(gaps, 100),
            tokens_per_s=run.output_tokens / run.duration_s,
            duration=run.duration_s,
            preemptions=run.stats.num_preemptions,
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
