"""Which leaf loses its last block next, and which has outlived its time."""

from __future__ import annotations

import heapq
import math

from headrace.backends.layout import BLOCK_LEN
from headrace.kv.radix.base import MAX_PRIORITY
from headrace.kv.radix.node import Node

# priority, key, last use, number, leaf
_Entry = tuple[int, float, int, int, Node]
# Behind everything.
_LAST = (MAX_PRIORITY + 1, 0.0, 0)
# Uses beyond these do not count: what was in great demand once is overtaken in bounded time too.
MAX_HITS = 8
# Uses -> what they let expect. Whoever was used twice as often comes again a bit sooner, not twice
# as soon (benchmark 16).
_WORTH = (0.0, *(1.0 + math.log2(hits) for hits in range(1, MAX_HITS + 1)))
# The context length at which computing a row counts twice what it counts alone. That of a large
# model; a small one's row takes twice as long from some 2,500 tokens on, but a key that follows the
# cost so closely keeps long prompts that nobody sends again (benchmark 16).
CONTEXT_SCALE = 16384
_COST_PER_BLOCK = BLOCK_LEN / CONTEXT_SCALE
# Stale entries are swept when the heap has doubled, but not while it is small.
_LEAST_SWEEP = 1024


class EvictionOrder:
    """Leaves that nobody holds, by (priority, key, last use); GreedyDual's clock; deadlines.

    key = clock at the last use + (1 + log2 uses) x cost / blocks freed (after GDSF: Cherkasova
    1998). The clock rises to the key of each eviction, so what is not used again is overtaken by
    what comes: nothing has to decay. A subclass with another `key_of` is another order.

    Heaps with entries that may be stale: an entry counts while its number is the node's.
    """

    def __init__(self) -> None:
        self.clock = 0.0
        self.now = 0.0
        self.next_deadline = math.inf
        self._last_entry = 0
        self._heap: list[_Entry] = []
        self._deadlines: list[tuple[float, int, Node]] = []
        self._sweep_at = _LEAST_SWEEP

    def push(self, node: Node, priority: int, until: float) -> None:
        """Make a leaf a candidate with this priority, which holds until then. Its old entry, if it
        has one, is stale from now on."""
        heapq.heappush(self._heap, self._entry(node, priority, until))
        if len(self._heap) + len(self._deadlines) > self._sweep_at:
            self._sweep()

    def replace_first(self, node: Node, priority: int, until: float) -> None:
        """Like `push`, in the place of the entry of `first`, which has become stale. Mostly the
        parent, or the rest, of what was evicted is first again; then nothing has to be sifted."""
        heap, entry = self._heap, self._entry(node, priority, until)
        if len(heap) > 2 and entry < heap[1] and entry < heap[2]:
            heap[0] = entry
        else:
            heapq.heapreplace(heap, entry)

    def _entry(self, node: Node, priority: int, until: float) -> _Entry:
        self._last_entry += 1
        node.entry = self._last_entry
        if until < math.inf:
            heapq.heappush(self._deadlines, (until, node.entry, node))
            self.next_deadline = self._deadlines[0][0]
        return priority, self.key_of(node), node.tick, self._last_entry, node

    def key_of(self, node: Node) -> float:
        """By the class's formula, as things are. Called when a leaf becomes evictable or is cut."""
        blocks = node.blocks
        worth = _WORTH[node.hits if node.hits < MAX_HITS else MAX_HITS]
        key = worth * (1.0 + _COST_PER_BLOCK * (node.start + len(blocks[0])))
        if len(blocks) > 1:
            key /= max(1, sum(table[-1] >= 0 for table in blocks))
        return node.base + key

    def first(self) -> Node | None:
        """The next leaf to lose a block."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if entry[4].entry == entry[3]:
                return entry[4]
            heapq.heappop(heap)
        return None

    def evict_first(self) -> Node | None:
        """The same, which does lose a block now: the clock rises to its key."""
        heap = self._heap
        while heap:
            _, key, _, number, node = heap[0]
            if node.entry == number:
                if key > self.clock:
                    self.clock = key
                return node
            heapq.heappop(heap)
        return None

    def second(self) -> tuple[int, float, int]:
        """What comes after `first` at the earliest; a leaf in front of it would be first, too."""
        return min(self._heap[1:3])[:3] if len(self._heap) > 1 else _LAST

    def pop_due(self) -> Node | None:
        """A candidate whose priority has ended by now; it is no candidate any more."""
        due = self._deadlines
        found = None
        while due and found is None and due[0][0] <= self.now:
            _, entry, node = heapq.heappop(due)
            if node.entry == entry:
                node.entry = 0
                found = node
        self.next_deadline = due[0][0] if due else math.inf
        return found

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if entry[4].entry == entry[3]]
        heapq.heapify(self._heap)
        self._deadlines = [entry for entry in self._deadlines if entry[2].entry == entry[1]]
        heapq.heapify(self._deadlines)
        self._sweep_at = max(_LEAST_SWEEP, 2 * (len(self._heap) + len(self._deadlines)))
