"""Orders of the queue: each against its definition, and what bounds overtaking in all of them."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.order import Moment, OrderPolicy, QueueOrder, Ticket, arrange

UNBOUNDED = {"patience": math.inf, "max_wait_s": math.inf}


@st.composite
def queues(draw: st.DrawFn) -> tuple[Moment, list[Ticket]]:
    """Tickets in order of arrival, shuffled."""
    now = draw(st.integers(0, 1000))
    served = draw(st.integers(0, 5000))
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
                ahead=draw(st.integers(0, 4000)),
                served_before=draw(st.integers(0, served)),
                path=path,
            )
        )
    return Moment(now, served), draw(st.permutations(tickets))


def _numbers(tickets: list[Ticket]) -> list[int]:
    return [t.number for t in tickets]


@settings(max_examples=300, deadline=None)
@given(queues(), st.sampled_from(QueueOrder), st.floats(0, 3), st.floats(0, 900))
def test_tiers(
    case: tuple[Moment, list[Ticket]], order: QueueOrder, patience: float, max_wait_s: float
) -> None:
    """All tickets, once; those beyond the cap by arrival, then the classes; in a class those that
    ran before, then those that are due, then the rest."""
    moment, tickets = case
    arranged = arrange(OrderPolicy(order, patience, max_wait_s), moment, tickets)
    assert sorted(_numbers(arranged)) == sorted(_numbers(tickets))
    backlog = sum(t.uncached for t in tickets)

    def tier(t: Ticket) -> tuple[int, ...]:
        if moment.now_s - t.arrived_s >= max_wait_s:
            return (0,)
        due = moment.served - t.served_before >= patience * max(backlog, t.ahead)
        return (1, t.priority, 0 if t.begun else 1 if due else 2)

    tiers = [tier(t) for t in arranged]
    assert tiers == sorted(tiers)
    for each in set(tiers):
        if each[-1] != 2:
            same = [t.number for t, other in zip(arranged, tiers, strict=True) if other == each]
            assert same == sorted(same)


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
    st.floats(0, 2),
)
def test_overtaking_is_bounded_whatever_arrives(
    order: QueueOrder, arrivals: list[list[tuple[int, int]]], patience: float
) -> None:
    """One server, whole prompts, a queue of at most 1,000 tokens: nobody is overtaken by more work
    than `patience` times that and one prompt more."""
    room, longest = 1000, 300
    policy = OrderPolicy(order, patience, math.inf)
    waiting: list[Ticket] = []
    overtaken: dict[int, int] = {}
    served = number = 0
    for step, batch in enumerate([*arrivals, *[[]] * 50]):
        for num_tokens, cached in batch:
            ahead = sum(t.uncached for t in waiting)
            done = min(cached, num_tokens - 1)
            if ahead + num_tokens - done <= room:
                waiting.append(
                    Ticket(
                        number,
                        num_tokens,
                        float(step),
                        done=done,
                        cached=done,
                        ahead=ahead,
                        served_before=served,
                    )
                )
                overtaken[number] = 0
                number += 1
        if not waiting:
            continue
        first = arrange(policy, Moment(float(step), served), waiting)[0]
        waiting.remove(first)
        served += first.uncached
        for t in waiting:
            if t.number < first.number:
                overtaken[t.number] += first.uncached
    assert all(work <= patience * room + longest for work in overtaken.values())
