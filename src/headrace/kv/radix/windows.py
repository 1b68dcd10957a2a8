"""What windows mean for the tree: where a hit may end, and which window blocks can go first.

A hit at p needs of a group with window W only the blocks that a row at p can see, at most
ceil(W / 16) + 1 of them. Hits end where sequences parted or ended, that is at ends of nodes; so of
a longer run only its last such blocks are worth as much as its full-attention blocks. Those in
front of them are kept while there is room, for a hit that ends inside the run.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from headrace.backends.layout import BLOCK_LEN, KVLayout
from headrace.kv.pool import BlockPool
from headrace.kv.radix.base import NO_BLOCK
from headrace.kv.radix.node import Node
from headrace.kv.tables import blocks_for, first_visible_block

# -1 as four bytes. No other block id holds a byte 0xff at its highest place, so that wherever these
# four are found in a table, the entry at (place / 4) is a gap.
_GAP = b"\xff\xff\xff\xff"


def _usable_tokens(
    tables: Sequence[array[int]], windows: Sequence[int], depth: int, tail_len: int
) -> int:
    """The most leading tokens at whose end every window group has all that the next row sees.

    Either all of `depth` blocks and a tail, or some whole blocks: a tail further up is no better
    than the whole block that it is part of. `tables`: those of the window groups.
    """
    raw = [table.tobytes() for table in tables]
    if tail_len and _next_depth(raw, windows, depth * BLOCK_LEN + tail_len, depth) == depth:
        return depth * BLOCK_LEN + tail_len
    while (lower := _next_depth(raw, windows, depth * BLOCK_LEN, depth)) < depth:
        depth = lower
    return depth * BLOCK_LEN


def _next_depth(raw: Sequence[bytes], windows: Sequence[int], length: int, depth: int) -> int:
    """`depth` if a row at `length` finds all that it sees of so many blocks; else the next lower
    depth that may do: a gap ends every hit behind it, and those in front of it that it touches."""
    for data, window in zip(raw, windows, strict=True):
        gap = data.rfind(_GAP, 4 * first_visible_block(window, length), 4 * depth)
        if gap >= 0:
            return len(data[: gap // 4 * 4].rstrip(b"\xff")) // 4
    return depth


class WindowBlocks:
    """The nodes with window blocks, in the order in which those will be dropped.

    `inner`: those that have some in front of their last `reach` positions. Empty without windows.
    """

    def __init__(self, layout: KVLayout, pool: BlockPool) -> None:
        self._pool = pool
        self.groups = [g for g, group in enumerate(layout.groups) if group.window]
        self.windows = [layout.groups[g].window for g in self.groups]
        self.reach = max((blocks_for(w) + 1 for w in self.windows), default=0)
        self._nodes: dict[Node, None] = {}
        self._inner: dict[Node, None] = {}

    def usable_tokens(self, tables: Sequence[array[int]], depth: int, tail_len: int) -> int:
        """How many tokens of a path of `depth` blocks, and a tail behind it, can be reused."""
        if not self.groups:
            return depth * BLOCK_LEN + tail_len
        return _usable_tokens([tables[g] for g in self.groups], self.windows, depth, tail_len)

    def blank_behind(self, tables: Sequence[array[int]], num_tokens: int) -> None:
        """Take out of a path's tables what no row from `num_tokens` on sees."""
        for group, window in zip(self.groups, self.windows, strict=True):
            first = first_visible_block(window, num_tokens)
            tables[group][:first] = array("i", [NO_BLOCK]) * first

    def add(self, node: Node) -> None:
        """The node has got blocks, or was cut."""
        if self.groups:
            self._nodes[node] = None
            if node.clear < len(node) - self.reach:
                self._inner[node] = None

    def remove(self, node: Node) -> None:
        self._nodes.pop(node, None)
        self._inner.pop(node, None)

    def drop_inner(self, goal: int) -> int:
        """Free idle window blocks inside runs until the pool has `goal` free blocks; the number
        freed. Those that a sequence still sees stay, and are looked at again next time."""
        before, done = self._pool.num_free, []
        for node in self._inner:
            if self._pool.num_free >= goal:
                break
            if self._drop(node, len(node) - self.reach, goal):
                done.append(node)
        for node in done:
            del self._inner[node]
        return self._pool.num_free - before

    def drop_outer(self, goal: int) -> list[Node]:
        """The last resort: window blocks that hits at the ends of held paths would need, until the
        pool has `goal` free blocks. Returns the nodes that lost some."""
        touched, done = [], []
        for node in self._nodes:
            before = self._pool.num_free
            if before >= goal:
                break
            if self._drop(node, len(node), goal):
                done.append(node)
            if self._pool.num_free > before:
                touched.append(node)
        for node in done:
            self.remove(node)
        return touched

    def _drop(self, node: Node, end: int, goal: int) -> bool:
        """Drop idle window blocks of positions clear..end-1; whether none is left there."""
        pool, is_clear = self._pool, True
        tables = [node.blocks[g] for g in self.groups]
        for position in range(node.clear, end):
            for table in tables:
                block = table[position]
                if block < 0:
                    continue
                if pool.num_free >= goal:
                    return False
                if pool.count(block) == 1:
                    pool.uncache((block,))
                    table[position] = NO_BLOCK
                else:
                    is_clear = False
            if is_clear:
                node.clear = position + 1
        return is_clear
