"""Who holds which block, counted from scratch: what `Engine.check` asserts."""

from __future__ import annotations

from collections.abc import Collection

from headrace.engine.request import SequenceState
from headrace.kv.pool import BlockPool


def check_blocks(pool: BlockPool, live: Collection[SequenceState]) -> None:
    """Blocks are held by exactly the tables of live sequences, or AssertionError."""
    pool.check()
    counts: dict[int, int] = {}
    for seq in live:
        for block in seq.tables.references():
            counts[block] = counts.get(block, 0) + 1
    for block in range(pool.num_blocks):
        if pool.count(block) != counts.get(block, 0):
            raise AssertionError(
                f"block {block} has {pool.count(block)} references, "
                f"{counts.get(block, 0)} of them known"
            )
    if not live and pool.num_free != pool.num_blocks:
        raise AssertionError("blocks are held while the engine is idle")
