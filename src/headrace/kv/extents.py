"""FreeExtents: the free blocks of a pool as runs, and where in them a table should grow.

No block is ever moved, so a sequence stays in one run of ids (an extent) only if the blocks behind
its last one are free when it comes to them. Whoever has an extent can therefore claim what it is
expected to need behind it. A claim is a hint: it keeps new extents away as long as there is better
room, and never keeps a block from anybody who needs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

# Holes of each kind that are looked at to place an extent.
_MAX_LOOKED_AT = 24


class FreeExtents:
    """Maximal runs of free blocks ("holes"). Owns no counts; `add` and `take` must be balanced.

    Invariant: no two holes touch. Adding a block, and taking blocks at the beginning of a hole, is
    O(1); placing looks at a bounded number of holes.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_free = 0
        self._length: dict[int, int] = {}  # of the hole that starts here
        self._start: dict[int, int] = {}  # of the hole that ends before this block
        # Holes by the bit length of their length, so that fitting ones are found quickly.
        self._classes: list[dict[int, None]] = [{} for _ in range(num_blocks.bit_length() + 1)]
        # Block behind an extent's last -> blocks that its owner will want from there on.
        self._claims: dict[int, int] = {}
        self.num_claimed = 0  # their sum
        self._open(0, num_blocks)
        self.num_free = num_blocks

    # ---- giving back ----

    def add(self, block: int, num: int = 1) -> None:
        """`num` blocks from `block` on are free now. The claim behind them ends, as the extent of
        its owner does."""
        self.num_free += num
        end = block + num
        self.claim(end - 1, 0)
        before = self._start.get(block)
        if before is not None:
            block = before
            self._close(before)
        behind = self._length.get(end)
        if behind is not None:
            self._close(end)
            end += behind
        self._open(block, end - block)

    def add_all(self, blocks: Sequence[int]) -> None:
        """All of these are free now; runs among them are added as such."""
        start = previous = blocks[0]
        for block in itertools.islice(blocks, 1, None):
            if block != previous + 1:
                self.add(start, previous + 1 - start)
                start = block
            previous = block
        self.add(start, previous + 1 - start)

    def holes(self) -> Iterator[tuple[int, int]]:
        """(first block, length) of every hole, in no particular order."""
        yield from self._length.items()

    def is_hole(self, block: int) -> bool:
        """Whether a hole begins with this block, as what is behind an extent does if it is free."""
        return block in self._length

    def has_room(self, want: int) -> bool:
        """Whether a new extent of `want` blocks would be in nobody's way."""
        return self._roomy(want) is not None

    # ---- taking ----

    def take_behind(self, last: int, num: int) -> int:
        """Take up to `num` blocks directly behind block `last`; how many there were. The claim
        there, if any, ends."""
        first = last + 1
        if self._claims:
            self.claim(last, 0)
        length = self._length.get(first)
        if length is None or num < 1:
            return 0
        taken = num if num < length else length
        self._close(first)
        if taken < length:
            self._open(first + taken, length - taken)
        self.num_free -= taken
        return taken

    def take_new(self, num: int, want: int) -> tuple[int, int]:
        """Begin an extent for somebody who needs `num` blocks now and `want` >= num in all: take
        (first block, how many), at most `num`. Something must be free."""
        hole, offset = self._choose(max(num, want))
        taken = min(num, self._length[hole] - offset)
        self._cut(hole, offset, taken)
        return hole + offset, taken

    def take_crumb(self, num: int) -> tuple[int, int]:
        """Take (first block, how many) for somebody who will not grow, out of a small hole."""
        for holes in self._classes:
            for hole in holes:
                taken = min(num, self._length[hole])
                # From its end, where no claim looks first.
                first = hole + self._length[hole] - taken
                self._cut(hole, first - hole, taken)
                return first, taken
        raise ValueError("no block is free")

    def claim(self, last: int, num: int) -> None:
        """Whoever has the extent that ends with `last` wants `num` blocks behind it."""
        before = self._claims.pop(last + 1, 0)
        if num > 0:
            self._claims[last + 1] = num
        self.num_claimed += max(0, num) - before

    def _choose(self, want: int) -> tuple[int, int]:
        """(hole, offset into it) where an extent of `want` blocks is least in the way.

        Least is the number of breaks to expect: an extent that wants w blocks where there is room
        for r will break about w / r - 1 times, and so will the one in front of it that claims the
        hole. Of equal places the one with the least left over wins.
        """
        found = self._roomy(want)
        if found is not None:
            return found
        best: tuple[float, int, int, int] | None = None
        for hole in self._candidates(want):
            length, claimed = self._length[hole], self._claims.get(hole, 0)
            before = claimed / length - 1.0 if claimed > length else 0.0
            for offset in _offsets(length, claimed, want):
                room = length - offset
                breaks = want / room - 1.0 - before if want > room else -before
                if claimed > offset:
                    breaks += claimed / (offset + 0.5) - 1.0
                key = (round(breaks, 2), length, hole, offset)
                if best is None or key < best:
                    best = key
        if best is None:
            raise ValueError("no block is free")
        return best[2], best[3]

    def _roomy(self, want: int) -> tuple[int, int] | None:
        """(hole, offset) where nobody will break: behind what is claimed of a hole, with the least
        left over; None if none of those looked at is so large."""
        best, least, num = None, -1, 0
        lengths, claims = self._length, self._claims
        for holes in self._classes[want.bit_length() :]:
            for hole in holes:
                claimed = claims.get(hole, 0)
                left = lengths[hole] - claimed - want
                if left >= 0 and (best is None or left < least):
                    best, least = (hole, claimed), left
                num += 1
                if left == 0 or num == _MAX_LOOKED_AT:
                    return best
        return best

    def _candidates(self, want: int) -> Iterator[int]:
        """Some holes, first those about as large as `want`, the larger before the smaller."""
        size, classes = want.bit_length(), self._classes
        order = itertools.chain(classes[size:], classes[size - 1 :: -1])
        return itertools.islice(itertools.chain.from_iterable(order), _MAX_LOOKED_AT)

    # ---- holes ----

    def _open(self, start: int, length: int) -> None:
        self._length[start] = length
        self._start[start + length] = start
        self._classes[length.bit_length()][start] = None

    def _close(self, start: int) -> int:
        """Forget a hole; its length."""
        length = self._length.pop(start)
        del self._start[start + length]
        del self._classes[length.bit_length()][start]
        return length

    def _cut(self, hole: int, offset: int, num: int) -> None:
        """Take `num` blocks out of a hole."""
        length = self._close(hole)
        if offset:
            self._open(hole, offset)
        if offset + num < length:
            self._open(hole + offset + num, length - offset - num)
        self.num_free -= num

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        end = -1
        for start, length in sorted(self.holes()):
            if start <= end:
                raise AssertionError(f"the hole at {start} touches the one that ends at {end}")
            if self._start.get(start + length) != start:
                raise AssertionError(f"the end of the hole at {start} is not known")
            if start not in self._classes[length.bit_length()]:
                raise AssertionError(f"the hole at {start} is in no class")
            end = start + length
        if len(self._start) != len(self._length) or self.num_free != sum(self._length.values()):
            raise AssertionError("holes do not add up")
        if self.num_claimed != sum(self._claims.values()):
            raise AssertionError("claims do not add up")


def _offsets(length: int, claimed: int, want: int) -> tuple[int, ...]:
    """Where in a hole an extent might begin: behind the claim, or so that both share the hole."""
    if claimed == 0:
        return (0,)
    if claimed + want <= length:
        return (claimed,)
    return (0,) if length == 1 else (0, length // 2, min(claimed, length - 1))


def num_extents(table: Iterable[int]) -> int:
    """Runs of consecutive ids in a block table; entries below 0 (behind a window) do not count."""
    runs, previous = 0, -2
    for block in table:
        if block >= 0 and block != previous + 1:
            runs += 1
        previous = block
    return runs
