"""The scheduler's guarantees, over random views."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.backends.layout import make_layout
from headrace.engine.scheduler import Decision, SchedulerView, SequenceView, schedule
from headrace.kv.tables import blocks_for, blocks_to_hold

LAYOUTS = [make_layout((0,), 1, 8), make_layout((0, 20), 1, 8), make_layout((0, 9, 9, 9), 1, 8)]


@st.composite
def views(draw: st.DrawFn) -> tuple[int, SchedulerView]:
    which = draw(st.integers(0, len(LAYOUTS) - 1))
    groups = len(LAYOUTS[which].groups)
    running = []
    for key in range(draw(st.integers(0, 6))):
        computed = draw(st.integers(0, 100))
        pending = draw(st.sampled_from([1, 1, 1, 5, 40, 200]))
        table_len = blocks_for(computed)
        running.append(
            SequenceView(
                key,
                computed,
                computed + pending,
                table_len,
                held=table_len * groups,
                num_choices=draw(st.integers(1, 3)) if computed == 0 else 1,
            )
        )
    waiting = [
        SequenceView(100 + i, 0, draw(st.integers(1, 150)), num_choices=draw(st.integers(1, 3)))
        for i in range(draw(st.integers(0, 5)))
    ]
    view = SchedulerView(
        running,
        waiting,
        num_free_blocks=draw(st.integers(0, 60)),
        max_step_tokens=draw(st.integers(8, 64)),
        max_num_seqs=8,
        num_reserved_seqs=sum(s.num_choices for s in running),
    )
    return which, view


def _decide(case: tuple[int, SchedulerView]) -> Decision:
    which, view = case
    return schedule(LAYOUTS[which], view)


@settings(max_examples=500, deadline=None)
@given(views())
def test_budget_blocks_and_slots_hold(case: tuple[int, SchedulerView]) -> None:
    which, view = case
    decision = _decide(case)
    by_key = {s.key: s for s in [*view.running, *view.waiting]}
    assert sum(r.num_rows for r in decision.rows) <= view.max_step_tokens
    free = view.num_free_blocks + sum(by_key[k].held for k in decision.preempted)
    groups = len(LAYOUTS[which].groups)
    for rows in decision.rows:
        seq = by_key[rows.key]
        assert 1 <= rows.num_rows <= seq.known - seq.computed
        free -= max(0, blocks_for(seq.computed + rows.num_rows) - seq.table_len) * groups
    assert free >= 0
    kept = {s.key for s in view.running} - set(decision.preempted)
    assert len({r.key for r in decision.rows}) == len(decision.rows)
    assert {r.key for r in decision.rows} <= kept | set(decision.admitted)
    admitted = sum(by_key[k].num_choices for k in decision.admitted)
    assert not decision.admitted or view.num_reserved_seqs + admitted <= view.max_num_seqs


@settings(max_examples=500, deadline=None)
@given(views())
def test_admission_keeps_order_and_preemption_takes_the_youngest(
    case: tuple[int, SchedulerView],
) -> None:
    _, view = case
    decision = _decide(case)
    assert decision.admitted == [s.key for s in view.waiting][: len(decision.admitted)]
    running = [s.key for s in view.running]
    assert decision.preempted == running[::-1][: len(decision.preempted)]
    assert not (decision.preempted and decision.admitted)
    assert not view.running or running[0] not in decision.preempted


@settings(max_examples=500, deadline=None)
@given(views())
def test_something_runs_whenever_the_first_fits_alone(case: tuple[int, SchedulerView]) -> None:
    which, view = case
    layout, decision = LAYOUTS[which], _decide(case)
    if view.running:
        first = view.running[0]
        reachable = view.num_free_blocks + sum(s.held for s in view.running[1:])
        rows = min(first.known - first.computed, 1)
        more = max(0, blocks_for(first.computed + rows) - first.table_len) * len(layout.groups)
        if more <= reachable:
            assert decision.rows
    elif view.waiting:
        first = view.waiting[0]
        needed = blocks_to_hold(layout, first.known, view.max_step_tokens)
        if needed <= view.num_free_blocks:
            assert decision.rows


@settings(max_examples=300, deadline=None)
@given(views())
def test_a_decision_depends_on_the_view_alone(case: tuple[int, SchedulerView]) -> None:
    assert _decide(case) == _decide(case)


def test_decodes_run_beside_a_long_prompt() -> None:
    decoding = [SequenceView(i, 30, 31, 2, 2) for i in range(3)]
    prompt = SequenceView(9, 0, 1000)
    view = SchedulerView([*decoding, prompt], [], 500, 64, 8, 4)
    rows = {r.key: r.num_rows for r in schedule(LAYOUTS[0], view).rows}
    assert rows == {0: 1, 1: 1, 2: 1, 9: 61}
