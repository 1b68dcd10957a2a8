"""BlockPool: who owns each block of the arena. Counts references; never touches memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class BlockPool:
    """Fixed number of blocks, each free or held by one or more references.

    Invariants (law 3): a block is on the free list exactly when its count is 0;
    num_free + blocks with a count = num_blocks. `allocate` is all or nothing.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError("a pool needs at least one block")
        self.num_blocks = num_blocks
        self._counts = array("i", bytes(4 * num_blocks))
        # Stack: low ids come out first, so that a small load touches little of the arena.
        self._free = array("i", range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, num: int) -> array[int] | None:
        """`num` blocks with count 1, or None (and nothing changed) when fewer are free."""
        if num > len(self._free):
            return None
        if num == 0:
            return array("i")
        taken = self._free[-num:]
        del self._free[-num:]
        taken.reverse()
        for block in taken:
            self._counts[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block; all must be held."""
        for block in blocks:
            if self._counts[block] < 1:
                raise ValueError(f"block {block} is free and cannot be shared")
            self._counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block; the last one frees it."""
        for block in blocks:
            count = self._counts[block] - 1
            if count < 0:
                raise ValueError(f"block {block} is released but not held")
            self._counts[block] = count
            if count == 0:
                self._free.append(block)

    def count(self, block: int) -> int:
        """References of a block."""
        return self._counts[block]

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken (tests and idle checks)."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise AssertionError("a block is on the free list twice")
        for block, count in enumerate(self._counts):
            if count < 0 or (count == 0) != (block in free):
                raise AssertionError(f"block {block} has count {count}, free: {block in free}")
