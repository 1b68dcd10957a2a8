"""What joins the engine to its prefix cache: what is found for a sequence, and what is kept of it.

Whatever is found, the output stays: a hit only means that rows are not computed again, whose KV
would have the same bits. So at least the last known token is always computed, as its row gives the
next one, and no hit reaches past a row whose logprobs are still to be told.

A sequence has a hold on the cache exactly while it has tables with positions in them, that is while
it runs (or has ended in the step that is being committed).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace.backends.layout import BLOCK_LEN, KVLayout
from headrace.engine.request import SequenceState
from headrace.kv.pool import BlockPool
from headrace.kv.radix.base import PrefixCache, RootKey
from headrace.kv.radix.tree import RadixCache
from headrace.kv.tables import blocks_to_hold, first_visible_block

# Sequences that are looked for in a step: those that it might admit. It rarely admits as many.
LOOKS_PER_STEP = 8


@dataclass(frozen=True, slots=True)
class Start:
    """Where a waiting sequence would begin. `num_tokens` positions need no computing. Beginning
    there takes `claim` blocks from the available ones; `busy` more come from sequences that hold
    them already."""

    num_tokens: int = 0
    claim: int = 0
    busy: int = 0


FROM_NOTHING = Start()


class Reuse:
    """Owns the prefix cache, if there is one, and the holds of sequences on it."""

    def __init__(
        self, layout: KVLayout, pool: BlockPool, numerics_id: str, chunk: int, *, is_on: bool
    ) -> None:
        self.cache: PrefixCache | None = RadixCache(layout, pool) if is_on else None
        self._layout = layout
        self._pool = pool
        self._numerics_id = numerics_id
        self._chunk = chunk
        self._num_full = sum(not group.window for group in layout.groups)

    def advance(self, now: float) -> None:
        """The time is `now`: what was to be kept until then goes."""
        if self.cache is not None:
            self.cache.advance(now)

    # ---- beginning ----

    def starts(self, seqs: Iterable[SequenceState]) -> Iterator[tuple[SequenceState, Start]]:
        """Where each waiting sequence would begin if it were admitted now.

        Only the first are looked for; the others begin where they would have when they last were.
        """
        for index, seq in enumerate(seqs):
            if self.cache is None:
                yield seq, FROM_NOTHING
            else:
                yield seq, self._look(self.cache, seq, index < LOOKS_PER_STEP)

    def _look(self, cache: PrefixCache, seq: SequenceState, is_new: bool) -> Start:
        num_busy = 0
        if is_new:
            key, since = self._key(seq), None if seq.look is None else seq.look.cursor
            look = cache.look(key, seq.tokens, _limit(seq), since)
            tail_len = look.num_tokens % BLOCK_LEN
            if tail_len and not self._has_room_for_tail(seq, look.num_busy):
                look = cache.look(key, seq.tokens, look.num_tokens - tail_len, look.cursor)
            # Whoever holds blocks now may have let go of them when an old look is used.
            seq.look, num_busy = look, min(look.num_busy, look.num_tokens // BLOCK_LEN)
        num_tokens = 0 if seq.look is None else seq.look.num_tokens
        return self._start_at(num_tokens, num_busy) if num_tokens else FROM_NOTHING

    def _has_room_for_tail(self, seq: SequenceState, num_busy: int) -> bool:
        """Whether the block that is copied fits beside all that the sequence will hold: it must not
        keep a sequence out that fits without it."""
        needed = blocks_to_hold(self._layout, len(seq.tokens) + 1, self._chunk)
        needed += len(self._layout.groups) - num_busy * self._num_full
        return needed <= self._pool.num_available

    def _start_at(self, num_tokens: int, num_busy: int) -> Start:
        depth = num_tokens // BLOCK_LEN
        seen = [depth - first_visible_block(g.window, num_tokens) for g in self._layout.groups]
        busy = num_busy * self._num_full
        # A tail takes its copy, and while that is made the block that is copied.
        copies = 2 * len(seen) if num_tokens % BLOCK_LEN else 0
        return Start(num_tokens, sum(seen) + copies - busy, busy)

    def begin(self, seqs: Sequence[SequenceState]) -> None:
        """Give admitted sequences what was found for them.

        All of them hold theirs before the first copy is allocated, which may evict what nobody
        holds.
        """
        cache = self.cache
        if cache is None:
            return
        found = [
            cache.match(self._key(s), s.tokens, 0 if s.look is None else s.look.num_tokens)
            for s in seqs
        ]
        for seq, match in zip(seqs, found, strict=True):
            if not seq.tables.start_from(match.tables, match.tail):
                raise RuntimeError("the scheduler planned more copies than blocks are free")
            seq.hold, seq.computed, seq.look = match.hold, match.num_tokens, None
            seq.request.note_start(match.num_tokens)

    # ---- keeping ----

    def written(self, seq: SequenceState, num_rows: int) -> None:
        """The last `num_rows` computed positions are new: keep the blocks that they filled."""
        if self.cache is not None and seq.hold is not None and seq.computed % BLOCK_LEN < num_rows:
            self.cache.insert(seq.hold, seq.tokens, seq.tables.tables, seq.computed)

    def fork(self, parent: SequenceState, twin: SequenceState) -> None:
        """`twin` has taken over the parent's tables."""
        if self.cache is not None and parent.hold is not None:
            twin.hold = self.cache.fork(parent.hold)

    def end(self, seq: SequenceState, *, used: bool, is_sound: bool = True) -> None:
        """Give back all blocks of a sequence, of which the cache keeps what it can; idempotent.

        `used`: it came to its end, or will come back. `is_sound`: its KV is what it should be.
        """
        hold, seq.hold = seq.hold, None
        if self.cache is None or hold is None:
            seq.tables.release()
            return
        if is_sound:
            # A block whose copy is still to be made holds nothing.
            with_tail = not seq.tables.pending_copies
            tables = seq.tables.tables
            self.cache.insert(hold, seq.tokens, tables, seq.computed, with_tail=with_tail)
        seq.tables.release()
        self.cache.release(hold, seq.request.options.retention, used=used)

    def abandon(self, prefix: Sequence[int], tails: Iterable[Sequence[int]], salt: str) -> None:
        """See EngineAPI.abandon."""
        if self.cache is not None:
            key = RootKey(self._numerics_id, salt=salt)
            for tail in tails:
                self.cache.abandon(key, array("i", [*prefix, *tail]), len(prefix))

    def _key(self, seq: SequenceState) -> RootKey:
        return RootKey(self._numerics_id, salt=seq.request.options.salt)


def _limit(seq: SequenceState) -> int:
    """The most positions that a sequence may take over (see the module docstring)."""
    request, limit = seq.request, len(seq.tokens) - 1
    wants_more = request.prompt_spec is not None and request.prompt_done < request.prompt_len
    if wants_more and seq.choice == 0:
        return min(limit, max(0, request.prompt_done - 1))
    return limit
