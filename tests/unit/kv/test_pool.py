"""BlockPool and SequenceTables as state machines: counts conserved, nothing shared by mistake."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.backends.layout import BLOCK_LEN, make_layout
from headrace.kv.pool import BlockPool
from headrace.kv.tables import (
    SequenceTables,
    blocks_for,
    blocks_to_hold,
    first_visible_block,
    longest_that_fits,
)

NUM_BLOCKS = 24


class TablesMachine(RuleBasedStateMachine):
    """Sequences grow, advance, trim, fork and end over one small pool of two layer groups."""

    def __init__(self) -> None:
        super().__init__()
        self.layout = make_layout((0, 20), 1, 8)
        self.pool = BlockPool(NUM_BLOCKS)
        self.live: list[SequenceTables] = []
        self.computed: list[int] = []

    @rule()
    def start(self) -> None:
        self.live.append(SequenceTables(self.layout, self.pool))
        self.computed.append(0)

    @precondition(lambda self: bool(self.live))
    @rule(data=st.data(), rows=st.integers(1, 40))
    def run_rows(self, data: st.DataObject, rows: int) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        tables, end = self.live[index], self.computed[index] + rows
        missing, free = tables.missing(end), self.pool.num_free
        if not tables.grow(end):
            assert missing > free
            assert self.pool.num_free == free
            return
        assert self.pool.num_free == free - missing
        copies = tables.take_copies()
        tables.copies_done(copies)
        self.computed[index] = end
        tables.trim(end)

    @precondition(lambda self: bool(self.live))
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        twin = self.live[index].fork(self.computed[index])
        if twin is None:
            assert self.pool.num_free < len(self.layout.groups)
            return
        self.live.append(twin)
        self.computed.append(self.computed[index])

    @precondition(lambda self: bool(self.live))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        self.live.pop(index).release()
        self.computed.pop(index)

    @invariant()
    def counts_are_references(self) -> None:
        self.pool.check()
        counts = [0] * NUM_BLOCKS
        for tables in self.live:
            for block in tables.references():
                counts[block] += 1
        assert counts == [self.pool.count(b) for b in range(NUM_BLOCKS)]

    @invariant()
    def tables_cover_what_is_visible(self) -> None:
        for tables, computed in zip(self.live, self.computed, strict=True):
            for group, table in zip(self.layout.groups, tables.tables, strict=True):
                assert len(table) == blocks_for(computed)
                first = first_visible_block(group.window, computed)
                assert all(b >= 0 for b in table[first:])

    @invariant()
    def tail_blocks_are_exclusive(self) -> None:
        for tables, computed in zip(self.live, self.computed, strict=True):
            if computed % BLOCK_LEN:
                for table in tables.tables:
                    sources = sum(
                        source == table[-1]
                        for other in self.live
                        for source, _ in other.pending_copies
                    )
                    assert self.pool.count(table[-1]) == 1 + sources


TablesMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTables = TablesMachine.TestCase


def test_allocate_is_all_or_nothing() -> None:
    pool = BlockPool(4)
    first = pool.allocate(3)
    assert first is not None
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    pool.release(first)
    pool.check()
    assert pool.num_free == 4


def test_releasing_a_free_block_is_refused() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="not held"):
        pool.release([0])
    with pytest.raises(ValueError, match="cannot be shared"):
        pool.share([1])


@pytest.mark.parametrize("windows", [(0,), (0, 0, 20), (0, 20, 20, 20, 20), (64, 64)])
@pytest.mark.parametrize("chunk", [1, 16, 50])
def test_longest_that_fits_is_the_largest(windows: tuple[int, ...], chunk: int) -> None:
    layout = make_layout(windows, 2, 8)
    for num_blocks in (1, 2, 7, 40, 113):
        longest = longest_that_fits(layout, num_blocks, chunk)
        if all(windows):
            assert longest in (0, num_blocks * BLOCK_LEN) or longest > 0
        assert longest == 0 or blocks_to_hold(layout, longest, chunk) <= num_blocks
        beyond = longest + BLOCK_LEN
        if beyond <= num_blocks * BLOCK_LEN:
            assert blocks_to_hold(layout, beyond, chunk) > num_blocks


@pytest.mark.parametrize("window", [0, 20, 33])
@pytest.mark.parametrize("chunk", [1, 7, 16, 40])
def test_blocks_to_hold_bounds_what_a_run_really_holds(window: int, chunk: int) -> None:
    layout = make_layout((0, window) if window else (0,), 1, 8)
    pool = BlockPool(200)
    tables = SequenceTables(layout, pool)
    most, length = 0, 200
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        assert tables.grow(end)
        most = max(most, pool.num_blocks - pool.num_free)
        tables.trim(end)
    assert most <= blocks_to_hold(layout, length, chunk)
