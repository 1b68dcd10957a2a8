"""Orders of the queue: each against its definition, and what bounds overtaking in all of them."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.order import Moment, OrderPolicy, QueueOrder, Ticket, arrange

UNBOUNDED: dict[str, float] = {"patience": math.inf, "max_wait_s": math.inf}


@st.composite
def queues(draw: st.DrawFn) -> tuple[Moment, list[Ticket]]:
    """Tickets in order of arrival, shuffled."""
    now = draw(st.integers(0, 1000))
    arrivals = sorted(draw(st.lists(st.integers(0, now), max_size=12)))
    tickets = []
    for number, arrived in enumerate(arrivals):
        num_tokens = draw(st.integers(1, 500))
        cached = draw(st.integers(0, num_tokens - 1))
        path = tuple(draw(st.lists(st.sampled_from("ab"), max_size=3)))
        tickets.append(
            Ticket(
                number,
                num_tokens,
                arrived_s=arrived,
                priority=draw(st.integers(-1, 1)),
                done=cached,
                cached=cached,
                begun=draw(st.booleans()),
                ahead_s=draw(st.integers(0, 4000)),
                path=path,
            )
        )
    return Moment(now, draw(st.sampled_from([0.0, 0.5, 1.0])), 3.0), draw(st.permutations(tickets))


# Exact in binary, as the times of `queues` are: who just reaches the cap is no matter of rounding.
_CAPS = st.integers(0, 3600).map(lambda quarters: quarters / 4)


def _numbers(tickets: list[Ticket]) -> list[int]:
    return [t.number for t in tickets]


@settings(max_examples=300, deadline=None)
@given(queues(), st.sampled_from(QueueOrder), st.floats(0, 3), _CAPS)
def test_tiers(
    case: tuple[Moment, list[Ticket]], order: QueueOrder, patience: float, max_wait_s: float
) -> None:
    """All tickets, once; those beyond the cap by arrival, then the classes; in a class those that
    ran before, by arrival, then the rest."""
    moment, tickets = case
    arranged = arrange(OrderPolicy(order, patience, 0.0, max_wait_s), moment, tickets)
    assert sorted(_numbers(arranged)) == sorted(_numbers(tickets))

    def tier(t: Ticket) -> tuple[int, ...]:
        if moment.now_s - t.arrived_s >= max_wait_s:
            return (0,)
        return (1, t.priority, 0 if t.begun else 1)

    tiers = [tier(t) for t in arranged]
    assert tiers == sorted(tiers)
    for each in set(tiers):
        same = [t.number for t, other in zip(arranged, tiers, strict=True) if other == each]
        assert (each[-1] == 1 and len(each) > 1) or same == sorted(same)


@settings(max_examples=300, deadline=None)
@given(queues(), st.sampled_from(QueueOrder), st.floats(0, 2), st.floats(0, 500))
def test_who_goes_first_delays_nobody_beyond_its_time(
    case: tuple[Moment, list[Ticket]], order: QueueOrder, patience: float, grace_s: float
) -> None:
    moment, tickets = case
    if not tickets:
        return
    for t in tickets:
        t.begun, t.priority = False, 0
    first = arrange(OrderPolicy(order, patience, grace_s, math.inf), moment, tickets)[0]
    backlog = sum(moment.work_s(t.uncached) for t in tickets)
    for t in tickets:
        if t.number < first.number:
            before = sum(moment.work_s(o.uncached) for o in tickets if o.number < t.number)
            begins = moment.now_s - t.arrived_s + moment.work_s(first.uncached) + before
            assert begins <= max(patience * max(backlog, t.ahead_s), grace_s) + 1e-6


@settings(max_examples=300, deadline=None)
@given(queues())
def test_orders_by_their_definitions(case: tuple[Moment, list[Ticket]]) -> None:
    moment, tickets = case
    for t in tickets:
        t.begun, t.priority = False, 0
    keys = {
        QueueOrder.FCFS: lambda t: t.number,
        QueueOrder.LPM: lambda t: (-t.cached, t.number),
        QueueOrder.SHORTEST: lambda t: (t.uncached, t.number),
    }
    for order, key in keys.items():
        arranged = arrange(OrderPolicy(order, **UNBOUNDED), moment, tickets)
        assert arranged == sorted(tickets, key=key)
    arranged = arrange(OrderPolicy(QueueOrder.RESPONSE_RATIO, **UNBOUNDED), moment, tickets)
    ratios = [1 + Fraction(int(moment.now_s - t.arrived_s), t.uncached) for t in arranged]
    assert all(a >= b for a, b in itertools.pairwise(ratios))


def _branches(tickets: list[Ticket], depth: int = 0) -> list[int]:
    """DFS-weight, naively: those that end here, then the groups by size, then by arrival."""
    here = sorted(t.number for t in tickets if len(t.path) == depth)
    groups: dict[str, list[Ticket]] = {}
    for t in tickets:
        if len(t.path) > depth:
            groups.setdefault(t.path[depth], []).append(t)
    ordered = sorted(groups.values(), key=lambda g: (-len(g), min(_numbers(g))))
    return here + [number for group in ordered for number in _branches(group, depth + 1)]


@settings(max_examples=300, deadline=None)
@given(queues())
def test_dfs_weight_by_its_definition(case: tuple[Moment, list[Ticket]]) -> None:
    moment, tickets = case
    for t in tickets:
        t.begun, t.priority = False, 0
    arranged = arrange(OrderPolicy(QueueOrder.DFS_WEIGHT, **UNBOUNDED), moment, tickets)
    assert _numbers(arranged) == _branches(tickets)


@pytest.mark.parametrize("order", QueueOrder)
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 299)), max_size=4)),
    st.integers(0, 8),
    st.integers(0, 50),
    st.integers(0, 900),
)
def test_nobody_waits_longer_than_the_work_that_was_there(
    order: QueueOrder,
    arrivals: list[list[tuple[int, int]]],
    quarters: int,
    request_s: int,
    grace_s: int,
) -> None:
    """One server, whole prompts, a second for each token: a request begins within `patience` times
    the most work that was there while it waited, within the grace, or when it would first come,
    first served."""
    policy = OrderPolicy(order, quarters / 4, grace_s, math.inf)
    waiting: list[Ticket] = []
    longest: dict[int, float] = {}
    now = number = 0
    for batch in [*arrivals, *[[]] * 200]:
        for num_tokens, cached in batch:
            done = min(cached, num_tokens - 1)
            ahead = sum(t.uncached + request_s for t in waiting)
            waiting.append(Ticket(number, num_tokens, now, done=done, cached=done, ahead_s=ahead))
            longest[number] = max(ahead, grace_s)
            number += 1
        if not waiting:
            continue
        backlog = sum(t.uncached + request_s for t in waiting)
        for t in waiting:
            longest[t.number] = max(longest[t.number], policy.patience * backlog)
        first = arrange(policy, Moment(now, 1.0, request_s), waiting)[0]
        assert now - first.arrived_s <= longest[first.number]
        waiting.remove(first)
        now += first.uncached + request_s


@pytest.mark.parametrize("order", [QueueOrder.SHORTEST, QueueOrder.RESPONSE_RATIO])
def test_the_cap_lets_the_oldest_of_any_class_go_first(order: QueueOrder) -> None:
    low, high = Ticket(0, 500, arrived_s=0.0, priority=9), Ticket(1, 5, arrived_s=99.0)
    policy = OrderPolicy(order, math.inf, 0.0, 100.0)
    assert arrange(policy, Moment(99.9), [low, high]) == [high, low]
    assert arrange(policy, Moment(100.0), [low, high]) == [low, high]
