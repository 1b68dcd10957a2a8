"""In which order prompts get rows: pure functions of the queue's tickets.

Every order puts first, in order of arrival, who has waited longer than `max_wait_s`, whatever its
priority. Then come the priority classes, lowest number first. Within a class, sequences that ran
before (preempted, or split off a request) go first, then those that are due, and then the rest:

- `fcfs`: by arrival.
- `lpm`: longest cached prefix first.
- `dfs-weight`: along the tree of cached prefixes, children with more waiting requests first (Zheng
  et al., SGLang, 2024), so that a prefix is used while it is hot.
- `shortest`: least uncached work first.
- `response-ratio`: longest wait in units of the own uncached work first (Brinch Hansen, 1971).

Due is what first come, first served would have begun long ago: since a request came, the engine has
computed `patience` times the prompt tokens that waited when it came, or that wait now if that is
more. So nobody waits much longer than somebody would have to in a queue without overtaking, and
overtaking is bounded, whatever arrives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class QueueOrder(StrEnum):
    """See the module docstring."""

    FCFS = "fcfs"
    LPM = "lpm"
    DFS_WEIGHT = "dfs-weight"
    SHORTEST = "shortest"
    RESPONSE_RATIO = "response-ratio"


@dataclass(slots=True)
class Ticket:
    """What an order may know of a sequence that waits or is amid its prompt.

    `number`: rises with arrival. `num_tokens`: its positions; `done` of them need no computing, as
    they are computed or cached; `cached`: those that the prefix cache holds. `begun`: it ran
    before. `ahead`: uncached tokens that waited when it came; `served_before`: tokens that the
    engine had computed by then. `path`: what its cached blocks hold, in order (dfs-weight only).
    `passed_over`: how often another was admitted in its place because it did not fit.
    """

    number: int
    num_tokens: int
    arrived_s: float = 0.0
    priority: int = 0
    done: int = 0
    cached: int = 0
    begun: bool = False
    ahead: int = 0
    served_before: int = 0
    passed_over: int = 0
    path: tuple[Any, ...] = ()

    @property
    def uncached(self) -> int:
        """Positions that are still to be computed."""
        return self.num_tokens - self.done


@dataclass(frozen=True, slots=True)
class OrderPolicy:
    """`patience` and `max_wait_s` may be infinite: then nothing bounds the overtaking."""

    order: QueueOrder = QueueOrder.FCFS
    patience: float = 1.0
    max_wait_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Moment:
    """When an order is asked for. `served`: prompt tokens that the engine has computed so far."""

    now_s: float
    served: int


Key = tuple[Any, ...]


def arrange(policy: OrderPolicy, moment: Moment, tickets: Sequence[Ticket]) -> list[Ticket]:
    """The tickets in the order in which they should get rows."""
    if len(tickets) < 2:
        return list(tickets)
    rank = _RANKS[policy.order](tickets, moment)
    backlog = sum(t.num_tokens - t.done for t in tickets)
    patience, expired_before = policy.patience, moment.now_s - policy.max_wait_s
    served = moment.served

    def key(t: Ticket) -> Key:
        if t.arrived_s <= expired_before:
            return (0, 0, 0, t.number)
        if t.begun:
            return (1, t.priority, 0, t.number)
        if served - t.served_before >= patience * max(backlog, t.ahead):
            return (1, t.priority, 1, t.number)
        return (1, t.priority, 2, rank(t), t.number)

    return sorted(tickets, key=key)


Rank = Callable[[Ticket], Any]


def _by_arrival(tickets: Sequence[Ticket], moment: Moment) -> Rank:
    return lambda t: 0


def _by_cached(tickets: Sequence[Ticket], moment: Moment) -> Rank:
    return lambda t: -t.cached


def _by_work(tickets: Sequence[Ticket], moment: Moment) -> Rank:
    return lambda t: t.num_tokens - t.done


def _by_ratio(tickets: Sequence[Ticket], moment: Moment) -> Rank:
    """Of 1 + wait / work only the quotient matters; newcomers (no wait yet) are told apart by it,
    too, as they all waited for the same infinitesimal time."""
    now_s = moment.now_s + 1e-9
    return lambda t: (t.arrived_s - now_s) / max(1, t.num_tokens - t.done)


@dataclass(slots=True)
class _Node:
    """A block of the tree of cached prefixes. `weight`: tickets at it or below."""

    weight: int = 0
    first: float = math.inf
    numbers: list[int] = field(default_factory=list)
    children: dict[Any, _Node] = field(default_factory=dict)


def _by_branch(tickets: Iterable[Ticket], moment: Moment) -> Rank:
    root = _Node()
    for t in tickets:
        node = root
        for step in (None, *t.path):
            node = node.children.setdefault(step, _Node())
            node.weight += 1
            node.first = min(node.first, t.number)
        node.numbers.append(t.number)
    places: dict[int, int] = {}
    pending = [root]
    while pending:
        node = pending.pop()
        for number in sorted(node.numbers):
            places[number] = len(places)
        # The last is taken first: the heaviest, of equal ones the one that waits longest.
        pending += sorted(node.children.values(), key=lambda n: (n.weight, -n.first))
    return lambda t: places[t.number]


_RANKS: dict[QueueOrder, Callable[[Sequence[Ticket], Moment], Rank]] = {
    QueueOrder.FCFS: _by_arrival,
    QueueOrder.LPM: _by_cached,
    QueueOrder.DFS_WEIGHT: _by_branch,
    QueueOrder.SHORTEST: _by_work,
    QueueOrder.RESPONSE_RATIO: _by_ratio,
}
