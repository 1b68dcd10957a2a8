"""Sequences over a pool and a prefix cache, with a memory that knows what every block holds: the
world that the tests of the cache act in."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from headrace.backends.layout import BLOCK_LEN, KVLayout
from headrace.kv.pool import BlockPool
from headrace.kv.radix.base import DEFAULT_RETENTION, Hold, PrefixCache, Retention, RootKey
from headrace.kv.tables import SequenceTables, first_visible_block

# (group, root key, the tokens up to a position): what the KV of the position depends on.
Content = tuple[int, RootKey, tuple[int, ...]]


@dataclass(eq=False)
class CachedSequence:
    """A sequence that reads and writes through the cache."""

    key: RootKey
    tokens: array[int]
    tables: SequenceTables
    hold: Hold
    computed: int = 0


@dataclass
class CacheWorld:
    """A pool, a cache and the sequences that use them; reads and writes are checked."""

    layout: KVLayout
    pool: BlockPool
    cache: PrefixCache
    live: list[CachedSequence] = field(default_factory=list)
    memory: dict[tuple[int, int], Content] = field(default_factory=dict)

    def start(self, key: RootKey, tokens: array[int], limit: int) -> int:
        """A new sequence that begins with what the cache has; how much that is."""
        found = self.cache.match(key, tokens, limit)
        seq = CachedSequence(key, tokens, SequenceTables(self.layout, self.pool), found.hold)
        seq.computed = found.num_tokens
        if not seq.tables.start_from(found.tables, found.tail):
            # Behind the tail windows see less than behind its whole blocks: those may not suffice.
            seq.tables.release()
            self.cache.release(seq.hold, DEFAULT_RETENTION, used=False)
            seq.hold, seq.computed = self.cache.match(key, tokens, 0).hold, 0
        self.live.append(seq)
        self._copy(seq)
        self._check_reads(seq)
        return found.num_tokens

    def run(self, seq: CachedSequence, num_rows: int) -> bool:
        """Compute rows; False when the pool has too few blocks."""
        end = min(len(seq.tokens), seq.computed + num_rows)
        if not seq.tables.grow(end):
            return False
        self._copy(seq)
        self._check_reads(seq)
        for position in range(seq.computed, end):
            for group, table in enumerate(seq.tables.tables):
                block = table[position // BLOCK_LEN]
                assert self.pool.count(block) == 1, "a shared block is written"
                content = (group, seq.key, tuple(seq.tokens[: position + 1]))
                self.memory[block, position % BLOCK_LEN] = content
        seq.computed = end
        return True

    def insert(self, seq: CachedSequence, *, with_tail: bool = False) -> None:
        self.cache.insert(
            seq.hold, seq.tokens, seq.tables.tables, seq.computed, with_tail=with_tail
        )
        self._check_reads(seq)

    def fork(self, seq: CachedSequence, tokens: array[int]) -> bool:
        """A second sequence that goes on with `tokens`; False when the pool has too few blocks."""
        tables = seq.tables.fork(seq.computed)
        if tables is None:
            return False
        hold = self.cache.fork(seq.hold)
        self.live.append(CachedSequence(seq.key, tokens, tables, hold, seq.computed))
        self._copy(self.live[-1])
        return True

    def end(self, seq: CachedSequence, retention: Retention, *, used: bool) -> None:
        self.live.remove(seq)
        seq.tables.release()
        self.cache.release(seq.hold, retention, used=used)

    def trim(self, seq: CachedSequence) -> None:
        seq.tables.trim(seq.computed)

    def _copy(self, seq: CachedSequence) -> None:
        copies = seq.tables.take_copies()
        for source, destination in copies:
            for slot in range(BLOCK_LEN):
                if (source, slot) in self.memory:
                    self.memory[destination, slot] = self.memory[source, slot]
        seq.tables.copies_done(copies)

    def _check_reads(self, seq: CachedSequence) -> None:
        """All that the next row sees is in its place."""
        for group, spec in enumerate(self.layout.groups):
            first = first_visible_block(spec.window, seq.computed) * BLOCK_LEN
            table = seq.tables.tables[group]
            for position in range(first, seq.computed):
                block = table[position // BLOCK_LEN]
                assert block >= 0, "a block that the next row sees is missing"
                wanted = (group, seq.key, tuple(seq.tokens[: position + 1]))
                assert self.memory[block, position % BLOCK_LEN] == wanted

    def check(self) -> None:
        """Every reference is known, and the sequences' tables are the cache's along held paths."""
        self.pool.check()
        counts = [0] * self.pool.num_blocks
        cached = list(self.cache.references())
        assert len(set(cached)) == len(cached) == self.cache.num_blocks
        for block in cached:
            counts[block] += 1
            assert self.pool.is_cached(block)
        for seq in self.live:
            for block in seq.tables.references():
                counts[block] += 1
        assert counts == [self.pool.count(b) for b in range(self.pool.num_blocks)]
        for seq in self.live:
            for spec, table in zip(self.layout.groups, seq.tables.tables, strict=True):
                if spec.window == 0:
                    held = min(seq.hold.num_blocks, len(table))
                    assert all(self.pool.is_cached(b) for b in table[:held])

    def drain(self) -> None:
        """End everything: whatever is idle can be evicted, and nothing else is left."""
        while self.live:
            self.end(self.live[-1], Retention(), used=True)
        assert self.pool.num_available == self.pool.num_blocks
        num_idle = self.pool.num_idle
        assert self.cache.evict(num_idle) == num_idle
        assert self.pool.num_free == self.pool.num_blocks
        assert self.cache.num_blocks == 0
