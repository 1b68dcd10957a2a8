"""What the scheduler is shown of each sequence."""

from __future__ import annotations

from functools import partial

from headrace.engine.foresight import Foresight
from headrace.engine.request import SequenceState
from headrace.engine.reuse import Start
from headrace.engine.views import SequenceView
from headrace.kv.tables import blocks_for


def waiting_view(seq: SequenceState, rank: int, start: Start, foresight: Foresight) -> SequenceView:
    """Of one that would begin at `start`."""
    return SequenceView(
        key=seq.key,
        computed=start.num_tokens,
        known=len(seq.tokens),
        table_len=blocks_for(start.num_tokens),
        num_choices=1 + seq.to_fork,
        rank=rank,
        passed_over=seq.ticket.passed_over,
        claim=start.claim,
        busy=start.busy,
        follows=start.follows,
        num_preemptions=seq.num_preemptions,
        ask=partial(foresight.outlook_of, seq),
    )


def running_view(seq: SequenceState, rank: int, foresight: Foresight | None) -> SequenceView:
    """With `foresight`, what a preemption would free and keep is counted."""
    tables = seq.tables
    return SequenceView(
        key=seq.key,
        computed=seq.computed,
        known=len(seq.tokens),
        table_len=tables.num_blocks_len,
        held=0 if foresight is None else tables.num_exclusive(),
        num_choices=1 + seq.to_fork,
        rank=rank,
        kept=0 if foresight is None else foresight.kept(seq),
        num_preemptions=seq.num_preemptions,
    )
