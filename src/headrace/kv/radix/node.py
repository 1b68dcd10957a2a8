"""Nodes of the prefix cache's tree, and how runs of tokens compare. Tokens are bytes here, four for
each: comparing, hashing and slicing them are single calls."""

from __future__ import annotations

import math
import struct
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from headrace.backends.layout import BLOCK_LEN
from headrace.kv.radix.base import NO_DEADLINES, Deadlines, RootKey, join_deadlines

TOKEN_BYTES = 4
BLOCK_BYTES = BLOCK_LEN * TOKEN_BYTES
_BLOCK = struct.Struct(f"{BLOCK_BYTES}s")
# Of a block's id in a table.
_ID_BYTES = array("i").itemsize


class Node:
    """A run of blocks that follows its parent's, with what decides its eviction.

    `tokens` of whole blocks, or of one partly filled block (a tail, which never has children).
    `key`: the bytes of its first block, its name among the parent's children. `blocks`: one array
    per layer group. `start`: blocks in front of it. `pins`: holds that end here. `entry`: number of
    its valid entry in the order of eviction, 0 for none. `clear`: leading positions that have lost
    their window blocks.

    `share`: of a tail, its worth in whole blocks.
    `hits`, `base`, `tick`, `used_s`, `deadlines` (see `tree.RadixCache.release`) tell of the uses
    that end here; a node passes them to its parent when it goes, so that a leaf knows all uses of
    its path.
    """

    __slots__ = (
        "base", "blocks", "children", "clear", "deadlines", "entry", "hits", "key", "order",
        "parent", "pins", "root", "share", "start", "tick", "tokens", "used_s",
    )  # fmt: skip

    def __init__(
        self,
        parent: Node | None,
        tokens: bytes,
        blocks: list[array[int]],
        start: int,
        root: RootKey | None = None,
    ) -> None:
        self.parent = parent
        self.root = root
        self.tokens = tokens
        self.key = tokens[:BLOCK_BYTES]
        self.blocks = blocks
        self.start = start
        self.children: dict[bytes, Node] = {}
        # Keys of the children in order; made when a partly equal block is first looked for.
        self.order: list[bytes] | None = None
        self.pins = 0
        self.entry = 0
        self.clear = 0
        self.hits = 0
        self.base = 0.0
        self.tick = 0
        self.used_s = -math.inf
        self.share = 1.0
        self.deadlines: Deadlines = NO_DEADLINES

    def __len__(self) -> int:
        return len(self.blocks[0])

    @property
    def end(self) -> int:
        """Blocks up to its end."""
        return self.start + len(self.blocks[0])

    @property
    def is_tail(self) -> bool:
        return self.parent is not None and len(self.tokens) < BLOCK_BYTES

    def add_child(self, child: Node) -> None:
        self.children[child.key] = child
        if self.order is not None:
            insort(self.order, child.key)

    def unlink(self) -> Node:
        """Leave the tree (a leaf does); the parent, which is returned, takes over its uses."""
        parent = self.parent
        assert parent is not None
        del parent.children[self.key]
        if parent.order is not None:
            del parent.order[bisect_left(parent.order, self.key)]
        self.give_uses(parent)
        self.parent = None
        self.entry = 0
        return parent

    def give_uses(self, node: Node) -> None:
        """The uses that ended here end at `node`, further up, from now on."""
        node.hits += self.hits
        if self.base > node.base:
            node.base = self.base
        if self.tick > node.tick:
            node.tick = self.tick
            node.used_s = self.used_s
        if self.deadlines is not node.deadlines:
            node.deadlines = join_deadlines(node.deadlines, self.deadlines)

    def split(self, at: int) -> Node:
        """Cut the run in two; the new node is the upper part, of `at` blocks. This one keeps its
        end, so its pins, its uses and its place in the order of eviction stay right."""
        parent = self.parent
        assert parent is not None
        cut = at * BLOCK_BYTES
        upper = Node(parent, self.tokens[:cut], [b[:at] for b in self.blocks], self.start)
        upper.clear = min(self.clear, at)
        parent.children[upper.key] = upper
        self.parent = upper
        self.tokens = self.tokens[cut:]
        self.key = self.tokens[:BLOCK_BYTES]
        self.blocks = [b[at:] for b in self.blocks]
        self.start += at
        self.clear = max(0, self.clear - at)
        upper.children[self.key] = self
        return upper

    def tails_of(self, tokens: bytes) -> list[Node]:
        """Children that hold the beginning of `tokens` in a partly filled block, longest first."""
        lengths = range(min(len(tokens), BLOCK_BYTES - TOKEN_BYTES), 0, -TOKEN_BYTES)
        found = [self.children.get(tokens[:n]) for n in lengths] if self.children else []
        return [child for child in found if child is not None]

    def nearest(self, tokens: bytes) -> list[tuple[int, Node]]:
        """At most two children whose first block shares tokens with `tokens` (less than a block),
        as (number shared, child), most first. One of them shares as many as any child does: in
        the order of bytes no key is closer than a neighbour."""
        if len(self.children) == 1:
            found = list(self.children.items())
        else:
            if self.order is None:
                self.order = sorted(self.children)
            at = bisect_left(self.order, tokens)
            found = [(key, self.children[key]) for key in self.order[max(0, at - 1) : at + 1]]
        shared = [(common_tokens(key, tokens), child) for key, child in found]
        shared.sort(key=lambda pair: -pair[0])
        return [pair for pair in shared if pair[0] > 0]


