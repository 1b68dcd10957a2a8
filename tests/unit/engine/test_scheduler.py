"""The scheduler's guarantees, over random views."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.backends.layout import BLOCK_LEN, KVLayout, make_layout
from headrace.engine.pace import TOLERANCE, Pace
from headrace.engine.scheduler import MIN_CHUNK, Decision, schedule
from headrace.engine.step_time import StepLoad, StepTime
from headrace.engine.views import SchedulerView, SequenceView
from headrace.kv.lookahead.base import AllocationPolicy, Room
from headrace.kv.lookahead.lookahead import Lookahead
from headrace.kv.lookahead.on_demand import OnDemand
from headrace.kv.lookahead.reserve_max import ReserveMax
from headrace.kv.tables import blocks_for, blocks_to_hold, first_visible_block

LAYOUTS = [make_layout((0,), 1, 8), make_layout((0, 20), 1, 8), make_layout((0, 9, 9, 9), 1, 8)]
POLICIES: list[AllocationPolicy] = [OnDemand(), OnDemand(1), ReserveMax(), Lookahead()]
SLOW = StepTime(1.0, decode_row=0.25, decode_context=0.0, prompt_row=1 / 32, prompt_context=0.0)


@st.composite
def paces(draw: st.DrawFn) -> Pace | None:
    cost = st.floats(0, 0.1)
    model = StepTime(draw(cost), draw(cost), draw(cost), draw(cost), draw(cost))
    pace = Pace(
        model,
        draw(st.floats(0, 20)),
        draw(st.floats(0, 3)),
        draw(st.floats(0.8, 1.5)),
        draw(st.floats(0.7, 1.4)),
        draw(st.booleans()),
    )
    return draw(st.none() | st.just(pace))


def _waiting(draw: st.DrawFn, layout: KVLayout, **fields: Any) -> SequenceView:
    """Half of them would begin with some of the prefix cache."""
    known = draw(st.integers(1, 150))
    computed = draw(st.just(0) | st.integers(0, known - 1))
    depth, groups = computed // BLOCK_LEN, layout.groups
    seen = sum(depth - first_visible_block(g.window, computed) for g in groups)
    copies = 2 * len(groups) if computed % BLOCK_LEN else 0
    busy = draw(st.integers(0, depth)) * sum(not g.window for g in groups)
    return SequenceView(
        computed=computed,
        known=known,
        table_len=blocks_for(computed),
        claim=seen + copies - busy,
        busy=busy,
        **fields,
    )


def _to_begin(layout: KVLayout, seq: SequenceView, length: int, chunk: int) -> int:
    """Blocks that are not to be had from others, and the one that is copied."""
    copied = len(layout.groups) if seq.computed % BLOCK_LEN else 0
    return blocks_to_hold(layout, length, chunk) - seq.busy + copied


@st.composite
def views(draw: st.DrawFn) -> tuple[int, SchedulerView]:
    which = draw(st.integers(0, len(LAYOUTS) - 1))
    groups = len(LAYOUTS[which].groups)
    running = []
    rank = st.integers(0, 9)
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
                rank=draw(rank),
            )
        )
    ranks = sorted(draw(st.lists(rank, max_size=5)))
    waiting = [
        _waiting(
            draw,
            LAYOUTS[which],
            key=100 + i,
            num_choices=draw(st.integers(1, 3)),
            rank=each,
            passed_over=draw(st.integers(0, 4)),
        )
        for i, each in enumerate(ranks)
    ]
    view = SchedulerView(
        running,
        waiting,
        num_free_blocks=draw(st.integers(0, 60)),
        max_step_tokens=draw(st.integers(8, 64)),
        max_num_seqs=8,
        num_reserved_seqs=sum(s.num_choices for s in running),
        max_partial=draw(st.integers(1, 3)),
        max_passes=draw(st.integers(0, 4)),
        pace=draw(paces()),
        policy=draw(st.sampled_from(POLICIES)),
        room=Room(1000, 1000, num_groups=groups),
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
        free -= seq.claim
    assert free >= 0
    kept = {s.key for s in view.running} - set(decision.preempted)
    assert len({r.key for r in decision.rows}) == len(decision.rows)
    assert {r.key for r in decision.rows} <= kept | set(decision.admitted)
    admitted = sum(by_key[k].num_choices for k in decision.admitted)
    assert not decision.admitted or view.num_reserved_seqs + admitted <= view.max_num_seqs


@settings(max_examples=500, deadline=None)
@given(views())
def test_the_load_is_that_of_the_rows(case: tuple[int, SchedulerView]) -> None:
    decision = _decide(case)
    by_key = {s.key: s for s in [*case[1].running, *case[1].waiting]}
    load = StepLoad()
    for rows in decision.rows:
        for row in range(rows.num_rows):
            seen = by_key[rows.key].computed + row + 1
            if rows.num_rows == 1:
                load.decode_rows, load.decode_context = (
                    load.decode_rows + 1,
                    load.decode_context + seen,
                )
            else:
                load.prompt_rows, load.prompt_context = (
                    load.prompt_rows + 1,
                    load.prompt_context + seen,
                )
    assert decision.load == load


@settings(max_examples=500, deadline=None)
@given(views())
def test_who_is_passed_over_is_counted_and_no_more_than_allowed(
    case: tuple[int, SchedulerView],
) -> None:
    _, view = case
    decision = _decide(case)
    order = [s.key for s in view.waiting]
    places = [order.index(key) for key in decision.admitted]
    assert places == sorted(places)
    by_key = {s.key: s for s in view.waiting}
    for place, key in enumerate(order):
        behind = sum(other > place for other in places)
        if key not in decision.admitted and behind:
            assert decision.passed[key] == behind
            assert by_key[key].passed_over < view.max_passes


@settings(max_examples=500, deadline=None)
@given(views())
def test_the_policy_names_who_is_preempted_and_then_nobody_is_admitted(
    case: tuple[int, SchedulerView],
) -> None:
    _, view = case
    decision = _decide(case)
    running = [s.key for s in view.running]
    if not isinstance(view.policy, Lookahead):
        assert decision.preempted == running[::-1][: len(decision.preempted)]
    assert not (decision.preempted and decision.admitted)
    assert len(set(decision.preempted)) == len(decision.preempted)
    assert not view.running or running[0] not in decision.preempted


@settings(max_examples=300, deadline=None)
@given(views())
def test_the_policy_can_only_refuse(case: tuple[int, SchedulerView]) -> None:
    """One that refuses everybody admits whoever is alone, and counts those that would have fit."""
    which, view = case
    free = schedule(LAYOUTS[which], replace(view, policy=OnDemand()))
    strict = schedule(LAYOUTS[which], replace(view, policy=OnDemand(1 << 20)))
    assert free.held_back == 0
    assert len(strict.admitted) <= (0 if view.running else 1)
    assert bool(strict.held_back) == (len(free.admitted) > len(strict.admitted))


@settings(max_examples=500, deadline=None)
@given(views())
def test_admission_leaves_running_prompts_the_blocks_they_will_need(
    case: tuple[int, SchedulerView],
) -> None:
    which, view = case
    decision = _decide(case)
    if not decision.admitted or not view.running:
        return
    layout, by_key = LAYOUTS[which], {s.key: s for s in view.waiting}
    groups = len(layout.groups)
    needed = sum(
        _to_begin(layout, by_key[key], by_key[key].known + 1, view.max_step_tokens)
        for key in decision.admitted
    )
    for seq in view.running:
        needed += max(0, blocks_for(seq.known) - seq.table_len) * groups
    assert needed <= view.num_free_blocks


@settings(max_examples=500, deadline=None)
@given(views())
def test_no_more_prompts_are_cut_than_allowed(case: tuple[int, SchedulerView]) -> None:
    _, view = case
    decision = _decide(case)
    by_key = {s.key: s for s in [*view.running, *view.waiting]}
    rows = {r.key: r.num_rows for r in decision.rows}
    before = sum(s.known - s.computed > 1 for s in view.running)
    kept = {s.key for s in view.running} - set(decision.preempted) | set(decision.admitted)
    cut = sum(by_key[key].known - by_key[key].computed > max(1, rows.get(key, 0)) for key in kept)
    assert cut <= max(before, view.max_partial)


@settings(max_examples=500, deadline=None)
@given(views())
def test_a_step_keeps_its_pace(case: tuple[int, SchedulerView]) -> None:
    _, view = case
    decision = _decide(case)
    load = decision.load
    by_key = {s.key: s for s in [*view.running, *view.waiting]}
    decodes = StepLoad()
    for rows in decision.rows:
        seq = by_key[rows.key]
        if seq.key < 100 and seq.known - seq.computed == 1:
            decodes.add(seq.computed, 1)
    if view.pace is None or not decodes.decode_rows:
        return
    added_s = view.pace.model.predict(load) - view.pace.model.predict(decodes)
    over = added_s > view.pace.prompts_s(decodes) * (1 + 1e-9) + 1e-12
    prompt_rows = sum(r.num_rows for r in decision.rows) - decodes.decode_rows
    assert not over or prompt_rows <= MIN_CHUNK


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
        needed = _to_begin(layout, first, first.known, view.max_step_tokens)
        if needed <= view.num_free_blocks:
            assert decision.rows


@settings(max_examples=300, deadline=None)
@given(views())
def test_a_decision_depends_on_the_view_alone(case: tuple[int, SchedulerView]) -> None:
    assert _decide(case) == _decide(case)


def _rows(view: SchedulerView) -> dict[int, int]:
    return {r.key: r.num_rows for r in schedule(LAYOUTS[0], view).rows}


def test_decodes_run_beside_a_long_prompt() -> None:
    decoding = [SequenceView(i, 30, 31, 2, 2) for i in range(3)]
    prompt = SequenceView(9, 0, 1000)
    view = SchedulerView([*decoding, prompt], [], 500, 64, 8, 4)
    assert _rows(view) == {0: 1, 1: 1, 2: 1, 9: 61}


def test_a_short_prompt_overtakes_a_long_one_amid_its_chunks() -> None:
    long = SequenceView(1, 512, 4000, 32, 32, rank=1)
    short = SequenceView(2, 0, 40, rank=0)
    assert _rows(SchedulerView([long], [short], 500, 64, 8, 1)) == {2: 40, 1: 24}


def test_a_chunk_is_as_long_as_the_step_may_be() -> None:
    decoding = SequenceView(1, 99, 100, 7, 7)
    prompt = SequenceView(2, 0, 1000)
    # The decode takes 1.25 s, and 40 rows of the prompt as long again. A prompt gets an eighth of
    # that although the decode breaks the bound.
    cases = (Pace(SLOW, 2.5), 40), (Pace(SLOW, 0.0, 2.0), 40), (Pace(SLOW, 1.0), 5)
    for pace, rows in (*cases, (Pace(SLOW, 2.5, margin=1.25 * TOLERANCE), 24)):
        view = SchedulerView([decoding], [prompt], 500, 512, 8, 1, pace=pace)
        assert _rows(view) == {1: 1, 2: rows}
    # However long its rows take, the first prompt gets some, and no other one then does.
    dear = Pace(StepTime(1.0, 0.0, 0.0, 1.0, 0.0), 2.5)
    view = SchedulerView([decoding], [prompt, SequenceView(3, 0, 900)], 500, 512, 8, 1, pace=dear)
    assert _rows(view) == {1: 1, 2: MIN_CHUNK}
    # Decodes may get a step alone.
    alone = Pace(SLOW, 2.5, is_alone=True)
    assert _rows(SchedulerView([decoding], [prompt], 500, 512, 8, 1, pace=alone)) == {1: 1}
    assert _rows(SchedulerView([], [prompt], 500, 512, 8, 0, pace=alone)) == {2: 512}
    # Nobody waits for the end of a step without decodes.
    assert _rows(SchedulerView([], [prompt], 500, 512, 8, 0, pace=Pace(SLOW, 1.3))) == {2: 512}


def test_what_does_not_fit_is_passed_over_and_then_waited_for() -> None:
    running = [SequenceView(1, 30, 31, 2, 2)]
    for passed_over, admitted in ((2, [8, 9]), (3, [])):
        waiting = [
            SequenceView(7, 0, 900, passed_over=passed_over),
            SequenceView(8, 0, 20),
            SequenceView(9, 0, 30),
        ]
        view = SchedulerView(running, waiting, 20, 64, 8, 1, max_passes=3)
        decision = schedule(LAYOUTS[0], view)
        assert decision.admitted == admitted
        assert decision.passed[7] == len(admitted)
