"""Allocate at need, preempt when full: what engines without forecasts do."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.kv.lookahead.base import Allocation, H, Holder, Preempted, Room


class OnDemand:
    """Admits whoever fits now; preempts the youngest.

    `growth`: blocks, for each running sequence and layer group, that an admission leaves free. 0 is
    the plain policy; a few keep the next admission from being the next preemption.
    """

    name = Allocation.ON_DEMAND
    uses_forecasts = False

    def __init__(self, growth: int = 0) -> None:
        self._growth = growth

    def is_assured(self, seq: Preempted) -> bool:
        return False

    def admits(self, room: Room, seq: Holder) -> bool:
        return room.spare >= self._growth * room.num_beside * room.num_groups

    def victim(self, running: Sequence[H], needy: H) -> H | None:
        return youngest(running)


def youngest(running: Sequence[H]) -> H | None:
    """The last admitted, so that the oldest always advances; the only one is left alone."""
    return running[-1] if len(running) > 1 else None
