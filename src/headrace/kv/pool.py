"""BlockPool: who owns each block of the arena. Counts references; never touches memory.

Tables grow behind their last block where they can (kv.extents), so that a sequence stays in few
runs of ids.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from headrace.kv.extents import FreeExtents

# Of a pool's blocks, one in so many at most is kept free ahead of need.
AHEAD_SHARE = 4


class BlockPool:
    """Fixed number of blocks, each free or held by one or more references.

    Invariants (law 3): a block lies in a hole of the free extents exactly when its count is 0;
    num_free + blocks with a count = num_blocks. `allocate` is all or nothing, and so is `make_room`
    with the `extend` that it allows.

    One reference of a block may be the prefix cache's. A block that has no other is idle: its KV
    is kept in case that it is wanted, and `reclaim` (set by the cache) frees it when it is not.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError("a pool needs at least one block")
        self.num_blocks = num_blocks
        self.num_idle = 0
        self.num_shared = 0  # blocks that are held twice or more, the cache not counted
        # Frees at least so many idle blocks, given that there are as many.
        self.reclaim: Callable[[int], object] | None = None
        # Frees an idle block, and others with it, if they are worth no more than what `reclaim`
        # would free; whether it did.
        self.reclaim_at: Callable[[int], bool] | None = None
        # A list, whose small integers cost least to read and write.
        self._counts = [0] * num_blocks
        self._is_cached = bytearray(num_blocks)
        self._free = FreeExtents(num_blocks)
        # Most blocks that are kept free for extents to come, at the expense of idle ones.
        self._most_ahead = num_blocks // AHEAD_SHARE

    @property
    def num_free(self) -> int:
        return self._free.num_free

    @property
    def num_claimed(self) -> int:
        """Blocks that tables are expected to take behind their last ones."""
        return self._free.num_claimed

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give: free and idle ones."""
        return self._free.num_free + self.num_idle

    def make_room(self, num: int, want: int = 0) -> bool:
        """Whether `num` blocks are free, now that idle ones were freed if it took that.

        `want`: blocks that somebody who begins an extent will come to hold. Then idle ones make
        room for them and for what others claim, before these are scattered over whatever is free.
        """
        free = self._free
        goal = max(num, self._goal(want)) if want else num
        if goal > free.num_free:
            if num > self.num_available:
                return False
            if self.reclaim is not None and self.num_idle:
                self.reclaim(min(goal - free.num_free, self.num_idle))
        return num <= free.num_free

    def _goal(self, want: int) -> int:
        """Blocks to be free when somebody begins an extent."""
        return min(want + self._free.num_claimed, self._most_ahead)

    def can_continue(self, table: array[int], want: int) -> bool:
        """Whether the block behind a table's last is free; or was idle, and could be freed, when
        there is no good place for `want` blocks elsewhere."""
        if not table or table[-1] < 0:
            return False
        behind = table[-1] + 1
        if self._free.is_hole(behind):
            return True
        if self.reclaim_at is None or behind == self.num_blocks or not self._is_cached[behind]:
            return False
        if self._counts[behind] > 1:
            return False
        is_short = self._goal(want) > self._free.num_free or not self._free.has_room(want)
        return is_short and self.reclaim_at(behind)

    def extend(self, table: array[int], num: int, want: int) -> None:
        """Append `num` blocks with count 1, which must be free; behind the last one if those are.

        `want`: blocks that the table is expected to take from here on, `num` among them.
        """
        free, left = self._free, num
        while left and self.can_continue(table, want - num + left):
            last = table[-1]
            taken = free.take_behind(last, left)
            self._append(table, last + 1, taken)
            left -= taken
        if left:
            self.unclaim(table)
        while left:
            first, taken = free.take_new(left, want - num + left)
            self._append(table, first, taken)
            left -= taken
        if want > num:
            free.claim(table[-1], want - num)

    def _append(self, table: array[int], first: int, num: int) -> None:
        counts = self._counts
        for block in range(first, first + num):
            counts[block] = 1
            table.append(block)

    def unclaim(self, table: array[int]) -> None:
        """The table will take no blocks any more."""
        if table and table[-1] >= 0:
            self._free.claim(table[-1], 0)

    def allocate(self, num: int) -> array[int] | None:
        """`num` blocks with count 1 for somebody who will not grow, out of small holes; None (and
        nothing changed) when fewer are available."""
        if not self.make_room(num):
            return None
        taken = array("i")
        while len(taken) < num:
            self._append(taken, *self._free.take_crumb(num - len(taken)))
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block; all must be held."""
        counts, is_cached, num_woken, num_shared = self._counts, self._is_cached, 0, 0
        for block in blocks:
            count = counts[block]
            if count == 1:
                if is_cached[block]:
                    num_woken += 1
                else:
                    num_shared += 1
            elif count == 2:
                num_shared += is_cached[block]
            elif count < 1:
                raise ValueError(f"block {block} is free and cannot be shared")
            counts[block] = count + 1
        self.num_idle -= num_woken
        self.num_shared += num_shared

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block; the last one frees it."""
        counts, is_cached, num_idled, num_unshared = self._counts, self._is_cached, 0, 0
        freed: list[int] = []
        for block in blocks:
            count = counts[block] - 1
            if count == 1:
                if is_cached[block]:
                    num_idled += 1
                else:
                    num_unshared += 1
            elif count == 2:
                num_unshared += is_cached[block]
            elif count <= 0:
                if count < 0 or is_cached[block]:
                    raise ValueError(f"block {block} is released but not held")
                freed.append(block)
            counts[block] = count
        self.num_idle += num_idled
        self.num_shared -= num_unshared
        if freed:
            self._free.add_all(freed)

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
        counts, is_cached = self._counts, self._is_cached
        freed: list[int] = []
        for block in blocks:
            if not is_cached[block]:
                raise ValueError(f"block {block} is not cached")
            is_cached[block] = 0
            count = counts[block] = counts[block] - 1
            if count == 0:
                freed.append(block)
        self.num_idle -= len(freed)
        if freed:
            freed.sort()  # paths lose their blocks from their ends, and runs are added as such
            self._free.add_all(freed)

    def count(self, block: int) -> int:
        """References of a block."""
        return self._counts[block]

    def is_cached(self, block: int) -> bool:
        """Whether one of the references is the prefix cache's."""
        return bool(self._is_cached[block])

    def num_leading_shared(self, table: Iterable[int]) -> int:
        """Blocks of a table (none behind a window) before the first that is nobody else's."""
        num = 0
        for block in table:
            if block >= 0:
                if self._counts[block] - self._is_cached[block] < 2:
                    break
                num += 1
        return num

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken (tests and idle checks)."""
        self._free.check()
        free = {b for first, num in self._free.holes() for b in range(first, first + num)}
        num_idle = num_shared = 0
        for block, count in enumerate(self._counts):
            if count < 0 or (count == 0) != (block in free):
                raise AssertionError(f"block {block} has count {count}, free: {block in free}")
            if self._is_cached[block] and count == 0:
                raise AssertionError(f"block {block} is free, but the cache names it")
            num_idle += self._is_cached[block] and count == 1
            num_shared += count - self._is_cached[block] > 1
        if num_idle != self.num_idle:
            raise AssertionError(f"{num_idle} blocks are idle, {self.num_idle} were counted")
        if num_shared != self.num_shared:
            raise AssertionError(f"{num_shared} blocks are shared, {self.num_shared} were counted")
