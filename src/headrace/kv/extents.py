"""FreeExtents: the free blocks of a pool as runs, and where in them a table should grow.

No block is ever moved, so a sequence stays in one run of ids (an extent) only if the blocks behind
its last one are free when it comes to them. Whoever has an extent can therefore claim what it is
expected to need behind it. A claim is a hint: it keeps new extents away as long as there is better
room, and never keeps a block from anybody who needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
        self._open(0, num_blocks)
        self.num_free = num_blocks

    # ---- giving back ----

    def add(self, block: int) -> None:
        """`block` is free now. The claim behind it ends, as its owner's extent does."""
        self._claims.pop(block + 1, None)
        start, length = block, 1
        before = self._start.get(block)
        if before is not None:
            start, length = before, length + self._close(before)
        behind = self._length.get(block + 1)
        if behind is not None:
            length += self._close(block + 1)
        self._open(start, length)
        self.num_free += 1

    def holes(self) -> Iterator[tuple[int, int]]:
        """(first block, length) of every hole, in no particular order."""
        yield from self._length.items()

    # ---- taking ----

    def take_behind(self, last: int, num: int) -> int:
        """Take up to `num` blocks directly behind block `last`; how many there were."""
        length = self._length.get(last + 1)
        if length is None or num < 1:
            return 0
        taken = min(num, length)
        self._cut(last + 1, 0, taken)
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
        if num > 0:
            self._claims[last + 1] = num
        else:
            self._claims.pop(last + 1, None)

    def _choose(self, want: int) -> tuple[int, int]:
        """(hole, offset into it) where an extent of `want` blocks is least in the way.

        Least is the number of breaks to expect: an extent that wants w blocks where there is room
        for r will break about w / r - 1 times, and so will the one in front of it that claims the
        hole. Of equal places the one with the least left over wins.
        """
        best: tuple[float, int, int, int] | None = None
        for hole in self._candidates(want):
            length, claimed = self._length[hole], self._claims.get(hole, 0)
            before, left = max(0.0, claimed / length - 1.0), max(0, length - claimed - want)
            for offset in _offsets(length, claimed, want):
                room = length - offset
                breaks = max(0.0, want / room - 1.0) - before
                if claimed > offset:
                    breaks += claimed / (offset + 0.5) - 1.0
                key = (round(breaks, 2), left, hole, offset)
                if best is None or key < best:
                    best = key
        if best is None:
            raise ValueError("no block is free")
        return best[2], best[3]

    def _candidates(self, want: int) -> Iterator[int]:
        """Some holes that are large enough, smaller classes first, and the largest of the rest."""
        size = want.bit_length()
        for classes in (self._classes[size:], self._classes[size - 1 :: -1]):
            num = 0
            for holes in classes:
                for hole in holes:
                    if num == _MAX_LOOKED_AT:
                        break
                    yield hole
                    num += 1

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


def _offsets(length: int, claimed: int, want: int) -> tuple[int, ...]:
    """Where in a hole an extent might begin: behind the claim, or so that both share the hole."""
    if claimed == 0:
        return (0,)
    if claimed + want <= length:
        return (claimed,)
    last = length - 1
    behind = min(claimed, last)
    return 0, length // 3, length // 2, 2 * length // 3, behind, max(0, length - want)


def num_extents(table: Iterable[int]) -> int:
    """Runs of consecutive ids in a block table; entries below 0 (behind a window) do not count."""
    runs, previous = 0, -2
    for block in table:
        if block >= 0 and block != previous + 1:
            runs += 1
        previous = block
    return runs
