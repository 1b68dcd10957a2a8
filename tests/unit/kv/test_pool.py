"""BlockPool and SequenceTables as state machines: counts conserved, nothing shared by mistake."""

from __future__ import annotations

import itertools
from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.backends.layout import BLOCK_LEN, make_layout
from headrace.kv.extents import num_extents
from headrace.kv.pool import AHEAD_SHARE, BlockPool
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

    @rule(expected_len=st.sampled_from([0, 0, 30, 150, 900]))
    def start(self, expected_len: int) -> None:
        tables = SequenceTables(self.layout, self.pool)
        tables.expected_len = expected_len
        self.live.append(tables)
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
    def nothing_is_claimed_by_nobody(self) -> None:
        assert self.live or self.pool.num_claimed == 0

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


class PoolMachine(RuleBasedStateMachine):
    """Tables grow over a pool whose blocks are cached when they end, as a cache does it, against
    plain counts."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.pool.reclaim = self._evict
        self.tables: list[array[int]] = []
        self.cached: list[int] = []

    def _evict(self, num: int) -> None:
        idle = [b for b in self.cached if self.pool.count(b) == 1][:num]
        assert len(idle) == num
        self.pool.uncache(idle)
        self.cached = [b for b in self.cached if b not in idle]

    def _held(self) -> set[int]:
        return {b for table in self.tables for b in table}

    @rule()
    def begin(self) -> None:
        self.tables.append(array("i"))

    @precondition(lambda self: bool(self.tables))
    @rule(data=st.data(), num=st.integers(1, 12), more=st.integers(0, 40))
    def grow(self, data: st.DataObject, num: int, more: int) -> None:
        table = data.draw(st.sampled_from(self.tables))
        before, available = list(table), NUM_BLOCKS - len(self._held())
        assert self.pool.num_available == available
        fits = self.pool.make_room(num, 0 if table else num + more)
        assert fits == (num <= available)
        if not fits:
            assert self.pool.num_available == available
            return
        others = self._held()
        self.pool.extend(table, num, num + more)
        assert list(table[: len(before)]) == before
        fresh = table[len(before) :]
        assert len(fresh) == len(set(fresh)) == num
        assert others.union(self.cached).isdisjoint(fresh)

    @rule(num=st.integers(0, 5))
    def allocate(self, num: int) -> None:
        others = self._held()
        available = NUM_BLOCKS - len(self._held())
        fresh = self.pool.allocate(num)
        assert (fresh is None) == (num > available)
        if fresh is not None:
            assert len(set(fresh)) == num
            assert others.union(self.cached).isdisjoint(fresh)
            self.tables.append(fresh)

    @precondition(lambda self: bool(self.tables))
    @rule(data=st.data(), keeps=st.booleans())
    def end(self, data: st.DataObject, keeps: bool) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        if keeps:
            self.pool.cache(b for b in table if not self.pool.is_cached(b))
            self.cached += [b for b in table if b not in self.cached]
        self.pool.unclaim(table)
        self.pool.release(table)

    @precondition(lambda self: bool(self.cached))
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        blocks = self.cached[: data.draw(st.integers(1, len(self.cached)))]
        self.pool.share(blocks)
        self.tables.append(array("i", blocks))

    @invariant()
    def counts_are_references(self) -> None:
        self.pool.check()
        counts = [0] * NUM_BLOCKS
        for block in itertools.chain(self.cached, *self.tables):
            counts[block] += 1
        assert counts == [self.pool.count(b) for b in range(NUM_BLOCKS)]


PoolMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def test_who_grows_as_expected_stays_in_one_run() -> None:
    pool = BlockPool(64)
    layout = make_layout((0,), 1, 8)
    goals = [5, 9, 14, 20]
    live = [SequenceTables(layout, pool, expected_len=goal * BLOCK_LEN) for goal in goals]
    for num in range(1, max(goals) + 1):
        for goal, tables in zip(goals, live, strict=True):
            assert tables.grow(min(num, goal) * BLOCK_LEN)
    assert [num_extents(tables.tables[0]) for tables in live] == [1, 1, 1, 1]


def test_idle_blocks_make_room_for_who_begins_but_not_for_who_goes_on() -> None:
    pool = BlockPool(80)
    evicted = []

    def evict(num: int) -> None:
        evicted.append(num)
        pool.uncache(cached[:num])
        del cached[:num]

    pool.reclaim = evict
    table = pool.allocate(79)
    assert table is not None
    pool.cache(table)
    cached = list(table)
    pool.release(table)
    assert (pool.num_free, pool.num_idle) == (1, 79)
    assert pool.make_room(1)
    assert not evicted
    # No more than a share of the pool.
    assert pool.make_room(1, 50)
    assert evicted == [80 // AHEAD_SHARE - 1]
    assert pool.make_room(1, 50)
    assert evicted == [80 // AHEAD_SHARE - 1]


class _Shelf:
    """A cache of runs that go as a whole, the first to have been put there first."""

    def __init__(self, pool: BlockPool, runs: list[range], *, kept: int = 0) -> None:
        """`kept`: the last so many may not go for their place."""
        self.pool, self.runs, self.kept = pool, list(runs), kept
        pool.cache(b for run in runs for b in run)
        pool.release(b for run in runs for b in run)
        pool.reclaim, pool.reclaim_at = self.reclaim, self.reclaim_at

    def reclaim(self, num: int) -> None:
        while num > 0:
            num -= len(self.runs[0])
            self.pool.uncache(self.runs.pop(0))

    def reclaim_at(self, block: int) -> bool:
        for run in self.runs[: len(self.runs) - self.kept]:
            if block in run:
                self.runs.remove(run)
                self.pool.uncache(run)
                return True
        return False


@pytest.mark.parametrize("kept", [0, 1])
def test_who_grows_takes_the_idle_block_behind(kept: int) -> None:
    """And another one, if the cache does mind."""
    pool = BlockPool(40)
    layout = make_layout((0,), 1, 8)
    tables = SequenceTables(layout, pool, expected_len=BLOCK_LEN)
    assert tables.grow(BLOCK_LEN)
    assert pool.allocate(39) is not None
    _Shelf(pool, [range(20, 30), range(1, 9)], kept=kept)
    tables.expected_len = 6 * BLOCK_LEN
    for num in range(2, 7):
        assert tables.grow(num * BLOCK_LEN)
        pool.check()
    start = 20 if kept else 1
    assert tables.tables[0].tolist() == [0, *range(start, start + 5)]
    assert (pool.num_idle, pool.num_free) == ((8, 5) if kept else (10, 3))
    tables.release()
    assert pool.num_claimed == 0


def test_a_forks_tail_begins_a_run_of_its_own() -> None:
    pool = BlockPool(64)
    tables = SequenceTables(make_layout((0,), 1, 8), pool, expected_len=10 * BLOCK_LEN)
    assert tables.grow(2 * BLOCK_LEN + 5)
    twin = tables.fork(2 * BLOCK_LEN + 5)
    assert twin is not None
    for each in (tables, twin):
        assert each.grow(10 * BLOCK_LEN)
    assert [num_extents(each.tables[0]) for each in (tables, twin)] == [1, 2]
    assert twin.tables[0][:2] == tables.tables[0][:2]
    assert twin.pending_copies == [(tables.tables[0][2], twin.tables[0][2])]


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
