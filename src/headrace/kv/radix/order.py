"""Which leaf loses its last block next, and which has outlived its time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from headrace.backends.layout import BLOCK_LEN
from headrace.kv.radix.base import MAX_PRIORITY, priority_at
from headrace.kv.radix.node import Node

# priority, key, last use, number, leaf
_Entry = tuple[int, float, int, int, Node]
# When, number, leaf
_Due = tuple[float, int, Node]
# Behind everything.
_LAST = (MAX_PRIORITY + 1, 0.0, 0)
# Uses beyond these do not count: what was in great demand once is overtaken in bounded time too.
MAX_HITS = 8
# Uses -> what they let expect. Whoever was used twice as often comes again a bit sooner, not twice
# as soon (benchmark 16).
_WORTH = (0.0, *(1.0 + math.log2(hits) for hits in range(1, MAX_HITS + 1)))
# The context length at which computing a row counts twice what it counts alone: between that of a
# small model (2,500) and a large one (16,000 and more).
CONTEXT_SCALE = 4096
_COST_PER_BLOCK = BLOCK_LEN / CONTEXT_SCALE
# Seconds without a use after which it does not matter any more how often there was one: a turn of a
# conversation that comes so late is as likely behind one other as behind five (benchmark 16).
FORGET_S = 600.0
# Of whole blocks that were used once, this share is used again (benchmark 16). Partly filled ones
# that are gone on with as often are worth as much for each of their rows.
_USUAL_SHARE = 0.25
_TAILS_TO_BEGIN = 32
_TAILS_TO_HALVE = 1024
# What goes because of where it lies may be worth so much more than what would go otherwise: a
# quarter of a single use, so that it is about as old (with half of one, benchmark 16 finds less).
PLACE_MARGIN = 0.25
# Stale entries are swept when the heap has doubled, but not while it is small.
_LEAST_SWEEP = 1024


class TailUse:
    """How often sequences go on behind partly filled blocks, of late: where answers follow other
    prompts than they were given for, or clients drop what they got, those are kept in vain."""

    def __init__(self) -> None:
        self._num_kept = _TAILS_TO_BEGIN
        self._num_used = round(_USUAL_SHARE * _TAILS_TO_BEGIN)

    def note_kept(self) -> None:
        """One entered the cache."""
        self._num_kept += 1
        if self._num_kept >= _TAILS_TO_HALVE:
            self._num_kept //= 2
            self._num_used //= 2

    def note_used(self) -> None:
        """A sequence goes on behind one."""
        self._num_used += 1

    def worth(self, num_tokens: int) -> float:
        """Of one with so many tokens, in whole blocks."""
        likely = min(1.0, self._num_used / (_USUAL_SHARE * self._num_kept))
        return likely * num_tokens / BLOCK_LEN


class EvictionOrder:
    """Leaves that nobody holds, by (priority, key, last use); GreedyDual's clock; deadlines.

    key = clock at the last use + (1 + log2 uses) x cost / blocks freed (after GDSF: Cherkasova
    1998). The clock rises to the key of each eviction, so what is not used again is overtaken by
    what comes: nothing has to decay. While the cache first fills, it rises from 0 to 1 with that: a
    pool's worth of blocks later, what was used once goes. Uses beyond the first are forgotten after
    FORGET_S. A subclass with another `key_of` is another order.

    Heaps with entries that may be stale: an entry counts while its number is the node's.
    """

    def __init__(self) -> None:
        self.clock = 0.0
        self.now = 0.0
        self.tails = TailUse()
        self._last_entry = 0
        self._heap: list[_Entry] = []
        self._deadlines: list[_Due] = []
        self._fading: list[_Due] = []
        self._sweep_at = _LEAST_SWEEP

    def note_filled(self, share: float) -> None:
        """The cache has so much of the pool's memory."""
        if share > self.clock:
            self.clock = share

    def push(self, node: Node, priority: int, until: float) -> None:
        """Make a leaf a candidate with this priority, which holds until then. Its old entry, if it
        has one, is stale from now on."""
        heapq.heappush(self._heap, self._entry(node, priority, until))
        if len(self._heap) + len(self._deadlines) + len(self._fading) > self._sweep_at:
            self._sweep()

    def replace_first(self, node: Node, priority: int, until: float = math.inf) -> None:
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
        if node.hits > 1 and self.now < node.used_s + FORGET_S:
            heapq.heappush(self._fading, (node.used_s + FORGET_S, node.entry, node))
        return priority, self.key_of(node), node.tick, self._last_entry, node

    def key_of(self, node: Node) -> float:
        """By the class's formula, as things are. Called when a leaf becomes evictable or is cut."""
        blocks = node.blocks
        hits = node.hits
        if hits > 1:
            if self.now >= node.used_s + FORGET_S:
                hits = 1
            elif hits > MAX_HITS:
                hits = MAX_HITS
        key = node.share * _WORTH[hits] * (1.0 + _COST_PER_BLOCK * (node.start + len(blocks[0])))
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

    def is_cheap(self, nodes: Iterable[Node]) -> bool:
        """Whether none of these is worth much more than what is evicted next."""
        if self.first() is None:
            return False
        priority, key = self._heap[0][:2]
        for node in nodes:
            held = priority_at(node.deadlines, self.now)
            if held is None:
                continue  # no use of it ended here, or their time is over
            if held[0] > priority or self.key_of(node) > key + PLACE_MARGIN:
                return False
        return True

    def second(self) -> tuple[int, float, int]:
        """What comes after `first` at the earliest; a leaf in front of it would be first, too."""
        return min(self._heap[1:3])[:3] if len(self._heap) > 1 else _LAST

    @property
    def next_due(self) -> float:
        """No candidate's priority ends, or uses are forgotten, before that."""
        return min(heap[0][0] if heap else math.inf for heap in (self._deadlines, self._fading))

    def next_deadline(self) -> float:
        """When the first priority of a candidate ends."""
        due = self._deadlines
        while due and due[0][2].entry != due[0][1]:
            heapq.heappop(due)
        return due[0][0] if due else math.inf

    def pop_due(self) -> Node | None:
        """A candidate whose priority has ended by now, or whose uses are forgotten; it is none any
        more."""
        for due in (self._deadlines, self._fading):
            while due and due[0][0] <= self.now:
                _, entry, node = heapq.heappop(due)
                if node.entry == entry:
                    node.entry = 0
                    return node
        return None

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if entry[4].entry == entry[3]]
        self._deadlines = [entry for entry in self._deadlines if entry[2].entry == entry[1]]
        self._fading = [entry for entry in self._fading if entry[2].entry == entry[1]]
        heapq.heapify(self._heap)
        heapq.heapify(self._deadlines)
        heapq.heapify(self._fading)
        num_left = len(self._heap) + len(self._deadlines) + len(self._fading)
        self._sweep_at = max(_LEAST_SWEEP, 2 * num_left)
