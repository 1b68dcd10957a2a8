"""What joins the engine to its prefix cache: what is found for a sequence, and what is kept of it.

Whatever is found, the output stays: a hit only means that rows are not computed again, whose KV
would have the same bits. So at least the last known token is always computed, as its row gives the
next one, and no hit reaches past a row whose logprobs are still to be told.

Nothing is computed twice at the same time: a sequence does not begin while another one that runs,
or that begins in the same step, is about to write a block that it needs. It waits no longer than
that block and those after it keep coming, and begins with what is there then.

A sequence has a hold on the cache exactly while it has tables with positions in them, that is while
it runs (or has ended in the step that is being committed).
"""

from __future__ import annotations

import contextlib
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.backends.layout import BLOCK_LEN, KVLayout
from headrace.engine.base import EngineStats
from headrace.engine.request import SequenceState, Status
from headrace.kv.pool import BlockPool
from headrace.kv.radix.base import PrefixCache, RootKey
from headrace.kv.radix.tree import RadixCache
from headrace.kv.tables import blocks_to_hold, first_visible_block

# Sequences that are looked for in a step: those that it might admit. It rarely admits as many.
LOOKS_PER_STEP = 16
# Beside them so many others, in turn, for the orders that depend on it.
TURNS_PER_STEP = 8
# Steps that a sequence waits while the one that it waits for computes nothing.
MAX_IDLE_WAITS = 32
# Sequences about to write equal blocks at the same place whose prompts are compared as a whole.
MAX_ALIKE = 4


@dataclass(frozen=True, slots=True)
class Start:
    """Where a waiting sequence would begin. `num_tokens` positions need no computing. Beginning
    there takes `claim` blocks from the available ones; `busy` more come from sequences that hold
    them already. `follows`: key of a waiting one that would write what it needs, or -1."""

    num_tokens: int = 0
    claim: int = 0
    busy: int = 0
    follows: int = -1


FROM_NOTHING = Start()


@dataclass(frozen=True, slots=True)
class _Writer:
    """A sequence that will, in its next steps, fill a block with known tokens: that up to `end`."""

    seq: SequenceState
    end: int
    is_running: bool


