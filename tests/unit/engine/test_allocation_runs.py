"""Whole runs of the pure scheduler under every allocation policy, with naive books of blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.backends.layout import KVLayout, make_layout
from headrace.engine.scheduler import Decision, schedule
from headrace.engine.views import SchedulerView, SequenceView
from headrace.kv.lookahead.base import AllocationPolicy, Room
from headrace.kv.lookahead.forecast import Features, Forecast, LengthForecaster
from headrace.kv.lookahead.lookahead import DEFAULT_MAX_PREEMPTIONS, Lookahead
from headrace.kv.lookahead.on_demand import OnDemand
from headrace.kv.lookahead.reserve_max import ReserveMax
from headrace.kv.lookahead.risk import Demand, Outlook, Sum, outlook
from headrace.kv.tables import blocks_for, blocks_to_hold, first_visible_block

LAYOUTS = [make_layout((0,), 1, 8), make_layout((0, 20), 1, 8), make_layout((0, 9, 9, 9), 1, 8)]
POLICIES: list[Callable[[], AllocationPolicy]] = [
    OnDemand,
    lambda: OnDemand(1),
    ReserveMax,
    Lookahead,
    lambda: Lookahead(max_risk=0.5),
    lambda: Lookahead(max_risk=1.0, max_preemptions=1),
]


@dataclass
class Seq:
    """A request: its true length is `final`, of which the scheduler knows only the limit."""

    key: int
    prompt_len: int
    final: int
    forecast: Forecast
    computed: int = 0
    known: int = 0
    table_len: int = 0
    num_preemptions: int = 0
    passed_over: int = 0

    def look(self, demand: Demand) -> Outlook:
        length = self.known - self.prompt_len
        return outlook(self.forecast, demand, prompt_len=self.prompt_len, length=length)


class Run:
    """Applies decisions as an engine does and checks them against a count of blocks."""

    def __init__(
        self, layout: KVLayout, policy: AllocationPolicy, num_blocks: int, chunk: int
    ) -> None:
        self.layout = layout
        self.policy = policy
        self.num_blocks = num_blocks
        self.chunk = chunk
        self.demand = Demand(layout, chunk)
        self.running: dict[int, Seq] = {}
        self.waiting: dict[int, Seq] = {}
        self.num_steps = 0

    def held(self, seq: Seq) -> int:
        """Blocks of a table whose part behind a window was given back."""
        return sum(
            max(0, seq.table_len - first_visible_block(g.window, seq.computed))
            for g in self.layout.groups
        )

    def num_free(self) -> int:
        return self.num_blocks - sum(map(self.held, self.running.values()))

    def step(self) -> Decision:
        outlooks = {s.key: s.look(self.demand) for s in self.running.values()}
        most = {key: each.most for key, each in outlooks.items()}
        room = Room(
            self.num_blocks,
            self.num_blocks,
            total=Sum(outlooks.values()),
            num_most=sum(most.values()),
            num_assured=sum(
                most[s.key] for s in self.running.values() if self.policy.is_assured(s)
            ),
            num_groups=len(self.layout.groups),
        )
        view = SchedulerView(
            [self.view(s) for s in self.running.values()],
            [self.view(s) for s in self.waiting.values()],
            self.num_free(),
            self.chunk,
            max_num_seqs=8,
            num_reserved_seqs=len(self.running),
            max_passes=4,
            policy=self.policy,
            room=room,
        )
        decision = schedule(self.layout, view)
        self.apply(decision)
        return decision

    def view(self, seq: Seq) -> SequenceView:
        return SequenceView(
            seq.key,
            seq.computed,
            seq.known,
            seq.table_len,
            held=self.held(seq),
            passed_over=seq.passed_over,
            num_preemptions=seq.num_preemptions,
            ask=lambda: seq.look(self.demand),
        )

    def apply(self, decision: Decision) -> None:
        self.num_steps += 1
        assert not (decision.preempted and decision.admitted)
        for key in decision.preempted:
            seq = self.running.pop(key)
            seq.computed = seq.table_len = 0
            seq.num_preemptions += 1
            self.waiting = {key: seq, **self.waiting}
        for key, times in decision.passed.items():
            self.waiting[key].passed_over += times
        for key in decision.admitted:
            self.running[key] = self.waiting.pop(key)
        assert sum(r.num_rows for r in decision.rows) <= self.chunk
        for rows in decision.rows:
            seq = self.running[rows.key]
            seq.table_len = max(seq.table_len, blocks_for(seq.computed + rows.num_rows))
        assert self.num_free() >= 0, "more blocks are handed out than there are"
        for rows in decision.rows:
            self.advance(self.running[rows.key], rows.num_rows)

    def advance(self, seq: Seq, num_rows: int) -> None:
        seq.computed += num_rows
        assert seq.computed <= seq.known
        if seq.computed < seq.known:
            return
        seq.known += 1
        if seq.known == seq.final:
            del self.running[seq.key]
            length = seq.final - seq.prompt_len
            seq.forecast.end(length, by_itself=length < seq.forecast.features.max_tokens)
        else:
            seq.forecast.reach(seq.known - seq.prompt_len)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    layout, forecaster = draw(st.sampled_from(LAYOUTS)), LengthForecaster()
    chunk = draw(st.sampled_from([8, 20, 64]))
    seqs = []
    for key in range(draw(st.integers(1, 10))):
        prompt_len = draw(st.integers(1, 60))
        limit = draw(st.integers(1, 120))
        forecast = forecaster.begin(Features(limit, prompt_len))
        final = prompt_len + draw(st.integers(1, limit))
        seqs.append(Seq(key, prompt_len, final, forecast, known=prompt_len))
    longest = max(s.prompt_len + s.forecast.features.max_tokens for s in seqs)
    num_blocks = blocks_to_hold(layout, longest, chunk) + draw(st.integers(0, 20))
    run = Run(layout, draw(st.sampled_from(POLICIES))(), num_blocks, chunk)
    run.waiting = {s.key: s for s in seqs}
    return run


@settings(max_examples=300, deadline=None)
@given(runs())
def test_every_step_advances_and_everything_ends(run: Run) -> None:
    seqs = list(run.waiting.values())
    times = [0] * len(seqs)
    while run.waiting or run.running:
        decision = run.step()
        assert decision.rows
        for key in decision.preempted:
            times[key] += 1
    # Every row that is computed is one of a sequence's positions in one of its lives.
    assert run.num_steps <= sum(s.final * (1 + n) for s, n in zip(seqs, times, strict=True))
    assert times == [s.num_preemptions for s in seqs]
    if isinstance(run.policy, ReserveMax):
        assert not any(times)
    if isinstance(run.policy, Lookahead):
        assert all(
            run.policy.is_assured(s) or n < DEFAULT_MAX_PREEMPTIONS
            for s, n in zip(seqs, times, strict=True)
        )
        assert max(times) <= DEFAULT_MAX_PREEMPTIONS


@pytest.mark.parametrize("policy", [make() for make in POLICIES], ids=lambda p: p.name)
def test_whoever_needs_most_is_not_starved_by_newcomers(policy: AllocationPolicy) -> None:
    """Short ones come for ever; one that takes the whole pool gets it in a bounded time."""
    layout, forecaster = LAYOUTS[0], LengthForecaster()
    run = Run(layout, policy, 20, 64)

    def come(key: int, prompt_len: int, length: int) -> Seq:
        forecast = forecaster.begin(Features(length, prompt_len))
        seq = Seq(key, prompt_len, prompt_len + length, forecast, known=prompt_len)
        run.waiting[key] = seq
        return seq

    for key in range(1, 9):
        come(key, 20, 30)
    long = come(0, 200, 120)
    for key in range(10, 2000):
        if len(run.waiting) < 8:
            come(key, 20, 30)
        run.step()
        if long.known == long.final:
            break
    # Four are admitted in its place, those that run end in 30 steps, and it takes its own time.
    assert run.num_steps < 8 * 30 + 4 * 30 + 30 + 2 * (4 + 120)
    assert long.known == long.final
