"""The allocation seam: who is admitted, and who is preempted when blocks run out.

Contract
- A policy is a pure function of what it is shown. It owns nothing and sees no clock.
- The scheduler itself never hands out a block twice: before it asks `admits` it has made sure that
  all known positions of the newcomer and one more fit into what is free. A policy can only refuse.
- `admits` is asked only beside running sequences: whoever is alone is admitted, as no request is
  let in that the pool could not hold alone.
- `victim` is asked when a running sequence cannot grow and blocks that only the prefix cache keeps
  are used up (admissions have been put off before that: nobody is admitted in a step that
  preempts). It names one of `running`, perhaps the needy itself, or None: then the needy waits. For
  every policy, some running sequence is never named as long as it runs, and can always take what it
  needs by having others preempted. So there is always progress, and no deadlock.
- Reservations are logical: a policy counts them. Nothing is handed out before the step that writes
  it, so what a forecast no longer expects is free for others at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

from headrace.kv.lookahead.risk import Outlook, Sum


class Allocation(StrEnum):
    """Names of the policies: allocate at need and preempt when full; reserve the longest that a
    request can get; admit by the forecast of what will be needed."""

    ON_DEMAND = "on-demand"
    RESERVE_MAX = "reserve-max"
    LOOKAHEAD = "lookahead"


class Preempted(Protocol):
    """Something that counts how often it was preempted."""

    @property
    def num_preemptions(self) -> int: ...


class Holder(Preempted, Protocol):
    """What a policy may know of a sequence, running or not.

    `computed` positions have KV; `kept` of them would still have it after a preemption (others
    share their blocks). `held`: blocks that a preemption would free. `outlook`: what it will hold.
    """

    @property
    def key(self) -> int: ...
    @property
    def computed(self) -> int: ...
    @property
    def known(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def kept(self) -> int: ...
    @property
    def outlook(self) -> Outlook: ...


H = TypeVar("H", bound=Holder)


@dataclass(slots=True)
class Room:
    """The state of the pool while admissions are decided.

    `num_blocks`: of the pool. `num_own`: blocks that are free, idle in the prefix cache, or held by
    one running sequence alone: what forecasts can be about. `spare`: blocks that would be left if
    the newcomer were admitted. `num_beside`: sequences running or admitted in this step, `total`
    the sum of their outlooks, `num_most` the most that they can come to hold, and `num_assured` the
    same of those that may not be preempted again. `base_s`, `prompt_row_s`: what a step takes
    whatever runs, and what a row of a prompt adds; unknown: 0.
    """

    num_blocks: int
    num_own: int
    spare: int = 0
    num_beside: int = 0
    total: Sum = field(default_factory=Sum)
    num_most: int = 0
    num_assured: int = 0
    num_groups: int = 1
    base_s: float = 0.0
    prompt_row_s: float = 0.0


class AllocationPolicy(Protocol):
    """See the module docstring."""

    @property
    def name(self) -> Allocation: ...

    @property
    def uses_forecasts(self) -> bool:
        """Whether it looks at outlooks at all; they need not be computed if not."""
        ...

    def is_assured(self, seq: Preempted) -> bool:
        """Whether a running sequence may not be preempted (any more)."""
        ...

    def admits(self, room: Room, seq: Holder) -> bool: ...

    def victim(self, running: Sequence[H], needy: H) -> H | None: ...
