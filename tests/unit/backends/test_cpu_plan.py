"""What a plan may say: copies, samples of the step before, several samples of a row; and that a bad
plan is an error that changes nothing."""

from __future__ import annotations

import copy
import math
import random
import struct
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from headrace.backends.base import RowResult, SamplingSpec, StepPlan, WantedRow
from headrace.backends.cpu import CpuBackend
from headrace.weights.base import DType
from tests.support.cpu_runs import Request, RowBits, Run, empty_plan, load, row_bits
from tests.support.make_model import make_gguf
from tests.support.plans import PlanMaker, TestSequence
from tests.support.sources import memory_source

GREEDY = SamplingSpec(temperature=0.0, num_top=2)
VOCAB = 320
PROMPT = [random.Random(3).randrange(3, VOCAB) for _ in range(45)]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CpuBackend:
    path = tmp_path_factory.mktemp("made") / "model.gguf"
    made = make_gguf(
        path, family=request.param, dtype=DType.Q4_1, window=20, tokenizer=None, vocab_size=VOCAB
    )
    return load(memory_source(made), num_blocks=64, threads=2, max_step_rows=64)


def _bits(backend: CpuBackend, plan: StepPlan) -> list[RowBits]:
    """Of the wanted rows, which must be the last rows of their sequences."""
    rows = backend.collect(backend.submit(plan)).rows
    return [row_bits(row, []) for row in rows]


def _alone(backend: CpuBackend, tokens: list[int]) -> RowBits:
    maker = PlanMaker(backend.layout, backend.num_blocks)
    wanted = [WantedRow(len(tokens) - 1, GREEDY)]
    return _bits(backend, maker.plan([(maker.sequence(), tokens)], wanted))[0]


def _prompt_plan(backend: CpuBackend) -> StepPlan:
    maker = PlanMaker(backend.layout, backend.num_blocks)
    wanted = [WantedRow(8, GREEDY), WantedRow(11, GREEDY)]
    parts = [(maker.sequence(), PROMPT[:9]), (maker.sequence(), PROMPT[:3])]
    return maker.plan(parts, wanted, copies=[(60, 61)])


def test_a_copied_block_is_a_fork(backend: CpuBackend) -> None:
    maker = PlanMaker(backend.layout, backend.num_blocks)
    trunk, branch = maker.sequence(), maker.sequence()
    backend.submit(maker.plan([(trunk, PROMPT[:20])]))
    copies = []
    for group, table in enumerate(trunk.tables):
        tail = maker.block()
        branch.tables[group] = [*table[:-1], tail]
        copies.append((table[-1], tail))
    branch.num_planned = trunk.num_planned
    wanted = [WantedRow(0, GREEDY), WantedRow(1, GREEDY)]
    plan = maker.plan([(trunk, [3]), (branch, [4])], wanted, copies=copies)
    assert _bits(backend, plan) == [
        _alone(backend, [*PROMPT[:20], 3]),
        _alone(backend, [*PROMPT[:20], 4]),
    ]


def test_copies_run_in_order_and_alone(backend: CpuBackend) -> None:
    maker = PlanMaker(backend.layout, backend.num_blocks)
    sequence, moved = maker.sequence(), maker.sequence()
    backend.submit(maker.plan([(sequence, PROMPT[:10])]))
    plan = empty_plan(backend)
    for group, table in enumerate(sequence.tables):
        between, end = maker.block(), maker.block()
        plan.copies += [(table[0], between), (between, end)]
        moved.tables[group] = [end]
    backend.submit(plan)
    moved.num_planned = 10
    wanted = [WantedRow(0, GREEDY)]
    assert _bits(backend, maker.plan([(moved, [7])], wanted)) == [
        _alone(backend, [*PROMPT[:10], 7])
    ]