def common_blocks(run: bytes, data: bytes, at: int) -> int:
    """Leading blocks of `run` that are equal to `data` from byte `at` on."""
    low, high = 0, min(len(run), len(data) - at) // BLOCK_BYTES
    middle = high
    while low < high:
        if data.startswith(run[low * BLOCK_BYTES : middle * BLOCK_BYTES], at + low * BLOCK_BYTES):
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


def common_tokens(a: bytes, b: bytes) -> int:
    """Leading tokens that two runs of at most a block share."""
    length = min(len(a), len(b))
    differing = int.from_bytes(a[:length], "little") ^ int.from_bytes(b[:length], "little")
    if differing == 0:
        return length // TOKEN_BYTES
    return ((differing & -differing).bit_length() - 1) // (8 * TOKEN_BYTES)


def walk(node: Node, inside: int, data: bytes, path: list[Node]) -> tuple[Node, int]:
    """Follow `data` from `inside` blocks into `node` as far as whole blocks are equal: the node
    reached, and how many blocks of it are. Nodes below `node` are appended to `path`."""
    at = node.start * BLOCK_BYTES
    if inside < len(node) and not data.startswith(node.tokens, at):
        return node, common_blocks(node.tokens, data, at)
    at += len(node.tokens)
    append, block_bytes = path.append, BLOCK_BYTES
    whole = memoryview(data)[: len(data) - len(data) % block_bytes]
    try:
        while at < len(whole):
            # Of a node of one block, its key has told all.
            for (key,) in _BLOCK.iter_unpack(whole[at:]):
                node = node.children[key]
                append(node)
                if len(node.tokens) > block_bytes:
                    break
            at = node.start * block_bytes
            if not data.startswith(node.tokens, at):
                return node, common_blocks(node.tokens, data, at)
            at += len(node.tokens)
    except KeyError:
        pass
    return node, len(node.blocks[0])


def path_of(node: Node) -> list[Node]:
    """The nodes from below the root to `node`."""
    path = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    path.reverse()
    return path


def path_tables(path: Sequence[Node], num_groups: int, depth: int) -> list[array[int]]:
    """The block tables (one per group) along a path of nodes, of `depth` blocks."""
    joined = (b"".join([node.blocks[group] for node in path]) for group in range(num_groups))
    return [array("i", ids[: depth * _ID_BYTES]) for ids in joined]


def find_tail(node: Node, inside: int, data: bytes, least: int) -> tuple[list[int], int]:
    """The block (one per group) that shares most tokens, `least` or more, with what follows the
    whole blocks of a path in `data`; and how many."""
    at = (node.start + inside) * BLOCK_BYTES
    rest = data[at : at + BLOCK_BYTES]
    if inside < len(node):
        run = node.tokens[inside * BLOCK_BYTES : (inside + 1) * BLOCK_BYTES]
        found = [(common_tokens(run, rest), node, inside)]
    elif node.children and rest:
        found = [(shared, child, 0) for shared, child in node.nearest(rest)]
    else:
        found = []
    for shared, child, index in found:
        blocks = [table[index] for table in child.blocks]
        if shared >= least and min(blocks) >= 0:
            return blocks, shared
    return [], 0


def num_held(
    path: Sequence[Node], inside: int, group: int | None, count: Callable[[int], int]
) -> int:
    """Blocks of a full-attention group, if there is one, that sequences hold of a path that ends
    `inside` blocks into its last node: the front of it. `count`: references of a block."""
    if group is None or not path:
        return 0
    at = bisect_left(path, True, key=lambda node: count(node.blocks[group][0]) < 2)
    if at == 0:
        return 0
    last = path[at - 1]
    blocks = last.blocks[group][: inside if at == len(path) else len(last)]
    return last.start + bisect_left(blocks, True, key=lambda block: count(block) < 2)


def last_block(node: Node, keep: int) -> int:
    """Positions up to the last of the first `keep` that has a block in any group."""
    while keep > 0 and all(table[keep - 1] < 0 for table in node.blocks):
        keep -= 1
    return keep
