"""Token hit rates of the prefix cache beside LRU, LFU and Belady's bound, on traces with sharing.

    HEADRACE_DATA=... python -m benchmarks.hit_rate --out rows.csv

Mooncake's traces, so many times shorter that one of their block ids is one KV block. Requests come
one after the other, as prompts alone: which ids an answer has, the traces do not say. The pool has
10 % or 30 % of the blocks that a trace has. `lru` and `lfu` evict from the same tree, leaf by leaf.

`endless` is a pool in which nothing is ever evicted. Belady's bound knows the future and ignores
the tree: any block may stay without those in front of it, or leave at once, and the last, partly
filled block of a prompt takes no room. Without the traces, conversations are made from a seed.
Nothing here depends on the machine or on chance, so there is one round.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.arguments import count
from benchmarks.rows import Figure, medians, write_figures
from headrace.backends.layout import BLOCK_LEN, make_layout
from headrace.bench.load import shapes as load_shapes
from headrace.bench.load.shapes import Shape
from headrace.bench.load.traces import read_trace
from headrace.bench.simulate import PromptIds, scaled
from headrace.kv.pool import BlockPool
from headrace.kv.radix.base import RootKey
from headrace.kv.radix.node import Node
from headrace.kv.radix.order import EvictionOrder
from headrace.kv.radix.tree import RadixCache
from headrace.kv.tables import SequenceTables

TRACES = {name: f"traces/mooncake_fast25_{name}.jsonl.gz" for name in ("conversation", "synthetic")}
DIVISOR = load_shapes.BLOCK_LEN // BLOCK_LEN
SHARES = (0.1, 0.3)
_KEY = RootKey("benchmark")


class PlainOrder(EvictionOrder):
    """One leaf after the other, whatever lies beside whom."""

    def is_cheap(self, nodes: Iterable[Node]) -> bool:
        return False


class LruOrder(PlainOrder):
    """The leaf that was used the longest ago."""

    def key_of(self, node: Node) -> float:
        return 0.0


class LfuOrder(PlainOrder):
    """The leaf that was used least often; of those, the one used the longest ago."""

    def key_of(self, node: Node) -> float:
        return node.hits


ORDERS: dict[str, Callable[[], EvictionOrder]] = {
    "headrace": EvictionOrder,
    "lru": LruOrder,
    "lfu": LfuOrder,
}


def traces(data: Path | None) -> Iterator[tuple[str, list[Shape]]]:
    """Name and requests of each trace that is there, or of what is made in their place."""
    found = {name: data / path for name, path in TRACES.items()} if data is not None else {}
    for name, path in found.items():
        if path.is_file():
            yield name, [scaled(shape, DIVISOR) for shape in read_trace(path)]
    if not any(path.is_file() for path in found.values()):
        yield "made", made_conversations(4000, 0)


def made_conversations(num_requests: int, seed: int) -> list[Shape]:
    """Conversations that begin with one of a few system prompts and a text, and take turns. Each
    goes on with a probability of its own, so that those that went on before are likelier to."""
    rng = random.Random(f"conversations {seed}")
    ids = itertools.count()
    systems = [tuple(itertools.islice(ids, rng.randint(1, 20))) for _ in range(24)]
    popularity = [1 / (1 + rank) for rank in range(len(systems))]
    waiting: list[tuple[float, int, tuple[int, ...], float]] = []
    shapes = []
    for number in range(num_requests):
        if waiting and waiting[0][0] <= number:
            past, goes_on = heapq.heappop(waiting)[2:]
        else:
            text = itertools.islice(ids, round(rng.lognormvariate(2.0, 1.0)))
            past = (*rng.choices(systems, popularity)[0], *text)
            goes_on = rng.betavariate(0.8, 1.0)
        prompt = (*past, *itertools.islice(ids, rng.randint(1, 3)))
        shapes.append(Shape(float(number), BLOCK_LEN * len(prompt), 1, prompt))
        if rng.random() < goes_on:
            back_at = number + rng.lognormvariate(5.0, 1.0)
            heapq.heappush(waiting, (back_at, number, prompt, goes_on))
    return shapes


def hit_rate(
    prompts: Sequence[array[int]], times_s: Sequence[float], num_blocks: int, order: EvictionOrder
) -> float:
    """Share of all tokens that were found, in percent."""
    layout, pool = make_layout((0,), 1, 8), BlockPool(num_blocks)
    cache = RadixCache(layout, pool, order=order)
    num_found = 0
    for prompt, at_s in zip(prompts, times_s, strict=True):
        cache.advance(at_s)
        # The last token is always computed, since its row gives the next one.
        found = cache.match(_KEY, prompt, len(prompt) - 1)
        tables = SequenceTables(layout, pool)
        has_tail = tables.start_from(found.tables, found.tail)
        num_found += found.num_tokens if has_tail else BLOCK_LEN * found.num_blocks
        tables.copies_done(tables.take_copies())
        if not tables.grow(len(prompt)):
            raise SystemExit(f"A prompt of {len(prompt)} tokens does not fit {num_blocks} blocks.")
        cache.insert(found.hold, prompt, tables.tables, len(prompt), with_tail=True)
        tables.release()
        cache.release(found.hold)
    pool.check()
    return 100 * num_found / sum(map(len, prompts))


def belady_bound(shapes: Sequence[Shape], num_blocks: int) -> float:
    """The same share, which no order of eviction can exceed."""
    whole = [shape.blocks[: shape.prompt_len // BLOCK_LEN] for shape in shapes]
    num_found = BLOCK_LEN * belady_hits([b for blocks in whole for b in blocks], num_blocks)
    seen: set[int] = set()
    for shape in shapes:
        rest = shape.prompt_len % BLOCK_LEN
        num_found += rest if rest and shape.blocks[-1] in seen else 0
        seen.update(shape.blocks)
    return 100 * num_found / sum(shape.prompt_len for shape in shapes)


def belady_hits(blocks: Sequence[int], capacity: int) -> int:
    """The most hits that a cache can have which may also leave out what it is asked for: it gives
    up, each time, what is asked for again the latest (Belady 1966)."""
    never = len(blocks)
    next_use, later = [never] * len(blocks), dict[int, int]()
    for at in range(len(blocks) - 1, -1, -1):
        next_use[at] = later.get(blocks[at], never)
        later[blocks[at]] = at
    cached: dict[int, int] = {}  # block -> its next use
    latest: list[tuple[int, int]] = []
    num_hits = 0
    for at, block in enumerate(blocks):
        num_hits += block in cached
        cached[block] = next_use[at]
        heapq.heappush(latest, (-next_use[at], block))
        while len(cached) > capacity:
            use, last = heapq.heappop(latest)
            if cached.get(last) == -use:  # otherwise it was used since
                del cached[last]
    return num_hits


def measure(trace: str, shapes: Sequence[Shape]) -> Iterator[Figure]:
    """All figures of a trace."""
    ids = PromptIds(0, DIVISOR)
    prompts = [ids.make(number, shape) for number, shape in enumerate(shapes)]
    times_s = [shape.at_s for shape in shapes]
    total = len({block for shape in shapes for block in shape.blocks})
    longest = max(len(shape.blocks) for shape in shapes)
    endless = hit_rate(prompts, times_s, 2 * (total + longest), EvictionOrder())
    yield Figure(0, f"{trace}, endless", endless, "%")
    for share in SHARES:
        num_blocks, name = round(share * total), f"{trace} {100 * share:.0f} %"
        rates = {
            order: hit_rate(prompts, times_s, num_blocks, make()) for order, make in ORDERS.items()
        }
        bound = belady_bound(shapes, num_blocks)
        for order, rate in rates.items():
            yield Figure(0, f"{name}, {order}", rate, "%")
        over = rates["headrace"] - max(rates["lru"], rates["lfu"])
        yield Figure(0, f"{name}, over the better of lru and lfu", over, "points")
        yield Figure(0, f"{name}, Belady's bound", bound, "%")
        yield Figure(0, f"{name}, share of Belady's bound", 100 * rates["headrace"] / bound, "%")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=count, default=1, help="has no meaning here")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    data = os.environ.get("HEADRACE_DATA")
    figures: list[Figure] = []
    for trace, shapes in traces(None if data is None else Path(data)):
        figures += measure(trace, shapes)
        if args.out is not None:
            write_figures(args.out, figures)
    print(json.dumps({name: round(value, 3) for name, (value, _, _) in medians(figures).items()}))


if __name__ == "__main__":
    main()
