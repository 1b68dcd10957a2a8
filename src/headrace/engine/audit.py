"""Who holds which block, counted from scratch: what `Engine.check` asserts."""

from __future__ import annotations

from collections.abc import Collection

from headrace.backends.layout import BLOCK_LEN
from headrace.engine.request import SequenceState
from headrace.kv.pool import BlockPool
from headrace.kv.radix.base import PrefixCache


def check_blocks(
    pool: BlockPool, live: Collection[SequenceState], cache: PrefixCache | None
) -> None:
    """Blocks are held by exactly the tables of live sequences and the cache, or AssertionError."""
    pool.check()
    counts: dict[int, int] = {}
    for block in () if cache is None else cache.references():
        if block in counts or not pool.is_cached(block):
            raise AssertionError(f"block {block} is in the cache twice, or not marked as cached")
        counts[block] = 1
    for seq in live:
        for block in seq.tables.references():
            counts[block] = counts.get(block, 0) + 1
    for block in range(pool.num_blocks):
        if pool.count(block) != counts.get(block, 0):
            raise AssertionError(
                f"block {block} has {pool.count(block)} references, "
                f"{counts.get(block, 0)} of them known"
            )
    for seq in live:
        held = 0 if seq.hold is None else seq.hold.num_blocks
        if not held * BLOCK_LEN <= seq.computed:
            raise AssertionError(f"{held} blocks are held for {seq.computed} computed positions")
    if not live and pool.num_available != pool.num_blocks:
        raise AssertionError("blocks are held while the engine is idle")
