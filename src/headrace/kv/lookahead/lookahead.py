"""Admit by the forecast of what will be needed; preempt, when it must be, who loses least."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.kv.lookahead.base import Allocation, H, Holder, Preempted, Room
from headrace.kv.lookahead.risk import break_even

# Found in simulation (benchmarks.overcommit): about the least that leaves a tenth of a pool unused.
# 0.01 leaves a sixth more unused and computes half as much again; goodput changes by a hundredth.
DEFAULT_RISK = 0.025
DEFAULT_MAX_PREEMPTIONS = 2
# It looks ahead at least so many steps, however cheap a preemption seems. Preempted sequences come
# first, and the assured wait for room at their longest, so a preemption costs more than its rows.
LEAST_STEPS = 32


class Lookahead:
    """Admits while the probability that the pool overflows is at most `max_risk`.

    How far ahead it looks follows from what a preemption costs (`break_even`): where the machine
    could run more sequences for nothing, a preemption that is far off is cheaper than waiting.

    A sequence that was preempted `max_preemptions` times is assured: it is admitted again only when
    the pool holds it and all others that are assured at their longest, and never named again. Among
    the others goes who loses least, those first that were preempted least often; the oldest only
    for the assured.
    """

    name = Allocation.LOOKAHEAD
    uses_forecasts = True

    def __init__(
        self,
        max_risk: float = DEFAULT_RISK,
        max_preemptions: int = DEFAULT_MAX_PREEMPTIONS,
    ) -> None:
        self._max_risk = max_risk
        self._max_preemptions = max_preemptions

    def is_assured(self, seq: Preempted) -> bool:
        return seq.num_preemptions >= self._max_preemptions

    def admits(self, room: Room, seq: Holder) -> bool:
        if self.is_assured(seq) and room.num_assured + seq.outlook.most > room.num_blocks:
            return False
        steps = break_even(room.base_s, room.prompt_row_s, room.num_beside, seq.known)
        steps = max(LEAST_STEPS, steps)
        return room.total.overflow(seq.outlook, room.num_own, steps) <= self._max_risk

    def victim(self, running: Sequence[H], needy: H) -> H | None:
        open_to = [s for s in running if not self.is_assured(s)]
        if len(open_to) == len(running):
            open_to = open_to[1:]  # nobody is assured to advance but the oldest
        # Who frees nothing would be preempted for nothing; the needy itself makes way. Nobody is
        # useful where all share their blocks with each other: together they do free them.
        useful = [s for s in open_to if s.held or s.key == needy.key]
        return min(useful or open_to, key=_loss, default=None)


def _loss(seq: Holder) -> tuple[int, int, int]:
    """Order of preemption: how often it was, the rows to be computed again, the youngest first."""
    return seq.num_preemptions, seq.computed - seq.kept, -seq.key
