"""When requests arrive and how long they are, drawn from a seed; traces are read in traces.py."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.bench.load.lengths import Lengths

# Longer prompts and answers are none: whatever says so is wrong.
MAX_LEN = 10_000_000
# Tokens of a block of a Mooncake trace.
BLOCK_LEN = 512
# Spread of the lognormal lengths: the middle two thirds lie within a factor of e of the median.
SIGMA = 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    """One request to come. `at_s`: seconds after the start. `blocks`: identities of the blocks of
    BLOCK_LEN tokens that its prompt consists of; equal ones at equal places are equal text."""

    at_s: float
    prompt_len: int
    output_len: int
    blocks: tuple[int, ...] = ()


def made_shapes(
    count: int, prompt_len: int, output_len: int, lengths: Lengths, seed: int
) -> list[Shape]:
    """Requests with lengths of these means, all at time 0. Same seed, same requests."""
    rng = random.Random(f"lengths {seed}")
    return [
        Shape(0.0, _draw(rng, prompt_len, lengths), _draw(rng, output_len, lengths))
        for _ in range(count)
    ]


def _draw(rng: random.Random, mean: int, lengths: Lengths) -> int:
    if lengths is Lengths.FIXED:
        return mean
    if lengths is Lengths.UNIFORM:
        return rng.randint(1, 2 * mean - 1)
    drawn = rng.lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA)
    return min(max(1, round(drawn)), MAX_LEN)


def cut(shape: Shape, max_prompt: int | None, max_tokens: int | None) -> Shape:
    """The same request, its prompt and its answer no longer than that."""
    prompt_len = min(shape.prompt_len, max_prompt or shape.prompt_len)
    blocks = shape.blocks[: -(-prompt_len // BLOCK_LEN)]
    output_len = min(shape.output_len, max_tokens or shape.output_len)
    return Shape(shape.at_s, prompt_len, output_len, blocks)


def poisson(shapes: Sequence[Shape], rate: float, seed: int) -> list[Shape]:
    """The same requests, arriving independently of each other at `rate` per second."""
    rng = random.Random(f"arrivals {seed}")
    times = itertools.accumulate(rng.expovariate(rate) for _ in shapes)
    return [replace(shape, at_s=at_s) for shape, at_s in zip(shapes, times, strict=True)]


def spread(shapes: Sequence[Shape]) -> Iterator[Shape]:
    """Shapes in order of time; those of one instant spread evenly until the next.

    Some traces tell time in steps of seconds, which would arrive as bursts that never were. The
    last step is taken to be as long as the one before.
    """
    steps = [list(group) for _, group in itertools.groupby(shapes, lambda shape: shape.at_s)]
    width_s = 0.0
    for number, group in enumerate(steps):
        if number + 1 < len(steps):
            width_s = steps[number + 1][0].at_s - group[0].at_s
        for index, shape in enumerate(group):
            yield replace(shape, at_s=shape.at_s + width_s * index / len(group))
