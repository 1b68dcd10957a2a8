"""What the scheduler may know: values, made for every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.engine.pace import Pace
from headrace.kv.lookahead.base import AllocationPolicy, Room
from headrace.kv.lookahead.on_demand import OnDemand
from headrace.kv.lookahead.risk import NOTHING, Outlook


def nothing() -> Outlook:
    """The outlook of what never holds anything."""
    return NOTHING


class SequenceView(msgspec.Struct, frozen=True, gc=False):
    """What the scheduler may know of a sequence.

    `key` identifies it to the caller. `computed` positions have KV; `known` tokens exist (known -
    computed rows could run now). `table_len`: entries of its block tables. `held`: blocks that
    preempting it would free (0 references shared with others), and `kept`: positions that it would
    keep; neither counts as long as blocks are plenty. `num_choices`: sequences it becomes. `ask`
    gives the outlook of one that waits, when it is asked for (kv.lookahead.base).
    `rank`: its place among all prompts, running or waiting, that want rows; of equal ones those
    that run go first. `passed_over`: how often another was admitted although it did not fit.

    A waiting sequence would begin with `computed` positions of the prefix cache. That would take
    `claim` blocks from the free ones; `busy` more are held by others already. `follows`: key of one
    that it is not to be admitted together with, as it would compute the same (-1: none).
    """

    key: int
    computed: int
    known: int
    table_len: int = 0
    held: int = 0
    num_choices: int = 1
    rank: int = 0
    passed_over: int = 0
    claim: int = 0
    busy: int = 0
    follows: int = -1
    kept: int = 0
    num_preemptions: int = 0
    ask: Callable[[], Outlook] = nothing

    @property
    def outlook(self) -> Outlook:
        return self.ask()


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """Snapshot. `running` in order of admission, `waiting` in the order they should be admitted.

    `num_free_blocks`: those that can be allocated, the ones that only the cache keeps among them.
    `max_partial`: sequences whose prompts may be cut at the same time. `max_passes`: how often one
    that does not fit is passed over. `pace`: how long a step may take, None for as long as its
    tokens last. `policy`: who is admitted and preempted. `room`: what it may know of the running.
    """

    running: Sequence[SequenceView]
    waiting: Sequence[SequenceView]
    num_free_blocks: int
    max_step_tokens: int
    max_num_seqs: int
    # Sequences that the running ones will become (choices still to be forked included).
    num_reserved_seqs: int = 0
    max_partial: int = 1 << 30
    max_passes: int = 1 << 30
    pace: Pace | None = None
    policy: AllocationPolicy = field(default_factory=OnDemand)
    room: Room = field(default_factory=lambda: Room(0, 0))