def test_blocks_behind_the_window_are_not_read(backend: CpuBackend) -> None:
    maker = PlanMaker(backend.layout, backend.num_blocks)
    sequence = maker.sequence()
    backend.submit(maker.plan([(sequence, PROMPT[:-1])]))
    for group, table in zip(backend.layout.groups, sequence.tables, strict=True):
        if group.window:
            first_seen = len(PROMPT) - 1 - (group.window - 1)
            for index in range(first_seen // 16):
                table[index] = -1
    plan = maker.plan([(sequence, PROMPT[-1:])], [WantedRow(0, GREEDY)])
    assert _bits(backend, plan) == [_alone(backend, PROMPT)]


def test_a_token_may_be_the_sample_of_the_step_before(backend: CpuBackend) -> None:
    maker = PlanMaker(backend.layout, backend.num_blocks)
    first, second = maker.sequence(), maker.sequence()
    wanted = [WantedRow(9, GREEDY), WantedRow(19, GREEDY)]
    plan = maker.plan([(first, PROMPT[:10]), (second, PROMPT[10:20])], wanted)
    drawn = [row.token for row in backend.collect(backend.submit(plan)).rows]
    wanted = [WantedRow(0, GREEDY), WantedRow(1, GREEDY)]
    got = _bits(backend, maker.plan([(second, [-2]), (first, [-1])], wanted))
    assert got == [
        _alone(backend, [*PROMPT[10:20], drawn[1]]),
        _alone(backend, [*PROMPT[:10], drawn[0]]),
    ]


def test_only_drawn_samples_can_be_named(backend: CpuBackend) -> None:
    maker = PlanMaker(backend.layout, backend.num_blocks)
    sequence = maker.sequence()
    target = WantedRow(4, GREEDY, sample=False, target=5)
    backend.submit(maker.plan([(sequence, PROMPT[:5])], [target]))
    for token in (-1, -2, -(2**31)):
        with pytest.raises(ValueError, match="sample that the previous step did not draw"):
            backend.submit(maker.plan([(maker.sequence(), [token])]))


def test_one_row_gives_targets_and_samples_of_many_choices(backend: CpuBackend) -> None:
    maker = PlanMaker(backend.layout, backend.num_blocks)
    wanted = [
        WantedRow(3, GREEDY, sample=False, target=PROMPT[4]),
        *(WantedRow(9, SamplingSpec(seed=seed, num_top=0), output_pos=2) for seed in range(40)),
    ]
    rows = backend.collect(
        backend.submit(maker.plan([(maker.sequence(), PROMPT[:10])], wanted))
    ).rows
    assert rows[0].token == PROMPT[4]
    assert len({row.token for row in rows[1:]}) > 10
    seeds = [SamplingSpec(seed=seed, num_top=0) for seed in (7, 8)]
    alone = [WantedRow(9, spec, output_pos=2) for spec in seeds]
    again = backend.collect(
        backend.submit(maker.plan([(maker.sequence(), PROMPT[:10])], alone))
    ).rows
    assert again == [rows[8], rows[9]]


def test_logprobs_are_nan_unless_asked_for(backend: CpuBackend) -> None:
    maker = PlanMaker(backend.layout, backend.num_blocks)
    wanted = [WantedRow(0, SamplingSpec(seed=1)), WantedRow(1, SamplingSpec(seed=1, num_top=4))]
    rows = backend.collect(
        backend.submit(maker.plan([(maker.sequence(), PROMPT[:2])], wanted))
    ).rows
    assert math.isnan(rows[0].logprob)
    assert rows[0].top == []
    assert rows[1].logprob <= 0.0
    assert [value for _, value in rows[1].top] == sorted(
        (value for _, value in rows[1].top), reverse=True
    )
    assert isinstance(rows[0], RowResult)


Change = Callable[[StepPlan], object]


def _set(name: str, index: int, value: int) -> Change:
    return lambda plan: getattr(plan, name).__setitem__(index, value)


BAD_PLANS: dict[str, tuple[Change, str]] = {
    "token too high": (_set("tokens", 1, VOCAB), "beyond the vocabulary"),
    "negative position": (_set("positions", 0, -1), "position out of range"),
    "position gap": (_set("positions", 3, 7), "does not follow"),
    "too few positions": (lambda p: p.positions.pop(), "no token or no position"),
    "sequence beyond rows": (_set("seq_starts", 2, 13), "end at the last row"),
    "sequence out of order": (_set("seq_starts", 1, 40), "has no rows"),
    "empty sequence": (lambda p: p.seq_starts.insert(1, 9), "has no rows"),
    "no sequences": (lambda p: p.seq_starts.pop(), "end at the last row"),
    "no tables": (lambda p: p.tables.clear(), "no block tables"),
    "short table": (lambda p: p.tables[0].pop(), "too short"),
    "table start": (lambda p: p.table_starts[0].__setitem__(0, -1), "too short"),
    "missing start": (lambda p: p.table_starts[0].pop(), "lacks the block table"),
    "block too high": (lambda p: p.tables[0].__setitem__(0, 64), "outside the pool"),
    "block missing": (lambda p: p.tables[0].__setitem__(0, -1), "outside the pool"),
    "shared write": (lambda p: p.tables[0].__setitem__(1, p.tables[0][0]), "written twice"),
    "copy outside": (lambda p: p.copies.append((0, 64)), "outside the pool"),
    "copy to itself": (lambda p: p.copies.append((5, 5)), "or one twice"),
    "wanted beyond rows": (lambda p: p.wanted.append(WantedRow(12, GREEDY)), "increasing order"),
    "wanted out of order": (lambda p: p.wanted.append(WantedRow(3, GREEDY)), "increasing order"),
    "nothing wanted": (
        lambda p: p.wanted.append(WantedRow(11, GREEDY, sample=False)),
        "neither a sample nor a target",
    ),
    "target": (lambda p: p.wanted.append(WantedRow(11, GREEDY, target=VOCAB)), "target beyond"),
    "output position": (
        lambda p: p.wanted.append(WantedRow(11, GREEDY, output_pos=-1)),
        "negative output position",
    ),
    "history": (
        lambda p: p.wanted.append(WantedRow(11, GREEDY, history=array("i", [VOCAB]))),
        "history id",
    ),
    "prompt length": (
        lambda p: p.wanted.append(WantedRow(11, GREEDY, history=array("i", [1]), prompt_len=2)),
        "longer than its history",
    ),
    "banned": (lambda p: p.wanted.append(WantedRow(11, GREEDY, banned=(-1,))), "bans an id"),
    "mask": (lambda p: p.wanted.append(WantedRow(11, GREEDY, mask=b"\xff")), "mask"),
    "bias": (
        lambda p: p.wanted.append(WantedRow(11, SamplingSpec(logit_bias=((VOCAB, 1.0),)))),
        "bias on an id",
    ),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_a_bad_plan_is_an_error_that_changes_nothing(backend: CpuBackend, name: str) -> None:
    change, message = BAD_PLANS[name]
    expected = _bits(backend, _prompt_plan(backend))
    plan = _prompt_plan(backend)
    change(plan)
    with pytest.raises(ValueError, match=message):
        backend.submit(plan)
    maker = PlanMaker(backend.layout, backend.num_blocks, seed=9)
    follow_up = maker.plan([(maker.sequence(), [-1])], [WantedRow(0, GREEDY)])
    assert _bits(backend, follow_up) == [_alone(backend, [expected[0][0]])]


def test_a_step_has_a_largest_size(backend: CpuBackend) -> None:
    maker = PlanMaker(backend.layout, backend.num_blocks)
    backend.submit(maker.plan([(maker.sequence(), PROMPT[:1] * 64)]))
    with pytest.raises(ValueError, match="beyond the largest step"):
        backend.submit(maker.plan([(maker.sequence(), PROMPT[:1] * 65)]))


def test_a_step_wants_every_row_and_as_many_choices(backend: CpuBackend) -> None:
    """A prompt that fills the largest step, each row wanted, the last by 65 choices."""
    tokens = [PROMPT[i % 45] for i in range(64)]
    wanted = [WantedRow(row, GREEDY) for row in range(64)]
    wanted += [WantedRow(63, SamplingSpec(seed=i, num_top=2)) for i in range(64)]
    maker = PlanMaker(backend.layout, backend.num_blocks)
    together = _bits(backend, maker.plan([(maker.sequence(), tokens)], wanted))
    assert together[:64:9] == [_alone(backend, tokens[: n + 1]) for n in range(0, 64, 9)]
    for i in range(0, 64, 21):
        maker = PlanMaker(backend.layout, backend.num_blocks)
        plan = maker.plan([(maker.sequence(), tokens)], [structs.replace(wanted[64 + i])])
        assert _bits(backend, plan) == [together[64 + i]]
    maker = PlanMaker(backend.layout, backend.num_blocks)
    with pytest.raises(ValueError, match="beyond the largest step"):
        backend.submit(maker.plan([(maker.sequence(), tokens)], [*wanted, wanted[-1]]))


def test_arrays_of_another_type_are_refused(backend: CpuBackend) -> None:
    plan = _prompt_plan(backend)
    wrong: Any = array("q", plan.tokens)
    with pytest.raises(TypeError, match="32-bit integers"):
        backend.submit(replace(plan, tokens=wrong))
    unboxed: Any = list(plan.tokens)
    with pytest.raises(TypeError):
        backend.submit(replace(plan, tokens=unboxed))


VALUES = st.one_of(
    st.integers(-3, 70),
    st.sampled_from([2**31 - 1, -(2**31), 2**28, 2**20, VOCAB - 1, VOCAB, 1023, 1024]),
)
CHANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 20), VALUES), max_size=4)


