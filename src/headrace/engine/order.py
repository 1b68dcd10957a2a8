"""In which order prompts get rows: pure functions of the queue's tickets.

Every order puts first, in order of arrival, who has waited longer than `max_wait_s`, whatever its
priority. Then come the priority classes, lowest number first, and within a class sequences that ran
before (preempted, or split off a request). The others of a class go by one of these:

- `fcfs`: by arrival.
- `lpm`: longest cached prefix first.
- `dfs-weight`: along the tree of cached prefixes, children with more waiting requests first (Zheng
  et al., SGLang, 2024), so that a prefix is used while it is hot.
- `shortest`: least uncached work first.
- `response-ratio`: longest wait in units of the own uncached work first (Brinch Hansen, 1971).

Overtaking is bounded by what a queue without it would do. First come, first served lets a newcomer
wait for all the work that is there. An order may let a request wait `patience` times that long, for
the work that was there when it came, or that is there now if that is more; or for `grace_s`, which
matters only while queues are short. So a request may go
before those that came before it only if each of them could still begin in time after it and after
all that came before them; the others go last, by arrival. Nobody waits longer, whatever arrives.
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
    before. `ahead_s`: work that waited when it came, in seconds. `path`: what its cached blocks
    hold, in order (dfs-weight only).
    `passed_over`: how often another was admitted in its place because it did not fit.
    """

    number: int
    num_tokens: int
    arrived_s: float = 0.0
    priority: int = 0
    done: int = 0
    cached: int = 0
    begun: bool = False
    ahead_s: float = 0.0
    passed_over: int = 0
    path: tuple[Any, ...] = ()

    @property
    def uncached(self) -> int:
        """Positions that are still to be computed."""
        return self.num_tokens - self.done


@dataclass(frozen=True, slots=True)
class OrderPolicy:
    """`patience` and `max_wait_s` may be infinite: then nothing bounds the overtaking. `patience`
    and `grace_s` of 0 allow none."""

    order: QueueOrder = QueueOrder.FCFS
    patience: float = 1.17
    grace_s: float = 10.0
    max_wait_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Moment:
    """When an order is asked for, and what takes how much of the engine's time: a token of a prompt
    `token_s`, and a request beside that (its output, above all) `request_s`."""

    now_s: float
    token_s: float = 0.0
    request_s: float = 0.0

    def work_s(self, num_tokens: int, num_requests: int = 1) -> float:
        """Of prompts with so many uncached tokens together."""
        return self.token_s * num_tokens + self.request_s * num_requests


def arrange(policy: OrderPolicy, moment: Moment, tickets: Iterable[Ticket]) -> list[Ticket]:
    """The tickets in the order in which they should get rows."""
    queue = sorted(tickets, key=lambda t: t.number)
    if len(queue) < 2:
        return queue
    rank = _RANKS[policy.order](queue, moment)
    expired_before = moment.now_s - policy.max_wait_s
    tiers: dict[tuple[int, int, int], list[Ticket]] = {}
    for t in queue:
        if t.arrived_s <= expired_before:
            tier = (0, 0, 0)
        else:
            tier = (1, t.priority, 0 if t.begun else 1)
        tiers.setdefault(tier, []).append(t)
    ordered: list[Ticket] = []
    slack = _Slack(policy, moment, queue)
    for tier in sorted(tiers):
        if tier[2] == 0:
            ordered += tiers[tier]
            slack.skip(tiers[tier])
        else:
            free, late = slack.split(tiers[tier])
            ordered += sorted(free, key=lambda t: (rank(t), t.number))
            ordered += late
    return ordered


class _Slack:
    """How much work may still go before each ticket, walked along in order of arrival."""

    def __init__(self, policy: OrderPolicy, moment: Moment, queue: Sequence[Ticket]) -> None:
        self._policy = policy
        self._moment = moment
        self._backlog_s = moment.work_s(sum(t.num_tokens - t.done for t in queue), len(queue))
        self._before_s = 0.0
        self._least_s = math.inf

    def skip(self, tickets: Iterable[Ticket]) -> None:
        """Work that goes first in any case."""
        self._before_s += sum(self._moment.work_s(t.num_tokens - t.done) for t in tickets)

    def split(self, tickets: Iterable[Ticket]) -> tuple[list[Ticket], list[Ticket]]:
        """Those that may go before all that came before them, and those that may not."""
        free: list[Ticket] = []
        late: list[Ticket] = []
        moment, patience, grace_s = self._moment, self._policy.patience, self._policy.grace_s
        backlog_s = self._backlog_s
        before_s, least_s = self._before_s, self._least_s
        for t in tickets:
            work_s = moment.token_s * (t.num_tokens - t.done) + moment.request_s
            (free if work_s <= least_s else late).append(t)
            longest_s = max(patience * max(backlog_s, t.ahead_s), grace_s)
            least_s = min(least_s, longest_s - (moment.now_s - t.arrived_s) - before_s)
            before_s += work_s
        self._before_s, self._least_s = before_s, least_s
        return free, late


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
