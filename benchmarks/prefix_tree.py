"""Operations of the prefix cache's tree, in both shapes that paths can have.

    python -m benchmarks.prefix_tree --rounds 5 --out rows.csv

A tree of 100,000 blocks, in paths of 500 (8,000 tokens) that share nothing:

  long    a path is one node, as a prompt leaves it that was computed at once
  short   a path is 500 nodes of one block, as a conversation leaves it that forks at every block

`match` finds a whole path and holds it; `look` does the same for the queue and holds nothing.
`insert` adds a path of 500 blocks at once, or one block behind a held path. `eviction` frees 1,000
blocks; beside it, how much longer that takes than in a tree of a tenth of the size, with the same
paths (a scan would take ten times as long). Medians of a round.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arguments import count
from benchmarks.rows import Figure, medians, write_figures
from headrace.backends.layout import BLOCK_LEN, make_layout
from headrace.kv.pool import BlockPool
from headrace.kv.radix.base import RootKey
from headrace.kv.radix.tree import RadixCache

NUM_BLOCKS = 100_000
PATH_BLOCKS = 500
NUM_EVICTED = 1_000
NUM_SAMPLES = 40
SHAPES = ("long", "short")
_KEY = RootKey("benchmark")


@dataclass
class Forest:
    """A tree of paths in one shape, and its pool."""

    shape: str
    num_blocks: int
    rng: random.Random
    path_blocks: int = PATH_BLOCKS

    def __post_init__(self) -> None:
        layout = make_layout((0,), 1, 8)
        self.pool = BlockPool(self.num_blocks + 4 * self.path_blocks)
        self.cache = RadixCache(layout, self.pool)
        self.paths: list[array[int]] = []
        self.fill()

    def fill(self) -> None:
        """Add paths until the tree has its size."""
        while self.cache.num_blocks < self.num_blocks:
            path = self._make_path()
            self._add(path, self.shape)
            self.paths.append(path)

    def _make_path(self) -> array[int]:
        return array("i", array("H", self.rng.randbytes(2 * self.path_blocks * BLOCK_LEN)))

    def _add(self, path: array[int], shape: str) -> float:
        """Seconds of the insertions alone."""
        cache, pool = self.cache, self.pool
        table = pool.allocate(self.path_blocks)
        assert table is not None
        found = cache.match(_KEY, path, 0)
        step = BLOCK_LEN if shape == "short" else len(path)
        seconds, forks = 0.0, []
        for end in range(step, len(path) + 1, step):
            started = time.perf_counter()
            cache.insert(found.hold, path, [table], end)
            seconds += time.perf_counter() - started
            forks.append(cache.fork(found.hold))  # so that the next block is a node of its own
        pool.release(table)
        for hold in (*forks, found.hold):
            cache.release(hold)
        return seconds

    def match(self) -> float:
        """Seconds to find a whole path, any of them."""
        path = self.rng.choice(self.paths)
        started = time.perf_counter()
        found = self.cache.match(_KEY, path, len(path))
        seconds = time.perf_counter() - started
        assert found.num_tokens == len(path), "a path is not in the tree"
        self.pool.release(found.tables[0])
        self.cache.release(found.hold)
        return seconds

    def look(self) -> float:
        """The same without holding it."""
        path = self.rng.choice(self.paths)
        started = time.perf_counter()
        self.cache.look(_KEY, path, len(path))
        return time.perf_counter() - started

    def insert_path(self) -> float:
        """Seconds to insert a path at once; it leaves again."""
        path = self._make_path()
        seconds = self._add(path, "long")
        self.cache.abandon(_KEY, path, 0)
        self.cache.evict(self.path_blocks)
        return seconds

    def insert_block(self) -> float:
        """Seconds to insert one block behind a path, as a sequence that decodes does; it leaves
        again."""
        path = self.rng.choice(self.paths)
        found = self.cache.match(_KEY, path, len(path))
        more = path + path[:BLOCK_LEN]
        found.tables[0].extend(self.pool.allocate(1) or ())
        started = time.perf_counter()
        self.cache.insert(found.hold, more, found.tables, len(more))
        seconds = time.perf_counter() - started
        self.pool.release(found.tables[0])
        self.cache.release(found.hold)
        self.cache.abandon(_KEY, more, len(path))
        self.cache.evict(1)
        return seconds

    def evict(self) -> float:
        """Seconds to free some blocks; others come in their place."""
        started = time.perf_counter()
        num_freed = self.cache.evict(NUM_EVICTED)
        seconds = time.perf_counter() - started
        assert num_freed == NUM_EVICTED
        self.fill()
        return seconds


def _median(sample: Callable[[], float], num_samples: int) -> float:
    return statistics.median(sample() for _ in range(num_samples))


def measure(number: int, num_blocks: int, num_samples: int) -> list[Figure]:
    """One round: both shapes."""
    figures = []
    for shape in SHAPES:
        forest = Forest(shape, num_blocks, random.Random(f"{shape} {number}"))
        # The order matters: what is evicted was a path that others expect to find.
        for name, sample in (
            ("match of 8,000 tokens", forest.match),
            ("look at 8,000 tokens", forest.look),
            ("insert of 500 blocks", forest.insert_path),
            ("insert of one block", forest.insert_block),
        ):
            seconds = _median(sample, num_samples)
            figures.append(Figure(number, f"{shape}, {name}", 1e6 * seconds, "us"))
        seconds = _median(forest.evict, num_samples)
        small = Forest(shape, num_blocks // 10, random.Random(f"{shape} {number}"))
        ratio = seconds / _median(small.evict, num_samples)
        name = f"{shape}, eviction of {NUM_EVICTED:,} blocks"
        figures.append(Figure(number, name, 1e3 * seconds, "ms"))
        figures.append(Figure(number, f"{name}, over a tree of a tenth", ratio, "x"))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--blocks", type=int, default=NUM_BLOCKS, help="of the tree")
    parser.add_argument("--samples", type=count, default=NUM_SAMPLES)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    figures: list[Figure] = []
    for number in range(args.rounds):
        figures += measure(number, args.blocks, args.samples)
        if args.out is not None:
            write_figures(args.out, figures)
    print(json.dumps({name: round(value, 4) for name, (value, _, _) in medians(figures).items()}))


if __name__ == "__main__":
    main()