def _mutate(plan: StepPlan, field: int, index: int, value: int) -> None:
    arrays = [plan.tokens, plan.positions, plan.seq_starts, *plan.tables, *plan.table_starts]
    target = arrays[field % len(arrays)]
    if index == 20:
        target.append(value)
    elif index == 19 and target:
        target.pop()
    elif index == 18:
        plan.copies.append((value, index))
    elif index == 17:
        plan.wanted.append(WantedRow(value, GREEDY))
    elif index == 16:
        plan.wanted[0] = WantedRow(8, GREEDY, target=value, history=array("i", [value]))
    elif target:
        target[index % len(target)] = value


@settings(max_examples=300, deadline=None)
@given(changes=CHANGES)
def test_any_plan_runs_or_is_an_error(backend: CpuBackend, changes: list[Any]) -> None:
    plan = _prompt_plan(backend)
    for change in changes:
        _mutate(plan, *change)
    num_wanted = len(plan.wanted)
    try:
        result = backend.collect(backend.submit(copy.deepcopy(plan)))
    except (ValueError, OverflowError):
        pass
    else:
        assert len(result.rows) == num_wanted
    sequences = [Request(tuple(PROMPT[:9]), GREEDY)]
    again = Run(backend, sequences).steps([[(0, 9)]])
    assert again[(0, 8)][:3] == _alone(backend, PROMPT[:9])[:3]


