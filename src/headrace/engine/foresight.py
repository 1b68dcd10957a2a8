"""Foresight: what sequences will come to hold, as the allocation policy and the pool want to know.

Every sequence has a `Prospect`, which only this module writes: the forecast of its output's length
and the outlook that follows. Foresight owns their sum over the running ones. An outlook is computed
anew when its output has grown by a block, so that a step costs next to nothing for most sequences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from headrace.backends.layout import BLOCK_LEN, KVLayout
from headrace.engine.base import AllocationStats
from headrace.engine.request import SequenceState, Status
from headrace.engine.step_time import StepTime
from headrace.kv.extents import num_extents
from headrace.kv.lookahead.base import Allocation, AllocationPolicy, Room
from headrace.kv.lookahead.forecast import (
    PREFIX_LEN,
    Features,
    ForecastScore,
    LengthForecaster,
)
from headrace.kv.lookahead.policies import make_policy
from headrace.kv.lookahead.risk import Demand, Outlook, Sum, outlook
from headrace.kv.pool import BlockPool

# Blocks of a table are placed for the length that its output exceeds with this probability.
PLACED_FOR = 0.75
# A forecast learns from what has ended since when so many more have.
_RENEW_GROWTH = 1.25


class Foresight:
    """Owned by an engine, which tells of every sequence that joins the running ones or leaves."""

    def __init__(
        self, allocation: Allocation, layout: KVLayout, pool: BlockPool, chunk: int
    ) -> None:
        self.policy: AllocationPolicy = make_policy(allocation)
        self.score = ForecastScore()
        self.num_ended = 0
        self.num_extents = 0  # of the tables of all that ended
        self.num_tables = 0
        self.num_recomputed = 0  # rows that were computed before
        self.num_kept_free = 0  # blocks, in the last step
        self._layout = layout
        self._pool = pool
        self._chunk = chunk
        self._demand = Demand(layout, chunk)
        self._forecaster = LengthForecaster()
        self._total = Sum()
        self._num_most = 0
        self._num_assured = 0

    # ---- sequences ----

    def join(self, seq: SequenceState) -> None:
        """It runs from now on."""
        prospect = seq.prospect
        if self.policy.uses_forecasts:
            self._count(seq, self.outlook_of(seq), 1)
        prospect.is_joined = True
        if seq.computed or (seq.look is not None and seq.look.num_tokens):
            # What it shares with others is known when its tables are.
            prospect.renew_at = 0

    def leave(self, seq: SequenceState) -> None:
        """It does not run any more; ignored if it did not. Its tables are still there."""
        prospect = seq.prospect
        if not prospect.is_joined:
            return
        if self.policy.uses_forecasts:
            self._count(seq, prospect.known, -1)
        prospect.is_joined = False
        prospect.stale_at = 0
        seq.written = max(seq.written, seq.computed)
        if seq.status is Status.FINISHED:
            self.num_extents += sum(map(num_extents, seq.tables.tables))
            self.num_tables += len(seq.tables.tables)

    def preempt(self, seq: SequenceState) -> None:
        """It leaves, and will come again."""
        self.leave(seq)
        seq.num_preemptions += 1

    def end(self, seq: SequenceState, *, by_itself: bool = False, is_known: bool = True) -> None:
        """Its output is complete; or given up, so that nobody knows its length."""
        forecast, seq.prospect.forecast = seq.prospect.forecast, None
        if forecast is None or not self.policy.uses_forecasts:
            return
        forecast.end(seq.num_output, by_itself=by_itself)
        if is_known:
            self.score.add(forecast, seq.num_output)
            self.num_ended += 1

    def note_rows(self, rows: Iterable[tuple[SequenceState, int]]) -> None:
        """So many rows of each are about to be counted as computed."""
        for seq, num_rows in rows:
            if seq.computed < seq.written:
                self.num_recomputed += min(num_rows, seq.written - seq.computed)

    def note_refused(self, num_refused: int) -> None:
        """A step is planned, in which the policy refused so many that fit."""
        self.num_kept_free = self._pool.num_available if num_refused else 0

    def stats(self) -> AllocationStats:
        """See there."""
        return AllocationStats(
            num_recomputed=self.num_recomputed,
            num_extents=self.num_extents,
            num_tables=self.num_tables,
            num_kept_free=self.num_kept_free,
            num_forecast=self.score.num_outputs,
            losses=list(self.score.losses),
            covered=list(self.score.covered),
        )

    # ---- what the scheduler asks ----

    def look(self, running: Iterable[SequenceState]) -> None:
        """Renew the outlooks that are due."""
        if not self.policy.uses_forecasts:
            return
        for seq in running:
            if len(seq.tokens) >= seq.prospect.renew_at:
                before = seq.prospect.known
                self._renew(seq)
                self._count(seq, before, -1)
                self._count(seq, seq.prospect.known, 1)

    def kept(self, seq: SequenceState) -> int:
        """Positions whose KV a preemption of a running sequence leaves: others hold it, too."""
        if not self._pool.num_shared:
            return 0
        num = min(self._pool.num_leading_shared(table) for table in seq.tables.tables)
        return min(seq.computed, num * BLOCK_LEN)

    def outlook_of(self, seq: SequenceState) -> Outlook:
        """Of a sequence that waits, by what is known now."""
        prospect = seq.prospect
        if self.num_ended >= prospect.stale_at:
            self._renew(seq)
        return prospect.known

    def is_short(self, running: Collection[SequenceState]) -> bool:
        """Whether the running sequences might need more blocks in this step than are available.
        Only then may it preempt, and only then does it matter what that would free and keep."""
        available = self._pool.num_available
        most = self._chunk // BLOCK_LEN + 1 + 2 * len(running)
        if available >= most * len(self._layout.groups):
            return False
        needed = 0
        for seq in running:
            needed += seq.tables.missing(min(len(seq.tokens), seq.computed + self._chunk))
        return needed > available

    def room(self, model: StepTime | None) -> Room:
        """The state of the pool beside the running sequences; the sum is Foresight's own."""
        return Room(
            self._pool.num_blocks,
            self._pool.num_blocks - self._pool.num_shared,
            total=self._total,
            num_most=self._num_most,
            num_assured=self._num_assured,
            num_groups=len(self._layout.groups),
            base_s=model.base if model is not None else 0.0,
            prompt_row_s=model.prompt_row if model is not None else 0.0,
        )

    def check(self, running: Iterable[SequenceState]) -> None:
        """The sums are those of the running sequences, or AssertionError."""
        joined, most = Sum(), 0
        for seq in running:
            if not seq.prospect.is_joined:
                raise AssertionError(f"sequence {seq.key} runs and is not counted")
            joined.add(seq.prospect.known)
            most += seq.prospect.known.most
        if self.policy.uses_forecasts and (self._total, self._num_most) != (joined, most):
            raise AssertionError("what is counted is not the sum over the running sequences")

    def _renew(self, seq: SequenceState) -> None:
        """Compute an outlook anew, and how far its tables should find room."""
        prospect, length, prompt_len = seq.prospect, seq.num_output, seq.request.prompt_len
        forecast, is_stale = prospect.forecast, self.num_ended >= prospect.stale_at
        if is_stale:
            prospect.stale_at = 1 + int(_RENEW_GROWTH * self.num_ended)
        if forecast is None or (is_stale and length == 0):
            forecast = prospect.forecast = self._forecaster.begin(features_of(seq))
        elif length:
            forecast.reach(length)
            if is_stale:
                forecast.renew()
        prospect.known = outlook(
            forecast,
            self._demand,
            prompt_len=prompt_len,
            length=length,
            num_shared=self._num_shared(seq) if prospect.is_joined else 0,
            num_choices=1 + seq.to_fork,
        )
        # Choices that fork off the first token are counted on their own from there. Sequences that
        # began together are not due in the same step.
        wait = BLOCK_LEN - (len(seq.tokens) + seq.key) % BLOCK_LEN
        prospect.renew_at = len(seq.tokens) + (1 if seq.to_fork else wait)
        expected = self.policy.name is Allocation.LOOKAHEAD
        seq.tables.expected_len = prompt_len + (
            forecast.quantile(PLACED_FOR, length) if expected else forecast.features.max_tokens
        )

    def _num_shared(self, seq: SequenceState) -> int:
        """Of its blocks those that others hold, too: they lie at the beginning."""
        if not self._pool.num_shared:
            return 0
        return sum(self._pool.num_leading_shared(table) for table in seq.tables.tables)

    def _count(self, seq: SequenceState, known: Outlook, times: int) -> None:
        if times > 0:
            self._total.add(known)
        else:
            self._total.remove(known)
        self._num_most += times * known.most
        if self.policy.is_assured(seq):
            self._num_assured += times * known.most


def features_of(seq: SequenceState) -> Features:
    """What is known of an output before it begins. Requests with one salt are one tenant's; what
    else comes to tell requests apart (tools, a grammar) belongs into `kind`."""
    request = seq.request
    params, prompt = request.params, request.prompt
    can_end = request.stop_ids or params.stop
    return Features(
        max_tokens=max(1, request.max_len - len(prompt)),
        prompt_len=len(prompt),
        min_tokens=params.min_tokens,
        is_fixed=not can_end,
        tenant=request.options.salt or None,
        kind=(bool(params.stop), bool(params.stop_token_ids), params.n > 1),
        prefix=prompt[:PREFIX_LEN].tobytes(),
        prompt=hash(prompt.tobytes()),
    )