class _Writers:
    """Who writes what: by the first block that all of it begins with, where the written block ends,
    and that block itself. So hardly any prompts are compared that differ, however many wait that
    have much in common."""

    def __init__(self) -> None:
        self._writers: dict[tuple[str, bytes], dict[int, dict[bytes, list[_Writer]]]] = {}

    def add(self, seq: SequenceState, computed: int, *, is_running: bool) -> None:
        """A sequence that has, or would begin with, so many positions."""
        end = (computed // BLOCK_LEN + 1) * BLOCK_LEN
        if end <= len(seq.tokens):
            ends = self._writers.setdefault(_first_block(seq), {})
            writers = ends.setdefault(end, {}).setdefault(_block_to(seq, end), [])
            if len(writers) < MAX_ALIKE:
                writers.append(_Writer(seq, end, is_running))

    def find(self, seq: SequenceState) -> _Writer | None:
        """One that is about to write what a waiting sequence could use, and nobody has written; one
        that runs, if there is one."""
        found, ends = None, self._writers.get(_first_block(seq))
        if ends is None:
            return None
        limit, depth = _limit(seq), 0 if seq.look is None else seq.look.depth
        for end, blocks in ends.items():
            if not depth * BLOCK_LEN < end <= limit:
                continue
            for writer in blocks.get(_block_to(seq, end), ()):
                if seq.tokens[:end] == writer.seq.tokens[:end]:
                    if writer.is_running:
                        return writer
                    found = found or writer
        return found


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
        # Of each sequence that was looked for in this step, how much it may take over.
        self._limits: dict[int, int] = {}
        self._turn: list[SequenceState] = []
        self._turn_version = -1

    def advance(self, now: float) -> None:
        """The time is `now`: what was to be kept until then goes."""
        if self.cache is not None:
            self.cache.advance(now)

    def next_deadline(self) -> float:
        """When something goes that nobody has; inf for never."""
        return math.inf if self.cache is None else self.cache.next_deadline()

    # ---- beginning ----

    def starts(
        self, waiting: Iterable[SequenceState], prompts: Iterable[SequenceState]
    ) -> Iterator[tuple[SequenceState, Start]]:
        """Where each waiting sequence would begin if it were admitted now; those that had better
        wait for one of the running `prompts` are left out.

        Only the first are looked for; the others would begin where they were last seen to, or
        behind that.
        """
        cache, writers, num_looks = self.cache, _Writers(), 0
        if cache is None:
            yield from ((seq, FROM_NOTHING) for seq in waiting)
            return
        self._limits = {}
        for seq in prompts:
            writers.add(seq, seq.computed, is_running=True)
        for seq in waiting:
            writer = writers.find(seq)
            if writer is not None and writer.is_running and _waits_for(seq, writer):
                continue
            if num_looks < LOOKS_PER_STEP:
                num_looks += 1
                start = self._look(cache, seq)
                self._limits[seq.key] = start.num_tokens
            else:
                start = self._start_at(0 if seq.look is None else seq.look.num_tokens, 0)
            if writer is None:
                writers.add(seq, start.num_tokens, is_running=False)
            elif not writer.is_running:
                start = replace(start, follows=writer.seq.key)
            yield seq, start

    def look(self, seq: SequenceState) -> int:
        """Positions of a waiting sequence that it would find now."""
        return 0 if self.cache is None else self._look(self.cache, seq).num_tokens

    def turn(self, waiting: Iterable[SequenceState]) -> Iterator[tuple[SequenceState, int]]:
        """The next few of those that wait, and what they would find now."""
        cache = self.cache
        if cache is None or (not self._turn and cache.version == self._turn_version):
            return
        if not self._turn:
            self._turn_version = cache.version
            self._turn = [seq for seq in waiting if seq.status is Status.WAITING]
        for seq in self._turn[-TURNS_PER_STEP:]:
            if seq.status is Status.WAITING:
                yield seq, self._look(cache, seq).num_tokens
        del self._turn[-TURNS_PER_STEP:]

    def _look(self, cache: PrefixCache, seq: SequenceState) -> Start:
        key, since = self._key(seq), None if seq.look is None else seq.look.cursor
        look = cache.look(key, seq.tokens, _limit(seq), since)
        tail_len = look.num_tokens % BLOCK_LEN
        if tail_len and not self._has_room_for_tail(seq, look.num_busy):
            look = cache.look(key, seq.tokens, look.num_tokens - tail_len, look.cursor)
        seq.look = look
        return self._start_at(look.num_tokens, min(look.num_busy, look.num_tokens // BLOCK_LEN))

    def _has_room_for_tail(self, seq: SequenceState, num_busy: int) -> bool:
        """Whether the block that is copied fits beside all that the sequence will hold: it must not
        keep a sequence out that fits without it."""
        needed = blocks_to_hold(self._layout, len(seq.tokens) + 1, self._chunk)
        needed += len(self._layout.groups) - num_busy * self._num_full
        return needed <= self._pool.num_available

    def _start_at(self, num_tokens: int, num_busy: int) -> Start:
        """`num_busy`: 0 when that was not seen just now, as its holders may have let go since."""
        if num_tokens == 0:
            return FROM_NOTHING
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
        found = [cache.match(self._key(s), s.tokens, self._most(cache, s)) for s in seqs]
        for seq, match in zip(seqs, found, strict=True):
            if not seq.tables.start_from(match.tables, match.tail):
                raise RuntimeError("the scheduler planned more copies than blocks are free")
            seq.hold, seq.computed, seq.look = match.hold, match.num_tokens, None
            seq.request.note_start(match.num_tokens)

    def _most(self, cache: PrefixCache, seq: SequenceState) -> int:
        """Positions that an admitted sequence may take over: those that it was planned to. Of one
        that nobody looked for, all blocks were planned for as new ones; a copy would be one more,
        so it gets whole blocks only."""
        planned = self._limits.get(seq.key)
        if planned is not None:
            return planned
        look = cache.look(self._key(seq), seq.tokens, _limit(seq))
        return look.num_tokens // BLOCK_LEN * BLOCK_LEN

    # ---- keeping ----

    def written(self, seq: SequenceState, num_rows: int) -> None:
        """The last `num_rows` computed positions are new: keep the blocks that they filled.

        What was decoded enters up to a block later: sequences that began together would otherwise
        all do so in the same step.
        """
        if self.cache is None or seq.hold is None:
            return
        is_decoded = seq.computed > seq.request.prompt_len
        at = seq.computed + seq.key if is_decoded else seq.computed
        if at % BLOCK_LEN < num_rows:
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
            with contextlib.suppress(OverflowError):  # no token has such an id
                start = array("i", prefix)  # once: it may be long, and the tails many
                for tail in tails:
                    self.cache.abandon(key, start + array("i", tail), len(prefix))

    def report(self, stats: EngineStats) -> None:
        """Write what operators see of the cache."""
        if self.cache is not None:
            stats.num_cached_blocks = self.cache.num_blocks
            stats.num_idle_blocks = self._pool.num_idle
            stats.num_inserted_blocks = self.cache.counters.num_inserted
            stats.num_evicted_blocks = self.cache.counters.num_evicted

    def _key(self, seq: SequenceState) -> RootKey:
        return RootKey(self._numerics_id, salt=seq.request.options.salt)


def _limit(seq: SequenceState) -> int:
    """The most positions that a sequence may take over (see the module docstring)."""
    request, limit = seq.request, len(seq.tokens) - 1
    wants_more = request.prompt_spec is not None and request.prompt_done < request.prompt_len
    if wants_more and seq.choice == 0:
        return min(limit, max(0, request.prompt_done - 1))
    return limit


def _first_block(seq: SequenceState) -> tuple[str, bytes]:
    return seq.request.options.salt, seq.tokens[:BLOCK_LEN].tobytes()


def _block_to(seq: SequenceState, end: int) -> bytes:
    return seq.tokens[end - BLOCK_LEN : end].tobytes()


def _waits_for(seq: SequenceState, writer: _Writer) -> bool:
    """Whether to leave a sequence waiting for what another is about to write, once more. At most
    one step for every token that it could use, and some in which nothing comes."""
    at = (writer.seq.key, writer.seq.computed)
    seq.num_waits += 1
    seq.num_idle_waits = seq.num_idle_waits + 1 if at == seq.waits_at else 0
    seq.waits_at = at
    most = len(seq.tokens) + MAX_IDLE_WAITS
    return seq.num_idle_waits < MAX_IDLE_WAITS and seq.num_waits < most