def test_a_nan_harms_its_own_sequence_only(tmp_path: Path) -> None:
    """Neither rows beside it, nor a sequence that gets its blocks later and reads stale KV around
    its own."""
    made = make_gguf(
        tmp_path / "m.gguf", dtype=DType.F32, tokenizer=None, vocab_size=VOCAB, tied_head=False
    )
    table = made.tensors["token_embd.weight"]
    row_bytes = len(table.data) // VOCAB
    poison = struct.pack("<f", math.nan) * (row_bytes // 4)
    data = table.data[: 5 * row_bytes] + poison + table.data[6 * row_bytes :]
    made.tensors["token_embd.weight"] = replace(table, data=data)
    backend = load(memory_source(made), num_blocks=8, threads=2)
    tokens = [token for token in PROMPT if token != 5]
    clean = _alone(backend, tokens[:20])
    maker = PlanMaker(backend.layout, backend.num_blocks)
    sick = maker.sequence()
    wanted = [WantedRow(19, GREEDY), WantedRow(39, GREEDY)]
    parts = [(maker.sequence(), tokens[:20]), (sick, [*tokens[:8], 5, *tokens[:11]])]
    healthy, failed = backend.collect(backend.submit(maker.plan(parts, wanted))).rows
    assert row_bits(healthy, []) == clean
    assert failed.failed
    reused = TestSequence([list(table) for table in sick.tables])
    plan = maker.plan([(reused, tokens[:20])], [WantedRow(19, GREEDY)])
    assert _bits(backend, plan) == [clean]
    first = TestSequence([list(table) for table in sick.tables])
    backend.submit(maker.plan([(sick, [5] * 12)]))
    short = maker.plan([(first, tokens[:3])], [WantedRow(2, GREEDY)])
    assert _bits(backend, short) == [_alone(backend, tokens[:3])]
