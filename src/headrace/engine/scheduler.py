"""The scheduler: a pure function from a snapshot to what the next step runs.

Policy, under one budget of tokens: decodes first, the rest for prompts. Prompts get rows by rank,
whether they run already or wait, so that a long one amid its chunks does not hold up a short one.
Beside decodes a chunk is no longer than the step may take (`Pace`).

A waiting sequence that does not fit (blocks, slots, the cap on cut prompts) is passed over, so that
it blocks nobody, but only so often: then nobody is admitted before it, and it fits as soon as
enough of the running have ended. Whether one that does fit is admitted, and who is preempted when
blocks run out (its KV is recomputed later), is up to the allocation policy (kv.lookahead.base),
which always spares somebody, so that there is progress. Nobody is admitted in a step that preempts,
and a preempted sequence is admitted again only when all it needs is free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from headrace.backends.layout import BLOCK_LEN, KVLayout
from headrace.engine.pace import Pace
from headrace.engine.step_time import StepLoad
from headrace.engine.views import SchedulerView, SequenceView
from headrace.kv.lookahead.base import AllocationPolicy
from headrace.kv.tables import blocks_for, blocks_to_hold

# What the first prompt of a step is cut to at least, however long its rows take: fewer take hardly
# less. Later ones are not cut shorter than a block.
MIN_CHUNK = 4
MIN_LATER_CHUNK = BLOCK_LEN


class ScheduledRows(msgspec.Struct, frozen=True, gc=False):
    """Run `num_rows` rows of sequence `key` from position `computed`."""

    key: int
    num_rows: int


@dataclass(slots=True)
class Decision:
    """`preempted` are to be freed first, then `admitted` join the running, then `rows` run.

    Rows are in running order, decodes and prefill chunks mixed as admitted. `passed`: for every
    waiting sequence that did not fit, how many were admitted that came after it. `load`: what the
    rows amount to. `bound_s`: how long the step may take; 0 when nothing bounds it. `held_back`:
    how many that did fit the policy refused. `spare_blocks`: free ones that none of this needs.
    """

    rows: list[ScheduledRows] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    passed: dict[int, int] = field(default_factory=dict)
    load: StepLoad = field(default_factory=StepLoad)
    bound_s: float = 0.0
    held_back: int = 0
    spare_blocks: int = 0


class _Budget:
    """Tokens, blocks and seconds left while a decision is made."""

    def __init__(self, layout: KVLayout, tokens: int, blocks: int) -> None:
        self.num_groups = len(layout.groups)
        self.tokens = tokens
        self.blocks = blocks
        self.load = StepLoad()
        self.seconds = math.inf
        self.bound_s = 0.0
        self._pace: Pace | None = None
        self._has_prompt = False  # since there is a pace

    def start_prompts(self, pace: Pace | None) -> None:
        """From here on rows are of prompts. Without decodes nobody waits for the step to end."""
        if pace is not None and self.load.decode_rows:
            self._pace = pace
            self.bound_s = pace.bound_s(self.load)
            self.seconds = pace.prompts_s(self.load)
            if pace.is_alone:
                self.tokens = 0

    def missing(self, seq: SequenceView, num_rows: int) -> int:
        more = blocks_for(seq.computed + num_rows) - seq.table_len
        return max(0, more) * self.num_groups + seq.claim

    def rows_that_fit(self, seq: SequenceView, num_rows: int) -> int:
        """Largest count <= num_rows whose blocks are free."""
        if self.missing(seq, num_rows) <= self.blocks:
            return num_rows
        room = seq.table_len + (self.blocks - seq.claim) // self.num_groups
        return max(0, min(num_rows, room * BLOCK_LEN - seq.computed))

    def chunk(self, seq: SequenceView) -> int:
        """Rows of a prompt that tokens and seconds allow. The first prompt of a step gets a chunk
        in any case."""
        wanted = min(seq.known - seq.computed, self.tokens)
        if self._pace is None:
            return wanted
        model = self._pace.model
        if wanted == 1:
            # All the rest was found in the cache: the step is as long as with one more decode.
            rows = int(model.rows_s(seq.computed, 1) <= self.seconds)
        else:
            rows = model.rows_within(self.seconds, seq.computed, wanted)
        if not self._has_prompt:
            return max(rows, min(wanted, MIN_CHUNK))
        return rows if rows >= min(wanted, MIN_LATER_CHUNK) else 0

    def take(self, seq: SequenceView, num_rows: int) -> None:
        self.tokens -= num_rows
        self.blocks -= self.missing(seq, num_rows)
        self.load.add(seq.computed, num_rows)
        if self._pace is not None:
            self.seconds -= self._pace.model.rows_s(seq.computed, num_rows)
            self._has_prompt = True

    def give_back(self, seq: SequenceView, num_rows: int) -> None:
        """What preempting a sequence frees, and the rows that it was given."""
        self.tokens += num_rows
        self.blocks += self.missing(seq, num_rows) + seq.held
        if num_rows:
            self.load.add(seq.computed, num_rows, -1)


def schedule(layout: KVLayout, view: SchedulerView) -> Decision:
    """Decide one step by the policy above.

    For every view:

    - sum of rows <= max_step_tokens and every row's blocks fit into the free blocks plus those of
      the preempted;
    - if anything runs or waits and the pool could hold the first alone, at least one row runs.
    """
    decision = Decision()
    budget = _Budget(layout, view.max_step_tokens, view.num_free_blocks)
    planned: dict[int, int] = {}
    running = list(view.running)
    decodes = [s for s in running if s.known - s.computed == 1]
    _schedule_running(decodes, running, view.policy, budget, planned, decision)
    budget.start_prompts(view.pace)
    prompts = sorted((s for s in running if s.known - s.computed > 1), key=lambda s: s.rank)
    still_needed = sum(budget.missing(s, s.known - s.computed) for s in prompts)
    if decision.preempted or still_needed > budget.blocks:
        _schedule_running(prompts, running, view.policy, budget, planned, decision)
    else:
        _Admission(layout, view, running, budget, planned, decision, still_needed).run(prompts)
    order = [s.key for s in running] + decision.admitted
    decision.rows = [ScheduledRows(key, planned[key]) for key in order if planned.get(key)]
    decision.load = budget.load
    decision.bound_s = budget.bound_s
    decision.spare_blocks = budget.blocks
    return decision


def _schedule_running(
    seqs: Sequence[SequenceView],
    running: list[SequenceView],
    policy: AllocationPolicy,
    budget: _Budget,
    planned: dict[int, int],
    decision: Decision,
) -> None:
    """Give rows to `seqs`, some of the running ones, in order.

    Preempts whom the policy names until one that needs blocks gets some, or is named itself; one
    for whom nobody is named waits. Removes the preempted from `running`.
    """
    for seq in seqs:
        if seq.key in decision.preempted or budget.tokens == 0:
            continue
        wanted = budget.chunk(seq)
        rows = budget.rows_that_fit(seq, wanted)
        while rows == 0 and wanted:
            victim = policy.victim(running, seq)
            if victim is None:
                break
            running.remove(victim)
            budget.give_back(victim, planned.pop(victim.key, 0))
            decision.preempted.append(victim.key)
            if victim.key == seq.key:
                break
            rows = budget.rows_that_fit(seq, wanted)
        if rows > 0:
            budget.take(seq, rows)
            planned[seq.key] = rows


class _Admission:
    """Gives rows to prompts by rank, those that run and those that are admitted for it.

    `still_needed`: blocks that the rest of the prompts amid their chunks will take. They are not
    given to newcomers, so that later chunks cannot starve older sequences.
    """

    def __init__(
        self,
        layout: KVLayout,
        view: SchedulerView,
        running: Sequence[SequenceView],
        budget: _Budget,
        planned: dict[int, int],
        decision: Decision,
        still_needed: int,
    ) -> None:
        self._layout = layout
        self._view = view
        self._budget = budget
        self._planned = planned
        self._decision = decision
        self._still_needed = still_needed
        self._num_beside = len(running)
        self._num_seqs = max(view.num_reserved_seqs, len(running))
        self._num_partial = 0
        self._is_held = False
        # Of its own: it is changed with every admission.
        self._room = replace(view.room, total=view.room.total.copy())

    def run(self, prompts: Sequence[SequenceView]) -> None:
        """`prompts`: the running ones, by rank."""
        budget = self._budget
        self._num_partial = len(prompts)
        running = {s.key for s in prompts}
        for seq in sorted([*prompts, *self._view.waiting], key=lambda s: s.rank):
            rows = budget.chunk(seq) if budget.tokens else 0
            if rows == 0:
                return
            if seq.key in running:
                self._continue(seq, rows)
            elif seq.follows in self._decision.admitted:
                continue  # it finds next time what that one computes now
            elif not self._is_held and not self._admit(seq, rows):
                self._is_held = seq.passed_over >= self._view.max_passes
                self._decision.passed[seq.key] = 0

    def _continue(self, seq: SequenceView, rows: int) -> None:
        self._still_needed -= self._budget.missing(seq, rows)
        self._budget.take(seq, rows)
        self._planned[seq.key] = rows
        self._num_partial -= rows == seq.known - seq.computed

    def _admit(self, seq: SequenceView, rows: int) -> bool:
        """False (and nothing changed) when it does not fit, or the policy refuses it.

        A sequence fits when all its known positions and one more do beside what was planned.
        """
        budget = self._budget
        if self._num_seqs + seq.num_choices > self._view.max_num_seqs:
            return False
        is_partial = rows < seq.known - seq.computed
        if is_partial and self._num_partial >= self._view.max_partial:
            return False
        needed = blocks_to_hold(self._layout, seq.known + 1, self._view.max_step_tokens) - seq.busy
        if seq.computed % BLOCK_LEN:
            needed += budget.num_groups  # the block that is copied, until its copy is made
        spare = budget.blocks - needed - self._still_needed
        if self._num_beside > 0 and (spare < 0 or not self._is_let_in(seq, spare)):
            return False
        rows = budget.rows_that_fit(seq, rows)
        if rows == 0:
            return False
        more = needed - budget.missing(seq, rows)
        budget.take(seq, rows)
        # All known positions are reserved now.
        budget.blocks -= max(0, more)
        self._planned[seq.key] = rows
        self._decision.admitted.append(seq.key)
        for key in self._decision.passed:
            self._decision.passed[key] += 1
        self._num_seqs += seq.num_choices
        self._num_beside += 1
        self._num_partial += is_partial
        self._note_admitted(seq)
        return True

    def _is_let_in(self, seq: SequenceView, spare: int) -> bool:
        """What the policy says of one that fits and leaves so many blocks."""
        self._room.spare, self._room.num_beside = spare, self._num_beside
        if self._view.policy.admits(self._room, seq):
            return True
        self._decision.held_back += 1
        return False

    def _note_admitted(self, seq: SequenceView) -> None:
        """Those asked for later come beside it, too."""
        if not self._view.policy.uses_forecasts:
            return
        room, outlook = self._room, seq.outlook
        room.total.add(outlook)
        room.num_most += outlook.most
        if self._view.policy.is_assured(seq):
            room.num_assured += outlook.most
