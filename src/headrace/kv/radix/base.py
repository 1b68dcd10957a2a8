"""The prefix cache's seam: blocks of written KV, found by the exact tokens that led to them.

Contract
- The cache holds one reference of the pool (`BlockPool.cache`) to each block in it. A block that
  nobody else holds is idle; the pool calls `evict` when it needs idle blocks.
- A position of the tree holds, per layer group, a block or none. Groups with full attention always
  have theirs; window groups may have gaps. A hit at position p needs of a window group only the
  blocks that a row at p can see.
- Keys are compared field by field and tokens one by one. Nothing is found by a digest.
- A block enters the cache only when its KV is written, and is never written again. The last, partly
  filled block of a sequence enters when the sequence lets go of it; who extends it takes a copy.
- A `Hold` keeps the path to its node from being evicted. `match` gives one, `insert` moves it to
  the end of what was inserted, `release` ends it. A sequence that has a hold has a reference to
  every full-attention block of the held path: its tables are the cache's blocks, because `insert`
  puts the cache's block in the place of an equal one that the sequence computed again (equal bits,
  by the numeric contract). So every idle block can be evicted, whatever is held.
- Eviction takes single blocks from the ends of paths, in order of (priority, key, last use). The
  key is GreedyDual's: clock + worth of its hits x cost of computing the block again / number of
  blocks that dropping it frees; the clock is the key of the last eviction. The cost is in rows, of
  which a row in a long context counts for more; those of a partly filled block count by how often
  such blocks are gone on with. Window blocks that only a hit inside a run would need go before any
  of that.
- Time is what `advance` was told last; nothing here reads a clock. What has expired goes with the
  next such call, but not too much at once: the rest goes with the next ones.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

MIN_PRIORITY, DEFAULT_PRIORITY, MAX_PRIORITY = 0, 50, 100
MAX_TTL_S = 30 * 86400.0
NO_BLOCK = -1
# Why a block left the cache: somebody needed its memory; only a hit inside a run needed it; its
# time was over; a longer block holds the same; the cache was cleared.
CAUSES = ("capacity", "window", "expired", "replaced", "cleared")


@dataclass(frozen=True, slots=True)
class RootKey:
    """What two sequences must have in common beside their tokens to share KV.

    `numerics_id`: the backend's digest of model, packing, KV type and layout. `adapter`: generation
    of the adapter's load, 0 for none. `salt`: the tenant's or the client's own, any text.
    """

    numerics_id: str
    adapter: int = 0
    salt: str = ""


@dataclass(frozen=True, slots=True)
class Retention:
    """How a request wants its KV kept: lower priorities are evicted first; `ttl_s` seconds after
    its last use it is forgotten (None: only when memory is needed)."""

    priority: int = DEFAULT_PRIORITY
    ttl_s: float | None = None


DEFAULT_RETENTION = Retention()

# Priority -> time until which it holds. What several uses of a node ask for is joined by priority.
Deadlines = Mapping[int, float]
NO_DEADLINES: Deadlines = {}
DEFAULT_DEADLINES: Deadlines = {DEFAULT_PRIORITY: math.inf}
# Of what nobody will go on with: below every priority that can be asked for.
ABANDONED: Deadlines = {MIN_PRIORITY - 1: math.inf}
# Priority, and until when, of what is to be dropped with the next step: below those.
OVERDUE = MIN_PRIORITY - 2, -math.inf


def deadlines_of(retention: Retention, now: float) -> Deadlines:
    if retention == DEFAULT_RETENTION:
        return DEFAULT_DEADLINES
    return {retention.priority: math.inf if retention.ttl_s is None else now + retention.ttl_s}


def join_deadlines(a: Deadlines, b: Deadlines) -> Deadlines:
    """The later deadline of every priority."""
    if not a:
        return b
    if a is b or not b:
        return a
    return {p: max(a.get(p, -math.inf), b.get(p, -math.inf)) for p in {**a, **b}}


def priority_at(deadlines: Deadlines, now: float) -> tuple[int, float] | None:
    """The highest priority that still holds, and until when; None when all are over."""
    if deadlines is DEFAULT_DEADLINES:
        return DEFAULT_PRIORITY, math.inf
    return max(((p, until) for p, until in deadlines.items() if until > now), default=None)


class Hold(Protocol):
    """A pin on the path to a node. `num_blocks`: whole or partly filled blocks of that path."""

    @property
    def num_blocks(self) -> int: ...


@dataclass(slots=True)
class Match:
    """KV that a sequence can start from. The receiver owns a reference to every block in it.

    `tables`: one per layer group, `num_blocks` entries, -1 where no row at `num_tokens` or later
    looks. `tail`: one block per group whose first `tail_len` positions continue the tables; to be
    copied, never written. Empty when tail_len is 0.
    """

    hold: Hold
    num_blocks: int
    tables: list[array[int]]
    tail: list[int] = field(default_factory=list)
    tail_len: int = 0
    num_tokens: int = 0


@dataclass(slots=True)
class Look:
    """What `match` would find. `place` names the end of the known whole blocks: two sequences with
    equal places and an equal next block need the same one. `num_busy`: of the full-attention blocks
    (of one group) those that some sequence holds already. `cursor` speeds up the next look."""

    num_tokens: int
    place: tuple[object, int]
    num_busy: int
    cursor: object = None

    @property
    def depth(self) -> int:
        """Whole blocks of the tokens that are known, whether or not windows let them be used."""
        return self.place[1]


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """A change of the content, for routers. Blocks are named by their id in the first group, which
    is theirs until their eviction. Insert: `blocks` follow `parent` (-1: the root of `key`) and
    hold `tokens` (the last of them perhaps partly). Evict: `blocks` are gone."""

    kind: str
    blocks: tuple[int, ...]
    key: RootKey | None = None
    parent: int = NO_BLOCK
    tokens: tuple[int, ...] = ()


@dataclass(slots=True)
class CacheCounters:
    """Since the cache was made, in blocks of all groups."""

    num_inserted: int = 0
    num_evicted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))


class PrefixCache(Protocol):
    """See the module docstring. Tokens are `array("i")`; `limit` cuts what is looked at."""

    counters: CacheCounters

    @property
    def num_blocks(self) -> int:
        """Blocks of all groups in the cache."""
        ...

    @property
    def version(self) -> int:
        """Changes whenever a look could have another answer."""
        ...

    def look(self, key: RootKey, tokens: array[int], limit: int, since: object = None) -> Look:
        """What `match` would find; changes nothing. `since`: the cursor of a look for the same
        tokens."""
        ...

    def match(self, key: RootKey, tokens: array[int], limit: int) -> Match:
        """The longest usable prefix of tokens[:limit], held and referenced for the caller."""
        ...

    def fork(self, hold: Hold) -> Hold:
        """Another hold on the same path."""
        ...

    def insert(
        self,
        hold: Hold,
        tokens: array[int],
        tables: Sequence[array[int]],
        computed: int,
        *,
        with_tail: bool = False,
    ) -> None:
        """Add the whole blocks of tokens[:computed] to the held path, and hold it to their end.

        `tables` are those of the sequence, whose KV is written up to `computed`. Entries whose
        block the cache has already are replaced by the cache's, references included. `with_tail`:
        the partly filled last block too, if it is worth a copy; nobody may write it from now on.
        """
        ...

    def release(
        self, hold: Hold, retention: Retention = DEFAULT_RETENTION, *, used: bool = True
    ) -> None:
        """End a hold. Counts as a use of its path, or, if not `used`, as an abandoned one, which is
        evicted before everything that was used as recently."""
        ...

    def abandon(self, key: RootKey, tokens: array[int], prefix_len: int) -> None:
        """Nobody will go on with these tokens: what is cached of them beyond the first `prefix_len`
        and leads to nothing else is evicted before everything else, until it is used again."""
        ...

    def evict(self, num_blocks: int) -> int:
        """Free idle blocks until `num_blocks` more are free, or none is left; the number freed."""
        ...

    def advance(self, now: float) -> None:
        """The time is `now`; of what has expired, the next piece is dropped."""
        ...

    def next_deadline(self) -> float:
        """When something expires that nobody holds; inf if nothing will. Not after `now`: call
        `advance` again."""
        ...

    def clear(self) -> int:
        """Drop everything that is not held; the number of blocks that left the cache."""
        ...

    def references(self) -> Iterator[int]:
        """Every block in the cache, once."""
        ...

    def take_events(self) -> list[CacheEvent]:
        """Changes since the last call (none unless recording is on)."""
        ...
