"""Reserve the longest that every request can get: nobody is ever preempted, much stays unused."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.kv.lookahead.base import Allocation, H, Holder, Preempted, Room
from headrace.kv.lookahead.on_demand import youngest


class ReserveMax:
    """Admits while the pool holds all at their longest, even if none shares a block."""

    name = Allocation.RESERVE_MAX
    uses_forecasts = True

    def is_assured(self, seq: Preempted) -> bool:
        return True

    def admits(self, room: Room, seq: Holder) -> bool:
        return room.num_most + seq.outlook.most <= room.num_blocks

    def victim(self, running: Sequence[H], needy: H) -> H | None:
        # Only whoever was admitted under another policy can be short.
        return youngest(running)
