"""The scheduler: a pure function from a snapshot to what the next step runs.

Policy: decodes first, then prefill chunks of running sequences, then admissions in arrival order,
all under one token budget. When blocks run out, the most recently admitted sequence is preempted
(its KV is recomputed later), so the oldest always advances and nothing ping-pongs: a preempted
sequence is admitted again only when all it needs is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.backends.layout import BLOCK_LEN, KVLayout
from headrace.kv.tables import blocks_for, blocks_to_hold


@dataclass(frozen=True, slots=True)
class SequenceView:
    """What the scheduler may know of a sequence.

    `key` identifies it to the caller. `computed` positions have KV; `known` tokens exist (known -
    computed rows could run now). `table_len`: entries of its block tables. `held`: blocks that
    preempting it would free (0 references shared with others). `num_choices`: sequences it becomes.
    """

    key: int
    computed: int
    known: int
    table_len: int = 0
    held: int = 0
    num_choices: int = 1


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """Snapshot. `running` in order of admission, `waiting` in the order they should be admitted."""

    running: Sequence[SequenceView]
    waiting: Sequence[SequenceView]
    num_free_blocks: int
    max_step_tokens: int
    max_num_seqs: int
    # Sequences that the running ones will become (choices still to be forked included).
    num_reserved_seqs: int = 0


@dataclass(frozen=True, slots=True)
class ScheduledRows:
    """Run `num_rows` rows of sequence `key` from position `computed`."""

    key: int
    num_rows: int


@dataclass(slots=True)
class Decision:
    """`preempted` are to be freed first, then `admitted` join the running, then `rows` run.

    Rows are in running order, decodes and prefill chunks mixed as admitted.
    """

    rows: list[ScheduledRows] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)


class _Budget:
    """Tokens and blocks left while a decision is made."""

    def __init__(self, layout: KVLayout, tokens: int, blocks: int) -> None:
        self.num_groups = len(layout.groups)
        self.tokens = tokens
        self.blocks = blocks

    def missing(self, seq: SequenceView, num_rows: int) -> int:
        more = blocks_for(seq.computed + num_rows) - seq.table_len
        return max(0, more) * self.num_groups

    def rows_that_fit(self, seq: SequenceView, num_rows: int) -> int:
        """Largest count <= num_rows whose blocks are free."""
        if self.missing(seq, num_rows) <= self.blocks:
            return num_rows
        room = seq.table_len + self.blocks // self.num_groups
        return max(0, min(num_rows, room * BLOCK_LEN - seq.computed))

    def take(self, seq: SequenceView, num_rows: int) -> None:
        self.tokens -= num_rows
        self.blocks -= self.missing(seq, num_rows)


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
    _schedule_running(running, budget, planned, decision)
    if not decision.preempted:
        _admit(layout, view, running, budget, planned, decision)
    order = [s.key for s in running] + decision.admitted
    decision.rows = [ScheduledRows(key, planned[key]) for key in order if planned.get(key)]
    return decision


def _schedule_running(
    running: list[SequenceView],
    budget: _Budget,
    planned: dict[int, int],
    decision: Decision,
) -> None:
    """Give rows to running sequences: decodes first, then prefill chunks, oldest first.

    Removes preempted sequences from `running`.
    """
    decodes = [s for s in running if s.known - s.computed == 1]
    prefills = [s for s in running if s.known - s.computed > 1]
    for seq in decodes + prefills:
        if seq.key in decision.preempted or budget.tokens == 0:
            continue
        wanted = min(seq.known - seq.computed, budget.tokens)
        rows = budget.rows_that_fit(seq, wanted)
        while rows == 0 and running[-1].key != seq.key:
            _preempt(running, budget, planned, decision)
            rows = budget.rows_that_fit(seq, wanted)
        if rows == 0 and len(running) > 1:
            # It is the youngest: it waits for the older ones.
            _preempt(running, budget, planned, decision)
            continue
        if rows > 0:
            budget.take(seq, rows)
            planned[seq.key] = rows


def _preempt(
    running: list[SequenceView],
    budget: _Budget,
    planned: dict[int, int],
    decision: Decision,
) -> None:
    """Preempt the youngest running sequence; rows it was given go back to the budget."""
    victim = running.pop()
    rows = planned.pop(victim.key, 0)
    budget.tokens += rows
    budget.blocks += budget.missing(victim, rows) + victim.held
    decision.preempted.append(victim.key)


def _admit(
    layout: KVLayout,
    view: SchedulerView,
    running: Sequence[SequenceView],
    budget: _Budget,
    planned: dict[int, int],
    decision: Decision,
) -> None:
    """Admit waiting sequences in order while slots, tokens and blocks last.

    A sequence is admitted when all its known positions and one more fit beside what was planned;
    beside others, one more block per running sequence is kept free for their growth.
    """
    num_seqs = max(view.num_reserved_seqs, len(running))
    num_beside = len(running)
    for seq in view.waiting:
        if budget.tokens == 0 or num_seqs + seq.num_choices > view.max_num_seqs:
            return
        needed = blocks_to_hold(layout, seq.known + 1, view.max_step_tokens)
        growth = num_beside * budget.num_groups
        if needed + growth > budget.blocks and num_beside > 0:
            return
        rows = budget.rows_that_fit(seq, min(seq.known - seq.computed, budget.tokens))
        if rows == 0:
            return
        # All known positions are reserved now, so that later chunks cannot starve older sequences.
        budget.tokens -= rows
        budget.blocks -= max(needed, budget.missing(seq, rows))
        planned[seq.key] = rows
        decision.admitted.append(seq.key)
        num_seqs += seq.num_choices
        num_beside += 1
