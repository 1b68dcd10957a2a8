"""NaiveCache: the prefix cache as plain lists, one entry per block; the oracle of tests.

It knows no tree: an entry carries all tokens up to its end, a use remembers how far its path still
reaches, and everything is found by going through all of them. Where layers have windows, it drops
their blocks only with the whole position or when nothing else is left, so it is an oracle of
eviction for full attention only; `best_hit` is one of matching for every layout.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.backends.layout import BLOCK_LEN, KVLayout
from headrace.kv.pool import BlockPool
from headrace.kv.radix.base import (
    ABANDONED,
    DEFAULT_RETENTION,
    NO_BLOCK,
    NO_DEADLINES,
    CacheCounters,
    CacheEvent,
    Deadlines,
    Hold,
    Look,
    Match,
    Retention,
    RootKey,
    deadlines_of,
    join_deadlines,
    priority_at,
)
from headrace.kv.radix.order import CONTEXT_SCALE, FORGET_S, MAX_HITS, TailUse
from headrace.kv.radix.tree import MIN_TAIL_LEN
from headrace.kv.tables import blocks_for, first_visible_block

Tokens = tuple[int, ...]


@dataclass(eq=False)
class Entry:
    """One block per group: that of the last BLOCK_LEN (or, of a tail, fewer) of `tokens`."""

    key: RootKey
    tokens: Tokens
    blocks: list[int]

    @property
    def parent(self) -> Tokens:
        return self.tokens[: (len(self.tokens) - 1) // BLOCK_LEN * BLOCK_LEN]


@dataclass(eq=False)
class NaiveHold:
    """Implements base.Hold."""

    key: RootKey
    path: Tokens

    @property
    def num_blocks(self) -> int:
        return blocks_for(len(self.path))


@dataclass(eq=False)
class _Use:
    """A hold that was released, and the part of its path that is still in the cache."""

    key: RootKey
    reach: Tokens
    hits: int
    base: float
    tick: int
    used_s: float
    share: float
    deadlines: Deadlines


def best_hit(
    entries: Iterable[Entry], layout: KVLayout, key: RootKey, tokens: Tokens, min_tail_len: int
) -> tuple[int, list[Entry], Entry | None]:
    """The most tokens that can be reused, the entries of their whole blocks, and the one whose
    beginning continues them. Tries every length."""
    own = [e for e in entries if e.key == key]
    by_tokens = {e.tokens: e for e in own}
    for length in range(len(tokens), 0, -1):
        whole, rest = divmod(length, BLOCK_LEN)
        if 0 < rest < min_tail_len:
            continue
        path = [by_tokens.get(tokens[: (i + 1) * BLOCK_LEN]) for i in range(whole)]
        found = [e for e in path if e is not None]
        if len(found) < whole or not _sees_all(found, layout, length):
            continue
        if rest == 0:
            return length, found, None
        start = tokens[: whole * BLOCK_LEN]
        for tail in own:
            is_next = tail.parent == start and tail.tokens[:length] == tokens[:length]
            if is_next and min(tail.blocks) >= 0:
                return length, found, tail
    return 0, [], None


def _sees_all(path: Sequence[Entry], layout: KVLayout, length: int) -> bool:
    return all(
        entry.blocks[group] >= 0
        for group, spec in enumerate(layout.groups)
        for entry in path[first_visible_block(spec.window, length) :]
    )


class NaiveCache:
    """Implements base.PrefixCache. Parameters as of tree.RadixCache."""

    def __init__(
        self,
        layout: KVLayout,
        pool: BlockPool,
        *,
        min_tail_len: int = MIN_TAIL_LEN,
    ) -> None:
        self.counters = CacheCounters()
        self.version = 0
        self.entries: list[Entry] = []
        self._layout = layout
        self._pool = pool
        self._min_tail_len = min_tail_len
        self._holds: list[NaiveHold] = []
        self._uses: list[_Use] = []
        self._clock = 0.0
        self._tails = TailUse()
        self._now = 0.0
        self._tick = 0
        pool.reclaim = self.evict

    @property
    def num_blocks(self) -> int:
        return sum(1 for _ in self.references())

    def references(self) -> Iterator[int]:
        """See base.PrefixCache.references."""
        return (b for e in self.entries for b in e.blocks if b >= 0)

    def take_events(self) -> list[CacheEvent]:
        """Tells nothing."""
        return []

    # ---- finding ----

    def look(self, key: RootKey, tokens: array[int], limit: int, since: object = None) -> Look:
        """See base.PrefixCache.look."""
        wanted = tuple(tokens[:limit])
        length, _, _ = best_hit(self.entries, self._layout, key, wanted, self._min_tail_len)
        path: list[Entry] = []
        while (entry := self._find(key, wanted[: (len(path) + 1) * BLOCK_LEN])) is not None:
            if len(entry.tokens) <= len(path) * BLOCK_LEN or len(entry.tokens) % BLOCK_LEN:
                break
            path.append(entry)
        full = next((g for g, s in enumerate(self._layout.groups) if not s.window), None)
        num_busy = 0
        if full is not None:
            num_busy = sum(self._pool.count(e.blocks[full]) > 1 for e in path)
        known = wanted[: len(path) * BLOCK_LEN]
        return Look(length, ((key, known), len(path)), num_busy)

    def match(self, key: RootKey, tokens: array[int], limit: int) -> Match:
        """See base.PrefixCache.match."""
        wanted = tuple(tokens[:limit])
        length, path, tail = best_hit(self.entries, self._layout, key, wanted, self._min_tail_len)
        tables = []
        for group, spec in enumerate(self._layout.groups):
            first = first_visible_block(spec.window, length)
            seen = [e.blocks[group] for e in path[first:]]
            tables.append(array("i", [NO_BLOCK] * min(first, len(path)) + seen))
            self._pool.share(seen)
        source = list(tail.blocks) if tail is not None else []
        self._pool.share(source)
        hold = NaiveHold(key, wanted[: len(path) * BLOCK_LEN])
        self._holds.append(hold)
        if any(
            e.key == key
            and e.parent == hold.path
            and len(e.tokens) % BLOCK_LEN
            and wanted[: len(e.tokens)] == e.tokens
            for e in self.entries
        ):
            self._tails.note_used()
        return Match(hold, len(path), tables, source, length % BLOCK_LEN, length)

    def fork(self, hold: Hold) -> Hold:
        """See base.PrefixCache.fork."""
        assert isinstance(hold, NaiveHold)
        self._holds.append(NaiveHold(hold.key, hold.path))
        return self._holds[-1]

    def _find(self, key: RootKey, tokens: Tokens) -> Entry | None:
        return next((e for e in self.entries if e.key == key and e.tokens == tokens), None)

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
        assert isinstance(hold, NaiveHold)
        if len(hold.path) % BLOCK_LEN:
            raise ValueError("a path ends with its partly filled block")
        written = tuple(tokens[:computed])
        for index in range(len(hold.path) // BLOCK_LEN, computed // BLOCK_LEN):
            path = written[: (index + 1) * BLOCK_LEN]
            entry = self._find(hold.key, path)
            if entry is None:
                self._add(hold.key, path, [table[index] for table in tables])
            else:
                self._unify(entry, tables, index)
            hold.path = path
        if with_tail and computed % BLOCK_LEN >= self._min_tail_len:
            siblings = [e for e in self.entries if e.key == hold.key and e.parent == hold.path]
            if not any(e.tokens[:computed] == written for e in siblings):
                self._tails.note_kept()
                self._add(hold.key, written, [table[computed // BLOCK_LEN] for table in tables])
                hold.path = written
        self.version += 1

    def _add(self, key: RootKey, tokens: Tokens, blocks: list[int]) -> None:
        entry = Entry(key, tokens, blocks)
        for other in list(self.entries):
            is_prefix = other.key == key and other.parent == entry.parent
            if is_prefix and tokens[: len(other.tokens)] == other.tokens and not self._held(other):
                self._drop(other, "replaced")
        self.entries.append(entry)
        held = [b for b in blocks if b >= 0]
        self._pool.cache(held)
        self._count_inserted(len(held))

    def _count_inserted(self, num: int) -> None:
        self.counters.num_inserted += num
        self._clock = max(self._clock, self.num_blocks / self._pool.num_blocks)

    def _unify(self, entry: Entry, tables: Sequence[array[int]], index: int) -> None:
        for group, table in enumerate(tables):
            own, kept = table[index], entry.blocks[group]
            if own in (kept, NO_BLOCK):
                continue
            if kept == NO_BLOCK:
                self._pool.cache((own,))
                entry.blocks[group] = own
                self._count_inserted(1)
            else:
                self._pool.share((kept,))
                self._pool.release((own,))
                table[index] = kept

    # ---- uses and going ----

    def release(
        self, hold: Hold, retention: Retention = DEFAULT_RETENTION, *, used: bool = True
    ) -> None:
        """See base.PrefixCache.release."""
        assert isinstance(hold, NaiveHold)
        self._holds.remove(hold)
        self._tick += 1
        until = deadlines_of(retention, self._now)
        tail_len = len(hold.path) % BLOCK_LEN
        share = self._tails.worth(tail_len) if tail_len else 1.0
        use = _Use(hold.key, hold.path, used, self._clock, self._tick, self._now, share, until)
        self._uses.append(use)
        self._expire()

    def abandon(self, key: RootKey, tokens: array[int], prefix_len: int) -> None:
        """See base.PrefixCache.abandon."""
        wanted, kept = tuple(tokens), prefix_len // BLOCK_LEN * BLOCK_LEN
        own = [e for e in self.entries if e.key == key]
        path = [e for e in own if wanted[: len(e.tokens)] == e.tokens]
        gone: list[Tokens] = []
        for entry in sorted(path, key=lambda e: -len(e.tokens)):
            children = [e.tokens for e in own if e.parent == entry.tokens]
            if len(entry.tokens) <= kept or any(tokens not in gone for tokens in children):
                break
            gone.append(entry.tokens)
        for use in [u for u in self._uses if u.key == key and u.reach in gone]:
            self._uses.append(replace(use, hits=0, deadlines=ABANDONED))
            use.reach = gone[-1][: (len(gone[-1]) - 1) // BLOCK_LEN * BLOCK_LEN]

    def advance(self, now: float) -> None:
        """See base.PrefixCache.advance."""
        self._now = max(self._now, now)
        self._expire()

    def next_deadline(self) -> float:
        """See base.PrefixCache.next_deadline."""
        leaves = [priority_at(self._deadlines(e), self._now) for e in self._leaves()]
        return min((held[1] for held in leaves if held is not None), default=math.inf)

    def evict(self, num_blocks: int) -> int:
        """See base.PrefixCache.evict."""
        before = self._pool.num_free
        goal = before + num_blocks
        while self._pool.num_free < goal:
            entry = min(self._leaves(), key=self._order, default=None)
            if entry is None:
                break
            self._clock = max(self._clock, self._order(entry)[1])
            self._drop(entry, "capacity")
            self._expire()
        self._drop_windows(goal)
        return self._pool.num_free - before

    def clear(self) -> int:
        """See base.PrefixCache.clear."""
        before = self.num_blocks
        while leaves := self._leaves():
            self._drop(leaves[0], "cleared")
        return before - self.num_blocks

    def _held(self, entry: Entry) -> bool:
        return any(h.key == entry.key and h.path == entry.tokens for h in self._holds)

    def _leaves(self) -> list[Entry]:
        inner = {(e.key, e.parent) for e in self.entries}
        free = [e for e in self.entries if (e.key, e.tokens) not in inner]
        return [e for e in free if not self._held(e)]

    def _uses_of(self, entry: Entry) -> list[_Use]:
        return [u for u in self._uses if u.key == entry.key and u.reach == entry.tokens]

    def _deadlines(self, entry: Entry) -> Deadlines:
        joined = NO_DEADLINES
        for use in self._uses_of(entry):
            joined = join_deadlines(joined, use.deadlines)
        return joined

    def _order(self, entry: Entry) -> tuple[int, float, int]:
        uses = self._uses_of(entry)
        held = priority_at(self._deadlines(entry), self._now)
        assert held is not None
        last = max(uses, key=lambda u: u.tick)
        hits = min(MAX_HITS, sum(u.hits for u in uses))
        if self._now >= last.used_s + FORGET_S:
            hits = min(hits, 1)
        key = last.share if len(entry.tokens) % BLOCK_LEN else 1.0
        key *= 1.0 + BLOCK_LEN / CONTEXT_SCALE * blocks_for(len(entry.tokens))
        key *= 1.0 + math.log2(hits) if hits else 0.0
        if len(entry.blocks) > 1:
            key /= max(1, sum(b >= 0 for b in entry.blocks))
        return held[0], max(u.base for u in uses) + key, last.tick

    def _expire(self) -> None:
        while True:
            leaves = self._leaves()
            over = [e for e in leaves if priority_at(self._deadlines(e), self._now) is None]
            if not over:
                return
            self._drop(over[0], "expired")

    def _drop(self, entry: Entry, cause: str) -> None:
        self.entries.remove(entry)
        gone = [b for b in entry.blocks if b >= 0]
        self._pool.uncache(gone)
        self.counters.num_evicted[cause] += len(gone)
        for use in self._uses_of(entry):
            use.reach = entry.parent
        self.version += 1

    def _drop_windows(self, goal: int) -> None:
        windows = [g for g, spec in enumerate(self._layout.groups) if spec.window]
        for entry in self.entries:
            for group in windows:
                block = entry.blocks[group]
                if block >= 0 and self._pool.count(block) == 1 and self._pool.num_free < goal:
                    self._pool.uncache((block,))
                    entry.blocks[group] = NO_BLOCK
                    self.counters.num_evicted["window"] += 1
