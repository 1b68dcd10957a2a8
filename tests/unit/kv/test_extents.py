"""FreeExtents against a plain set of free blocks."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.kv.extents import FreeExtents, num_extents

NUM_BLOCKS = 40


def _holes(free: set[int]) -> dict[int, int]:
    """The twin: maximal runs of a set, {first: length}."""
    holes: dict[int, int] = {}
    for block in sorted(free):
        start = next((s for s, n in holes.items() if s + n == block), block)
        holes[start] = holes.get(start, 0) + 1
    return holes


class ExtentsMachine(RuleBasedStateMachine):
    """Tables grow, claim and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.extents = FreeExtents(NUM_BLOCKS)
        self.free = set(range(NUM_BLOCKS))
        self.tables: list[list[int]] = []

    def _took(self, first: int, num: int, most: int) -> list[int]:
        taken = list(range(first, first + num))
        assert 1 <= num <= most
        assert self.free.issuperset(taken)
        self.free.difference_update(taken)
        return taken

    @precondition(lambda self: bool(self.free))
    @rule(num=st.integers(1, 9), more=st.integers(0, 20))
    def begin(self, num: int, more: int) -> None:
        first, taken = self.extents.take_new(num, num + more)
        self.tables.append(self._took(first, taken, num))
        self.extents.claim(self.tables[-1][-1], num + more - taken)

    @precondition(lambda self: bool(self.free))
    @rule(num=st.integers(1, 9))
    def crumb(self, num: int) -> None:
        self.tables.append(self._took(*self.extents.take_crumb(num), num))

    @precondition(lambda self: bool(self.tables))
    @rule(data=st.data(), num=st.integers(0, 9), claim=st.integers(0, 9))
    def grow(self, data: st.DataObject, num: int, claim: int) -> None:
        table = self.tables[data.draw(st.integers(0, len(self.tables) - 1))]
        behind = 0
        while behind < num and table[-1] + 1 + behind in self.free:
            behind += 1
        assert self.extents.take_behind(table[-1], num) == behind
        if behind:
            table += self._took(table[-1] + 1, behind, num)
        self.extents.claim(table[-1], claim)

    @precondition(lambda self: bool(self.tables))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        if data.draw(st.booleans()):
            self.extents.add_all(table)
        else:
            for block in data.draw(st.permutations(table)):
                self.extents.add(block)
        self.free.update(table)

    @invariant()
    def holes_are_the_runs_of_what_is_free(self) -> None:
        self.extents.check()
        assert dict(self.extents.holes()) == _holes(self.free)
        assert self.extents.num_free == len(self.free)


ExtentsMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestExtents = ExtentsMachine.TestCase


def test_claimed_room_is_left_while_there_is_better() -> None:
    extents = FreeExtents(32)
    assert extents.take_new(2, 12) == (0, 2)
    extents.claim(1, 10)
    assert extents.take_new(2, 12) == (12, 2)
    extents.claim(13, 10)
    # Both grow to their ends in one run.
    assert extents.take_behind(1, 10) == 10
    assert extents.take_behind(13, 10) == 10


def test_a_claim_keeps_nobody_from_blocks() -> None:
    extents = FreeExtents(4)
    first, _ = extents.take_new(1, 4)
    extents.claim(first, 3)
    taken = {extents.take_new(1, 1)[0] for _ in range(3)}
    assert taken | {first} == {0, 1, 2, 3}
    assert extents.num_free == 0


def test_a_claim_ends_with_its_extent() -> None:
    extents = FreeExtents(16)
    extents.take_new(1, 16)
    extents.claim(0, 15)
    extents.add(0)
    assert extents.take_new(2, 16) == (0, 2)


def test_the_smallest_hole_that_fits_is_filled_first() -> None:
    extents = FreeExtents(32)
    while extents.num_free:
        extents.take_crumb(32)
    for start, length in ((2, 3), (10, 5), (20, 12)):
        for block in range(start, start + length):
            extents.add(block)
    assert extents.take_new(4, 4) == (10, 4)
    assert extents.take_new(1, 6) == (20, 1)
    assert extents.take_crumb(2) == (14, 1)


def test_nothing_comes_of_an_empty_pool() -> None:
    extents = FreeExtents(1)
    extents.take_new(1, 1)
    with pytest.raises(ValueError, match="no block is free"):
        extents.take_new(1, 1)
    with pytest.raises(ValueError, match="no block is free"):
        extents.take_crumb(1)


def test_extents_are_runs_of_ids() -> None:
    assert num_extents([]) == 0
    assert num_extents([-1, -1]) == 0
    assert num_extents([3, 4, 5]) == 1
    assert num_extents([3, 4, 9, 10, 2]) == 3
    assert num_extents([-1, 3, 4, -1, 5]) == 2
