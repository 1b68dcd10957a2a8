"""RadixCache: the prefix cache as a radix tree over blocks. See base.py for the contract.

Nothing here looks at tokens one by one, and nothing walks over the whole tree: matching compares
runs of bytes and looks up blocks in dictionaries, eviction takes the first of a heap.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from headrace.backends.layout import BLOCK_LEN, KVLayout
from headrace.kv.pool import BlockPool
from headrace.kv.radix.base import (
    ABANDONED,
    DEFAULT_DEADLINES,
    DEFAULT_PRIORITY,
    DEFAULT_RETENTION,
    OVERDUE,
    CacheCounters,
    CacheEvent,
    Hold,
    Look,
    Match,
    Retention,
    RootKey,
    deadlines_of,
    join_deadlines,
    priority_at,
)
from headrace.kv.radix.events import EventLog
from headrace.kv.radix.hold import RadixHold, node_of
from headrace.kv.radix.node import (
    BLOCK_BYTES,
    TOKEN_BYTES,
    Node,
    common_blocks,
    find_tail,
    last_block,
    num_held,
    path_of,
    path_tables,
    walk,
)
from headrace.kv.radix.order import EvictionOrder
from headrace.kv.radix.places import Places
from headrace.kv.radix.windows import WindowBlocks

# A copy of a partly filled block costs about as much as a few rows, which it must save. (It also
# keeps prompts that share nothing but their first token from counting as hits.)
MIN_TAIL_LEN = 4
# Leaves that a step drops, or ranks anew, since their time is over: any number may be due at once.
MAX_DUE = 64


class RadixCache:
    """Implements base.PrefixCache, and becomes the pool's `reclaim` and `reclaim_at`.

    `order`: who is evicted first. `record_events`: keep events for `take_events`.
    """

    def __init__(
        self,
        layout: KVLayout,
        pool: BlockPool,
        *,
        order: EvictionOrder | None = None,
        min_tail_len: int = MIN_TAIL_LEN,
        record_events: bool = False,
    ) -> None:
        self.counters = CacheCounters()
        self.num_blocks = 0
        self.version = 0
        self._layout = layout
        self._pool = pool
        self._num_groups = len(layout.groups)
        self._full_only = all(not group.window for group in layout.groups)
        self._full_group = next((g for g, s in enumerate(layout.groups) if not s.window), None)
        self._min_tail_len = min_tail_len
        self._roots: dict[RootKey, Node] = {}
        self._order = order or EvictionOrder()
        self._windows = WindowBlocks(layout, pool)
        self._places = Places(pool.num_blocks)
        self._tick = 0
        self._log = EventLog() if record_events else None
        pool.reclaim, pool.reclaim_at = self.evict, self.evict_at

    # ---- finding ----

    def look(self, key: RootKey, tokens: array[int], limit: int, since: object = None) -> Look:
        """See base.PrefixCache.look."""
        root = self._roots.get(key)
        if root is None:
            return Look(0, (key, 0), 0)
        data = tokens[:limit].tobytes()
        start, depth = root, 0
        if isinstance(since, tuple):
            start, depth = since
            is_known = start.parent is not None and start.start < depth <= start.end
            if not is_known or depth * BLOCK_BYTES > len(data):
                start, depth = root, 0
        path: list[Node] = []
        node, inside = walk(start, depth - start.start, data, path)
        depth = node.start + inside
        tail_len = find_tail(node, inside, data, self._min_tail_len)[1]
        num_tokens = depth * BLOCK_LEN + tail_len
        if start is not root:
            path = path_of(node)
        if not self._full_only:
            tables = path_tables(path, self._num_groups, depth)
            num_tokens = self._windows.usable_tokens(tables, depth, tail_len)
        place = (node if inside == len(node) else (node, inside), depth)
        num_busy = num_held(path, inside, self._full_group, self._pool.count)
        return Look(num_tokens, place, num_busy, (node, depth))

    def match(self, key: RootKey, tokens: array[int], limit: int) -> Match:
        """See base.PrefixCache.match."""
        root = self._roots.get(key)
        if root is None:
            empty = [array("i") for _ in self._layout.groups]
            root = self._roots[key] = Node(None, b"", empty, 0, key)
        data = tokens[:limit].tobytes()
        path: list[Node] = []
        node, inside = walk(root, 0, data, path)
        depth = node.start + inside
        tables = path_tables(path, self._num_groups, depth)
        tail, tail_len = find_tail(node, inside, data, self._min_tail_len)
        num_tokens = self._windows.usable_tokens(tables, depth, tail_len)
        if num_tokens < depth * BLOCK_LEN + tail_len:
            tail, tail_len, depth = [], 0, num_tokens // BLOCK_LEN
            while node.start >= depth and node.parent is not None:
                node = node.parent
            inside = depth - node.start
            tables = [table[:depth] for table in tables]
        if inside < len(node):
            node = self._split(node, inside)
        elif tail_len and node.tails_of(data[depth * BLOCK_BYTES :][:BLOCK_BYTES]):
            self._order.tails.note_used()
        self._windows.blank_behind(tables, num_tokens)
        for table, group in zip(tables, self._layout.groups, strict=True):
            self._pool.share(table if group.window == 0 else (b for b in table if b >= 0))
        self._pool.share(tail)
        return Match(RadixHold(node), depth, tables, tail, tail_len, num_tokens)

    def fork(self, hold: Hold) -> Hold:
        """See base.PrefixCache.fork."""
        return RadixHold(node_of(hold))

    # ---- growing ----

    def insert(
        self,
        hold: Hold,
        tokens: array[int],
        tables: Sequence[array[int]],
        computed: int,
        *,
        with_tail: bool = False,
    ) -> None:
        """See base.PrefixCache.insert."""
        assert isinstance(hold, RadixHold)
        node, whole = hold.node, computed // BLOCK_LEN
        if node.is_tail:
            raise ValueError("a path ends with its partly filled block")
        if whole > node.end:
            data = tokens[node.end * BLOCK_LEN : whole * BLOCK_LEN].tobytes()
            node = self._insert_blocks(hold, data, tables)
        if with_tail and computed % BLOCK_LEN >= self._min_tail_len:
            data = tokens[whole * BLOCK_LEN : computed].tobytes()
            node = self._insert_tail(node, data, [table[whole] for table in tables])
        if node is not hold.node:
            hold.move(node)

    def _insert_blocks(self, hold: RadixHold, data: bytes, tables: Sequence[array[int]]) -> Node:
        """The node that the path ends with after `data` (whole blocks) was added to it."""
        node, at = hold.node, 0
        while at < len(data):
            child = node.children.get(data[at : at + BLOCK_BYTES])
            if child is None:
                return self._append(hold, node, data[at:], tables)
            inside = len(child)
            if not data.startswith(child.tokens, at):
                inside = common_blocks(child.tokens, data, at)
                if inside < len(child):
                    child = self._split(child, inside)
            self._unify(child, tables)
            at += inside * BLOCK_BYTES
            node = child
        return node

    def _unify(self, node: Node, tables: Sequence[array[int]]) -> None:
        """A sequence computed what the node has: take its blocks where the node has gaps, and put
        the node's blocks into its tables elsewhere."""
        start, pool, has_filled = node.start, self._pool, False
        for table, kept in zip(tables, node.blocks, strict=True):
            own = table[start : start + len(kept)]
            if own == kept:
                continue
            for index, block in enumerate(own):
                there = kept[index]
                if block == there or block < 0:
                    continue
                if there < 0:
                    pool.cache((block,))
                    self._places.note((block,), node)
                    kept[index] = block
                    node.clear = min(node.clear, index)
                    self._count_inserted(1)
                    has_filled = True
                else:
                    pool.share((there,))
                    pool.release((block,))
                    table[start + index] = there
        if has_filled:
            self._windows.add(node)
            if node.entry:
                self._offer(node)

    def _append(
        self, hold: RadixHold, node: Node, data: bytes, tables: Sequence[array[int]]
    ) -> Node:
        """Add new blocks behind a node: to its own run when nobody but this hold knows it yet."""
        start, end = node.end, node.end + len(data) // BLOCK_BYTES
        blocks = [table[start:end] for table in tables]
        if node is hold.node and node.pins == 1 and node.tick == 0 and not node.children and start:
            node.tokens += data
            for table, more in zip(node.blocks, blocks, strict=True):
                table.extend(more)
        else:
            parent, node = node, Node(node, data, blocks, start)
            self._drop_prefixes(parent, node.key)
            parent.add_child(node)
            parent.entry = 0
        for table, group in zip(blocks, self._layout.groups, strict=True):
            held = [b for b in table if b >= 0] if group.window else table
            self._pool.cache(held)
            self._places.note(held, node)
            self._count_inserted(len(held))
        self._windows.add(node)
        if self._log is not None:
            self._log.inserted(node, start, data)
        return node

    def _insert_tail(self, parent: Node, data: bytes, blocks: list[int]) -> Node:
        """The node of a partly filled block, or `parent` when another block holds the same."""
        nearest = parent.nearest(data) if parent.children else []
        if nearest and nearest[0][0] * TOKEN_BYTES == len(data):
            return parent
        node = Node(parent, data, [array("i", [b]) for b in blocks], parent.end)
        self._drop_prefixes(parent, data)
        parent.add_child(node)
        parent.entry = 0
        self._order.tails.note_kept()
        self._pool.cache(blocks)
        self._places.note(blocks, node)
        self._count_inserted(len(blocks))
        self._windows.add(node)
        if self._log is not None:
            self._log.inserted(node, node.start, data)
        return node

    def _drop_prefixes(self, parent: Node, key: bytes) -> None:
        """Tails that a new child continues have nothing of their own any more."""
        for tail in parent.tails_of(key):
            if not tail.pins:
                self._drop(tail, "replaced")

    def _split(self, node: Node, at: int) -> Node:
        upper = node.split(at)
        self._windows.add(upper)
        self._windows.add(node)
        self._places.note_all(upper)
        self.version += 1
        return upper

    def _count_inserted(self, num: int) -> None:
        self.num_blocks += num
        self.counters.num_inserted += num
        self.version += 1
        self._order.note_filled(self.num_blocks / self._pool.num_blocks)

    # ---- uses ----

    def release(
        self, hold: Hold, retention: Retention = DEFAULT_RETENTION, *, used: bool = True
    ) -> None:
        """See base.PrefixCache.release."""
        node, order = node_of(hold), self._order
        node.pins -= 1
        assert isinstance(hold, RadixHold)
        del hold.node  # a second release, or any other use, is an error
        self._tick += 1
        node.tick = self._tick
        node.used_s = order.now
        node.base = order.clock
        if node.is_tail:
            node.share = order.tails.worth(len(node.tokens) // TOKEN_BYTES)
        node.hits += used
        node.deadlines = join_deadlines(node.deadlines, deadlines_of(retention, order.now))
        self._offer(node)

    def abandon(self, key: RootKey, tokens: array[int], prefix_len: int) -> None:
        """See base.PrefixCache.abandon."""
        root = self._roots.get(key)
        if root is None:
            return
        data, kept = tokens.tobytes(), prefix_len // BLOCK_LEN
        node, inside = walk(root, 0, data, [])
        if inside < len(node) or node.end < kept:
            return
        end = node.end * BLOCK_BYTES
        tails = node.tails_of(data[end : end + BLOCK_BYTES - TOKEN_BYTES])
        node = tails[0] if tails else node
        gone: list[Node] = []
        while node.parent is not None and node.end > kept and len(node.children) == bool(gone):
            if node.start < kept:
                self._split(node, kept - node.start)
            gone.append(node)
            node = node.parent
        for each in gone:
            each.give_uses(node)
            each.hits = 0
            each.deadlines = ABANDONED
        if gone:
            self._offer(gone[0])

    def advance(self, now: float) -> None:
        """See base.PrefixCache.advance."""
        order, left = self._order, MAX_DUE
        order.now = max(order.now, now)
        if order.next_due > now:
            return
        while left > 0 and (node := order.pop_due()) is not None:
            left = min(left - 1, self._offer(node, left))

    def next_deadline(self) -> float:
        """See base.PrefixCache.next_deadline."""
        return self._order.next_deadline()

    def _offer(self, node: Node, most: int = MAX_DUE) -> int:
        """Let a node that became an unheld leaf be evicted; drop it, and then perhaps its parent,
        if its time is over, but `most` of them now: returns what is left of that. A root that has
        become empty goes."""
        order = self._order
        while node.parent is not None:
            if node.children or node.pins:
                return most
            held = priority_at(node.deadlines, order.now) or (None if most else OVERDUE)
            if held is not None:
                order.push(node, *held)
                return most
            node, most = self._drop(node, "expired"), most - 1
        if node.root is not None and not node.children and not node.pins:
            self._roots.pop(node.root, None)
        return most

    # ---- going ----

    def evict(self, num_blocks: int) -> int:
        """See base.PrefixCache.evict."""
        pool = self._pool
        before = pool.num_free
        goal = before + num_blocks
        if not self._full_only:
            self._count_evicted("window", self._windows.drop_inner(goal))
        while pool.num_free < goal and self._order.first() is not None:
            gone = self._take_ends(goal - pool.num_free)
            self._count_evicted("capacity", len(gone))
            pool.uncache(gone)
        if not self._full_only and pool.num_free < goal:
            self._drop_outer_windows(goal)
        return pool.num_free - before

    def evict_at(self, block: int) -> bool:
        """Free this idle block, and what hangs on it. False, and nothing changed, if that is worth
        more than what `evict` would free now."""
        found = self._places.find(block)
        if found is None or not self._order.is_cheap(found[1]):
            return False
        (keep, (node, *below)), gone = found, array("i")
        for each in reversed(below):
            self._unlink(each, gone)
        node = self._shorten(node, keep, gone)
        held = [b for b in gone if b >= 0]
        self._count_evicted("capacity", len(held))
        self._pool.uncache(held)
        self._offer(node)
        return True

    def _shorten(self, node: Node, keep: int, gone: array[int]) -> Node:
        """Leave a leaf at most `keep` positions, the last of them with a block; what the path ends
        with now: the leaf, or its parent."""
        if self._full_group is None:
            keep = last_block(node, keep)
        if keep:
            self._cut(node, keep, gone)
            return node
        return self._unlink(node, gone)

    def _take_ends(self, num: int) -> Sequence[int]:
        """About `num` blocks, cut off the ends of leaves in the order of eviction."""
        order, gone = self._order, array("i")
        while len(gone) < num:
            node = order.evict_first()
            if node is None or not self._take_end(node, num, gone):
                break
        return gone if self._full_only else [b for b in gone if b >= 0]

    def _take_end(self, node: Node, num: int, gone: array[int]) -> bool:
        """Cut off the end of the first leaf, and then of what is first by that: its parent or its
        rest, mostly, which the heap need not know. False when an expiry may have freed more."""
        order = self._order
        others = order.second()
        while True:
            keep = len(node.blocks[0]) - 1
            if keep:
                keep = max(0, keep + 1 - -(-(num - len(gone)) // self._num_groups))
            node = self._shorten(node, keep, gone)
            if node.children or node.pins:
                return True
            if node.deadlines is not DEFAULT_DEADLINES or node.parent is None:
                self._offer(node)
                return False
            key = order.key_of(node)
            if len(gone) >= num or others <= (DEFAULT_PRIORITY, key, node.tick):
                order.replace_first(node, DEFAULT_PRIORITY)
                return True
            if key > order.clock:
                order.clock = key

    def _cut(self, node: Node, keep: int, gone: array[int]) -> None:
        """Take all but the first `keep` blocks off a leaf."""
        if self._log is not None:
            self._log.evicted(node.blocks[0][keep:])
        for table in node.blocks:
            gone.extend(table[keep:])
            del table[keep:]
        node.tokens = node.tokens[: keep * BLOCK_BYTES]
        node.clear = min(node.clear, keep)

    def _unlink(self, node: Node, gone: array[int]) -> Node:
        """Take a leaf out of the tree; its parent, which inherits its uses, is returned. The caller
        drops the references to `gone`."""
        if self._log is not None:
            self._log.evicted(node.blocks[0])
        for table in node.blocks:
            gone.extend(table)
        if not self._full_only:
            self._windows.remove(node)
        return node.unlink()

    def _drop(self, node: Node, cause: str) -> Node:
        """Unlink a leaf and give its blocks back; returns its parent."""
        gone = array("i")
        parent = self._unlink(node, gone)
        held = [b for b in gone if b >= 0]
        self._count_evicted(cause, len(held))
        self._pool.uncache(held)
        return parent

    def _drop_outer_windows(self, goal: int) -> None:
        before = self._pool.num_free
        for node in self._windows.drop_outer(goal):
            if node.entry:
                self._offer(node)
        self._count_evicted("window", self._pool.num_free - before)

    def _count_evicted(self, cause: str, num: int) -> None:
        self.num_blocks -= num
        self.counters.num_evicted[cause] += num
        self.version += 1

    def clear(self) -> int:
        """See base.PrefixCache.clear."""
        before = self.num_blocks
        while (node := self._order.first()) is not None:
            self._offer(self._drop(node, "cleared"))
        return before - self.num_blocks

    # ---- inspection ----

    def nodes(self) -> Iterator[tuple[RootKey, Node]]:
        """Every node, parents first (for tests and checks: a walk over the whole tree)."""
        stack = [(key, root) for key, root in self._roots.items()]
        while stack:
            key, node = stack.pop()
            yield key, node
            stack.extend((key, child) for child in node.children.values())

    def references(self) -> Iterator[int]:
        """See base.PrefixCache.references."""
        for _, node in self.nodes():
            for table in node.blocks:
                yield from (b for b in table if b >= 0)

    def take_events(self) -> list[CacheEvent]:
        """See base.PrefixCache.take_events."""
        return [] if self._log is None else self._log.take()
