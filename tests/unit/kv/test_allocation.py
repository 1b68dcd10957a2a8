"""The allocation policies as pure functions, over random sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.backends.layout import make_layout
from headrace.kv.lookahead.base import Allocation, AllocationPolicy, Room
from headrace.kv.lookahead.forecast import Features, LengthForecaster
from headrace.kv.lookahead.lookahead import Lookahead
from headrace.kv.lookahead.on_demand import OnDemand
from headrace.kv.lookahead.policies import make_policy
from headrace.kv.lookahead.reserve_max import ReserveMax
from headrace.kv.lookahead.risk import HORIZONS, NOTHING, Demand, Outlook, Sum, outlook

DEMAND = Demand(make_layout((0,), 1, 8), 64)


@dataclass(frozen=True)
class Seq:
    """Implements Holder."""

    key: int
    computed: int = 40
    known: int = 41
    held: int = 3
    kept: int = 0
    num_preemptions: int = 0
    outlook: Outlook = NOTHING


def _cold(prompt_len: int, limit: int, length: int = 0) -> Outlook:
    """Of an output of which nothing is known but its limit."""
    forecast = LengthForecaster().begin(Features(limit, prompt_len))
    return outlook(forecast, DEMAND, prompt_len=prompt_len, length=length)


@st.composite
def seqs(draw: st.DrawFn) -> list[Seq]:
    return [
        Seq(
            key,
            computed=draw(st.integers(0, 60)),
            held=draw(st.integers(0, 4)),
            kept=draw(st.sampled_from([0, 0, 16])),
            num_preemptions=draw(st.sampled_from([0, 0, 1, 2])),
            outlook=_cold(draw(st.integers(1, 100)), draw(st.integers(1, 300))),
        )
        for key in range(draw(st.integers(1, 8)))
    ]


def _room(policy: AllocationPolicy, running: Sequence[Seq], num_blocks: int) -> Room:
    return Room(
        num_blocks,
        num_blocks,
        num_beside=len(running),
        total=Sum(s.outlook for s in running),
        num_most=sum(s.outlook.most for s in running),
        num_assured=sum(s.outlook.most for s in running if policy.is_assured(s)),
    )


def test_every_name_has_its_policy() -> None:
    assert [make_policy(name).name for name in Allocation] == list(Allocation)


@settings(max_examples=200, deadline=None)
@given(running=seqs(), data=st.data(), name=st.sampled_from(list(Allocation)))
def test_somebody_is_always_spared(running: list[Seq], data: st.DataObject, name: str) -> None:
    """Whatever is preempted, one after another, the last one left is never named."""
    policy = make_policy(Allocation(name))
    left = list(running)
    needy = left[data.draw(st.integers(0, len(left) - 1))]
    for _ in running:
        victim = policy.victim(left, needy)
        if victim is None or victim.key == needy.key:
            break
        left.remove(victim)
    assert left
    if len(running) == 1:
        assert left == running


@settings(max_examples=200, deadline=None)
@given(running=seqs(), data=st.data())
def test_lookahead_preempts_who_loses_least(running: list[Seq], data: st.DataObject) -> None:
    policy = Lookahead(max_preemptions=2)
    needy = running[data.draw(st.integers(0, len(running) - 1))]
    victim = policy.victim(running, needy)
    may = [s for s in running if s.num_preemptions < 2]
    if len(may) == len(running):
        may.remove(running[0])
    if victim is None:
        assert not may
        return
    assert victim in may
    useful = [s for s in may if s.held or s is needy] or may
    assert victim in useful
    for other in useful:
        assert (victim.num_preemptions, victim.computed - victim.kept) <= (
            other.num_preemptions,
            other.computed - other.kept,
        )


def test_lookahead_spares_those_preempted_before() -> None:
    old, twice, once, never = Seq(0), Seq(1, 0, 1, 3, 0, 2), Seq(2, 1, 2, 3, 0, 1), Seq(3, 99, 100)
    assert Lookahead().victim([old, once, never], never) is never
    assert Lookahead().victim([old, once], old) is once
    # With one that may not be preempted any more, the oldest is no longer needed for progress.
    assert Lookahead().victim([old, twice], twice) is old
    assert Lookahead().victim([twice], twice) is None


@settings(max_examples=200, deadline=None)
@given(running=seqs(), newcomer=seqs(), num_blocks=st.integers(1, 300))
def test_reserve_max_never_promises_more_than_there_is(
    running: list[Seq], newcomer: list[Seq], num_blocks: int
) -> None:
    policy = ReserveMax()
    room = _room(policy, running, num_blocks)
    most = sum(s.outlook.most for s in [*running, newcomer[0]])
    assert policy.admits(room, newcomer[0]) == (most <= num_blocks)


@settings(max_examples=200, deadline=None)
@given(running=seqs(), newcomer=seqs(), num_blocks=st.integers(1, 300))
def test_lookahead_admits_whatever_reserving_admits(
    running: list[Seq], newcomer: list[Seq], num_blocks: int
) -> None:
    policy = Lookahead()
    if ReserveMax().admits(_room(policy, running, num_blocks), newcomer[0]):
        assert policy.admits(_room(policy, running, num_blocks), newcomer[0])


@settings(max_examples=200, deadline=None)
@given(running=seqs(), newcomer=seqs(), num_blocks=st.integers(1, 300))
def test_the_assured_fit_at_their_longest_all_together(
    running: list[Seq], newcomer: list[Seq], num_blocks: int
) -> None:
    policy, seq = Lookahead(), replace(newcomer[0], num_preemptions=2)
    if policy.admits(_room(policy, running, num_blocks), seq):
        assured = [s for s in [*running, seq] if policy.is_assured(s)]
        assert sum(s.outlook.most for s in assured) <= num_blocks


@settings(max_examples=100, deadline=None)
@given(running=seqs(), newcomer=seqs(), num_blocks=st.integers(1, 300))
def test_a_bound_on_risk_is_kept_and_a_larger_one_admits_more(
    running: list[Seq], newcomer: list[Seq], num_blocks: int
) -> None:
    seq = replace(newcomer[0], num_preemptions=0)
    room = _room(Lookahead(), running, num_blocks)
    risk = room.total.overflow(seq.outlook, num_blocks)
    for bound in (0.0, 0.001, 0.5, 1.0):
        assert Lookahead(bound).admits(room, seq) == (risk <= bound)


def test_lookahead_looks_no_further_than_a_preemption_pays() -> None:
    running = [Seq(i, outlook=_cold(40, 400)) for i in range(10)]
    seq = Seq(10, outlook=_cold(40, 400))
    room = _room(Lookahead(), running, 11 * 5)  # room for 80 positions of each
    assert not Lookahead().admits(room, seq)
    # The machine has rows to spare: a step costs the same with one more.
    cheap = replace(room, base_s=0.01, prompt_row_s=1e-6)
    assert Lookahead().admits(cheap, seq)
    # It has none: nothing is gained by running more at once.
    assert not Lookahead().admits(replace(room, base_s=0.01, prompt_row_s=0.01), seq)


@pytest.mark.parametrize("growth", [0, 1, 3])
def test_on_demand_leaves_blocks_for_growth(growth: int) -> None:
    policy = OnDemand(growth)
    for spare in range(20):
        room = Room(100, 100, spare=spare, num_beside=3, num_groups=2)
        assert policy.admits(room, Seq(9)) == (spare >= growth * 6)
    assert policy.victim([Seq(0), Seq(1), Seq(2)], Seq(0)) == Seq(2)
    assert policy.victim([Seq(0)], Seq(0)) is None


def test_horizons_rise() -> None:
    assert list(HORIZONS) == sorted(set(HORIZONS))
