"""BlockPool: who owns each block of the arena. Counts references; never touches memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable


class BlockPool:
    """Fixed number of blocks, each free or held by one or more references.

    Invariants (law 3): a block is on the free list exactly when its count is 0;
    num_free + blocks with a count = num_blocks. `allocate` is all or nothing.

    One reference of a block may be the prefix cache's. A block that has no other is idle: its KV
    is kept in case that it is wanted, and `reclaim` (set by the cache) frees it when it is not.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError("a pool needs at least one block")
        self.num_blocks = num_blocks
        self.num_idle = 0
        # Frees at least so many idle blocks, given that there are as many.
        self.reclaim: Callable[[int], object] | None = None
        # A list, whose small integers cost least to read and write.
        self._counts = [0] * num_blocks
        self._is_cached = bytearray(num_blocks)
        # Stack: low ids come out first, so that a small load touches little of the arena.
        self._free = array("i", range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give: free and idle ones."""
        return len(self._free) + self.num_idle

    def allocate(self, num: int) -> array[int] | None:
        """`num` blocks with count 1, or None (and nothing changed) when fewer are available."""
        if num > len(self._free):
            if self.reclaim is None or num > self.num_available:
                return None
            self.reclaim(num - len(self._free))
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
        counts, is_cached, num_woken = self._counts, self._is_cached, 0
        for block in blocks:
            count = counts[block]
            if count == 1:
                num_woken += is_cached[block]
            elif count < 1:
                raise ValueError(f"block {block} is free and cannot be shared")
            counts[block] = count + 1
        self.num_idle -= num_woken

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block; the last one frees it."""
        counts, is_cached, num_idled = self._counts, self._is_cached, 0
        for block in blocks:
            count = counts[block] - 1
            if count == 1:
                num_idled += is_cached[block]
            elif count <= 0:
                if count < 0 or is_cached[block]:
                    raise ValueError(f"block {block} is released but not held")
                self._free.append(block)
            counts[block] = count
        self.num_idle += num_idled

    def cache(self, blocks: Iterable[int]) -> None:
        """Add the prefix cache's reference to each block, all of which somebody holds."""
        counts, is_cached = self._counts, self._is_cached
        for block in blocks:
            if counts[block] < 1 or is_cached[block]:
                raise ValueError(f"block {block} is free or cached already")
            counts[block] += 1
            is_cached[block] = 1

    def uncache(self, blocks: Iterable[int]) -> None:
        """Drop the prefix cache's reference; what nobody else holds becomes free."""
        counts, is_cached, num_freed = self._counts, self._is_cached, 0
        for block in blocks:
            if not is_cached[block]:
                raise ValueError(f"block {block} is not cached")
            is_cached[block] = 0
            count = counts[block] = counts[block] - 1
            if count == 0:
                num_freed += 1
                self._free.append(block)
        self.num_idle -= num_freed

    def count(self, block: int) -> int:
        """References of a block."""
        return self._counts[block]

    def is_cached(self, block: int) -> bool:
        """Whether one of the references is the prefix cache's."""
        return bool(self._is_cached[block])

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken (tests and idle checks)."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise AssertionError("a block is on the free list twice")
        num_idle = 0
        for block, count in enumerate(self._counts):
            if count < 0 or (count == 0) != (block in free):
                raise AssertionError(f"block {block} has count {count}, free: {block in free}")
            if self._is_cached[block] and count == 0:
                raise AssertionError(f"block {block} is free, but the cache names it")
            num_idle += self._is_cached[block] and count == 1
        if num_idle != self.num_idle:
            raise AssertionError(f"{num_idle} blocks are idle, {self.num_idle} were counted")
