"""SequenceTables: the block tables of one sequence, one per layer group."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.backends.layout import BLOCK_LEN, KVLayout
from headrace.kv.pool import BlockPool


def blocks_for(length: int) -> int:
    """Blocks of one group that hold positions 0..length-1."""
    return (length + BLOCK_LEN - 1) // BLOCK_LEN


def first_visible_block(window: int, computed: int) -> int:
    """First block that a row at position `computed` or later can see (window 0: all)."""
    if window == 0:
        return 0
    return max(0, computed - window + 1) // BLOCK_LEN


def blocks_to_hold(layout: KVLayout, length: int, chunk: int) -> int:
    """Most blocks over all groups that a sequence of `length` positions holds at once when it is
    computed in chunks of at most `chunk` rows (blocks behind a window are freed between steps)."""
    full = blocks_for(length)
    return sum(
        min(full, blocks_for(g.window + chunk) + 1) if g.window else full for g in layout.groups
    )


def longest_that_fits(layout: KVLayout, num_blocks: int, chunk: int) -> int:
    """Longest sequence (positions, a multiple of the block length) that a pool holds alone."""
    low, high = 0, num_blocks
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_to_hold(layout, middle * BLOCK_LEN, chunk) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low * BLOCK_LEN


@dataclass(slots=True)
class SequenceTables:
    """Owns one reference to every block id >= 0 in its tables and to the sources of pending copies.

    All tables have the same length (blocks of the positions covered so far); entries behind a
    window are -1. `pending_copies` are (source, destination) pairs that the next step must perform
    before it writes; `take_copies` hands them over and `copies_done` drops their references.

    `expected_len`: positions that it will come to hold, as far as anybody knows. A hint to where
    its blocks should lie.
    """

    layout: KVLayout
    pool: BlockPool
    tables: list[array[int]] = field(default_factory=list)
    pending_copies: list[tuple[int, int]] = field(default_factory=list)
    expected_len: int = 0
    _trimmed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.tables:
            self.tables = [array("i") for _ in self.layout.groups]
            self._trimmed = [0 for _ in self.layout.groups]

    @property
    def num_blocks_len(self) -> int:
        """Entries per table."""
        return len(self.tables[0])

    def missing(self, length: int) -> int:
        """New blocks needed to cover positions 0..length-1."""
        return max(0, blocks_for(length) - self.num_blocks_len) * len(self.tables)

    def grow(self, length: int) -> bool:
        """Cover positions 0..length-1; False (and nothing changed) when the pool has too few."""
        more = blocks_for(length) - self.num_blocks_len
        if more <= 0:
            return True
        pool = self.pool
        wants = self._wants(more)
        ahead = 0
        if not pool.can_continue(self.tables[0], sum(wants)):
            ahead = sum(wants)
            for table in self.tables:
                pool.unclaim(table)  # it will not get what is behind its last block
        if not pool.make_room(more * len(self.tables), ahead):
            return False
        for table, want in zip(self.tables, wants, strict=True):
            pool.extend(table, more, want)
        return True

    def _wants(self, more: int) -> list[int]:
        """Blocks that each table will take from here on, `more` of them now. What slides behind a
        window is given back, so such a table never needs more at once than the window."""
        want = max(more, blocks_for(self.expected_len) - len(self.tables[0]))
        return [
            max(more, min(want, blocks_for(g.window) + 1)) if g.window else want
            for g in self.layout.groups
        ]

    def start_from(self, tables: Sequence[array[int]], tail: Sequence[int]) -> bool:
        """Begin with blocks that others wrote, whose references are taken over (tables are empty).

        `tail`: one block per group whose copy continues the tables, if any. False when the pool has
        too few blocks for the copies: then the tail's references are dropped, the tables stay.
        """
        for index, table in enumerate(tables):
            self.tables[index] = table
            self._trimmed[index] = next((i for i, b in enumerate(table) if b >= 0), len(table))
        if not tail:
            return True
        wants = self._wants(1)
        if not self.pool.make_room(len(tail), sum(wants)):
            self.pool.release(tail)
            return False
        self._continue_from(tail, wants)
        return True

    def _continue_from(self, tail: Sequence[int], wants: Sequence[int]) -> None:
        """Append a block to every table, to be a copy of one of `tail`, whose references are taken
        over. There is room for it."""
        for table, source, want in zip(self.tables, tail, wants, strict=True):
            self.pool.extend(table, 1, want)
            self.pending_copies.append((source, table[-1]))

    def trim(self, computed: int) -> None:
        """Free blocks that no row at position >= computed can see."""
        for index, group in enumerate(self.layout.groups):
            if group.window == 0:
                continue
            table, start = self.tables[index], self._trimmed[index]
            end = min(first_visible_block(group.window, computed), len(table))
            for entry in range(start, end):
                self.pool.release((table[entry],))
                table[entry] = -1
            self._trimmed[index] = max(start, end)

    def fork(self, computed: int) -> SequenceTables | None:
        """A second owner of the same positions; a partly filled tail block becomes a pending copy.

        None (and nothing changed) when the pool has too few blocks for the tails.
        """
        has_tail = computed % BLOCK_LEN != 0
        twin = SequenceTables(
            self.layout,
            self.pool,
            # Blocks past the computed positions hold nothing; the twin grows its own.
            [table[: computed // BLOCK_LEN] for table in self.tables],
            [],
            self.expected_len,
            list(self._trimmed),
        )
        wants = twin._wants(1)
        if has_tail and not self.pool.make_room(len(wants), sum(wants)):
            return None
        for table in twin.tables:
            self.pool.share(b for b in table if b >= 0)
        if has_tail:
            tail = [table[computed // BLOCK_LEN] for table in self.tables]
            self.pool.share(tail)
            twin._continue_from(tail, wants)
        return twin

    def references(self) -> Iterator[int]:
        """Every reference this owner holds, one by one."""
        for table in self.tables:
            yield from (b for b in table if b >= 0)
        yield from (source for source, _ in self.pending_copies)

    def num_exclusive(self) -> int:
        """Blocks that `release` would make available: nobody has them but this owner, or this owner
        and the prefix cache."""
        pool = self.pool
        return sum(
            pool.count(b) == 1 + pool.is_cached(b) for table in self.tables for b in table if b >= 0
        )

    def take_copies(self) -> list[tuple[int, int]]:
        """The copies the coming step must do; call `copies_done` with them after it."""
        copies, self.pending_copies = self.pending_copies, []
        return copies

    def restore_copies(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copies that were taken and not made: the next step must do them."""
        self.pending_copies = [*copies, *self.pending_copies]

    def copies_done(self, copies: Sequence[tuple[int, int]]) -> None:
        """Drop the references to the sources of performed copies."""
        self.pool.release(source for source, _ in copies)

    def release(self) -> None:
        """Give everything back. The tables are empty afterwards and may grow again."""
        self.pool.release(source for source, _ in self.pending_copies)
        self.pending_copies = []
        for index, table in enumerate(self.tables):
            self.pool.unclaim(table)
            self.pool.release(b for b in table if b >= 0)
            self.tables[index] = array("i")
            self._trimmed[index] = 0
