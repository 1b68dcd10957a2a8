"""Attention equals its definition bit for bit, however it is cut, batched or laid out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._native import testing
from headrace.backends.layout import KV_DTYPES
from tests.support.attention_model import (
    BLOCK_LEN,
    SPLIT_LEN,
    Plan,
    Sequence_,
    Shape,
    Step,
    by_definition,
    in_float64,
    random_sequence,
    share_prefix,
)
from tests.support.native_floats import ISAS, same_bits

every_isa = pytest.mark.parametrize("isa", ISAS)
EDGES = (1, 15, 16, 17, 255, 256, 257, 512, 513, 530)
seeds = st.integers(0, 2**32 - 1)

shapes = st.builds(
    lambda group, kv, eighths, *rest: Shape(group * kv, kv, 8 * eighths, *rest),
    st.sampled_from([1, 2, 3, 4, 7]),
    st.integers(1, 2),
    st.integers(2, 5),
    st.sampled_from([0, 0, 1, 5, 16, 100, 255, 256, 257, 300]),
    st.sampled_from([0.0, 0.0, 30.0]),
    st.sampled_from(["fp16", "int8"]),
)


def _step(shape: Shape, lengths: list[tuple[int, int]], seed: int) -> Step:
    """Sequences of (length, rows of the step)."""
    rng = np.random.default_rng(seed)
    return Step(shape, [random_sequence(shape, n, rows, rng) for n, rows in lengths], rng)


def _defined(step: Step) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.concatenate([by_definition(step.shape, s) for s in step.sequences])


@st.composite
def plans(draw: st.DrawFn, step: Step) -> Plan:
    """Any cut of a step: rows in any chunks, each whole or split by split, in any order."""
    shape = step.shape
    limit = testing.attend_row_tile(shape.num_heads, shape.num_kv_heads)
    items, merges, num_partials = [], [], 0
    for seq, (begin, end) in enumerate(zip(step.seq_starts, step.seq_starts[1:], strict=False)):
        for kv_head in range(shape.num_kv_heads):
            row = begin
            while row < end:
                rows = draw(st.integers(1, min(limit, end - row)))
                last = step.positions[row + rows - 1] // SPLIT_LEN + 1
                if draw(st.booleans()):
                    items.append([seq, row, rows, kv_head, 0, last, -1, -1])
                else:
                    lines = rows * shape.group
                    for line in range(lines):
                        head = kv_head * shape.group + line % shape.group
                        first = num_partials + line
                        merges.append([row + line // shape.group, head, last, first, lines])
                    split = 0
                    while split < last:
                        end_split = draw(st.integers(split + 1, last))
                        items.append([seq, row, rows, kv_head, split, end_split, num_partials, -1])
                        num_partials += lines * (end_split - split)
                        split = end_split
                row += rows
    return draw(st.permutations(items)), draw(st.permutations(merges)), num_partials, []


@every_isa
@pytest.mark.parametrize("length", EDGES)
def test_one_row_at_every_edge_of_blocks_and_splits(isa: str, length: int) -> None:
    step = _step(Shape(), [(length, 1)], length)
    assert same_bits(step.attend(isa), _defined(step))


@every_isa
@settings(deadline=None, max_examples=40)
@given(
    shape=shapes,
    lengths=st.lists(
        st.tuples(st.sampled_from(EDGES) | st.integers(1, 300), st.integers(1, 24)),
        min_size=1,
        max_size=2,
    ),
    loudness=st.sampled_from([1, 1, 100]),
    seed=seeds,
)
def test_equals_the_definition(
    isa: str, shape: Shape, lengths: list[tuple[int, int]], loudness: int, seed: int
) -> None:
    """Loud queries have weights that underflow to 0, also between splits."""
    step = _step(shape, [(length, min(length, rows)) for length, rows in lengths], seed)
    for sequence in step.sequences:
        sequence.q *= np.float32(loudness)
    assert same_bits(step.attend(isa, pad=8), _defined(step))


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("head_dim", range(16, 257, 8))
def test_every_head_dim(head_dim: int, kv_dtype: str) -> None:
    """One row and many tiles of rows, across a split."""
    shape = Shape(4, 2, head_dim, kv_dtype=kv_dtype)
    step = _step(shape, [(259, 1), (40, 40)], head_dim)
    expected = _defined(step)
    for isa in ISAS:
        assert same_bits(step.attend(isa), expected)


@every_isa
@pytest.mark.parametrize(
    "shape",
    [
        Shape(9, 3, 64),
        Shape(9, 3, 64, kv_dtype="int8"),
        Shape(14, 2, 64),
        Shape(4, 1, 256, window=512),
        Shape(4, 4, 80, softcap=50),
    ],
    ids=str,
)
def test_follows_float64(isa: str, shape: Shape) -> None:
    step = _step(shape, [(700, 70), (530, 1)], 6)
    exact = np.concatenate([in_float64(shape, s) for s in step.sequences])
    assert np.allclose(step.attend(isa), exact, rtol=0, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(
    shape=shapes,
    lengths=st.lists(
        st.tuples(st.sampled_from(EDGES) | st.integers(1, 900), st.integers(1, 70)),
        min_size=1,
        max_size=4,
    ),
    seed=seeds,
    data=st.data(),
)
def test_no_cut_changes_a_bit(
    shape: Shape, lengths: list[tuple[int, int]], seed: int, data: st.DataObject
) -> None:
    """Any chunks, any splits, any order, any thread count, and each sequence by itself."""
    step = _step(shape, [(length, min(length, rows)) for length, rows in lengths], seed)
    expected = step.attend(ISAS[0])
    assert not np.isnan(expected).any()
    assert same_bits(step.attend(ISAS[0], data.draw(plans(step))), expected)
    for num_threads in (2, 3, 16):
        assert same_bits(step.attend(ISAS[0], step.plan(num_threads)), expected)
    for sequence, begin in zip(step.sequences, step.seq_starts, strict=False):
        alone = Step(shape, [sequence], np.random.default_rng(seed + 1))
        assert same_bits(alone.attend(ISAS[0]), expected[begin : begin + len(sequence.q)])


@every_isa
@settings(deadline=None, max_examples=25)
@given(shape=shapes, length=st.integers(1, 600), chunk=st.integers(1, 30), seed=seeds)
def test_prompt_chunks_equal_the_whole_prompt(
    isa: str, shape: Shape, length: int, chunk: int, seed: int
) -> None:
    """Each step sees only the KV written so far: the rest of its memory is NaN."""
    rng = np.random.default_rng(seed)
    whole = random_sequence(shape, length, min(length, 90), rng)
    expected = Step(shape, [whole], rng).attend(isa)
    parts = []
    for begin in range(0, len(whole.q), chunk):
        q = whole.q[begin : begin + chunk]
        end = whole.first + begin + len(q)
        part = Sequence_(q, whole.k[:end], whole.v[:end], whole.first + begin)
        parts.append(Step(shape, [part], rng).attend(isa))
    assert same_bits(np.concatenate(parts), expected)


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 255, 256, 257])
@pytest.mark.parametrize("first", [0, 250, 500])
def test_windows_that_begin_at_the_edges(window: int, first: int) -> None:
    """Rows whose first visible key runs over block and split edges."""
    shape = Shape(3, 1, 16, window)
    step = _step(shape, [(first + 40, 40)], window)
    expected = _defined(step)
    for isa in ISAS:
        for num_threads in (1, 4):
            assert same_bits(step.attend(isa, step.plan(num_threads)), expected)


@every_isa
def test_splits_that_a_row_does_not_see(isa: str) -> None:
    """Rows about the start of split 3: states of splits 0 and 1 are empty, others for some rows."""
    shape = Shape(2, 1, 16, window=20)
    for last in (3 * SPLIT_LEN + 10, 3 * SPLIT_LEN + 30):
        step = _step(shape, [(last, 24)], 7)
        lines = 24 * 2
        items = [[0, 0, 24, 0, split, split + 1, split * lines, -1] for split in range(4)]
        merges = [[line // 2, line % 2, 4, line, lines] for line in range(lines)]
        expected = _defined(step)
        assert same_bits(step.attend(isa, (items, merges, 4 * lines, [])), expected)
        assert same_bits(step.attend(isa, ([[0, 0, 24, 0, 0, 4, -1, -1]], [], 0, [])), expected)


@every_isa
def test_a_row_with_nan_harms_only_itself(isa: str) -> None:
    step = _step(Shape(3, 1, 32), [(300, 20), (40, 3)], 8)
    expected = step.attend(isa).copy()
    step.sequences[0].q[5, 1, 0] = np.nan
    step.sequences[0].q[9, 2, 7] = np.inf
    got = step.attend(isa)
    assert np.isnan(got[5, 1]).all()
    assert np.isnan(got[9, 2]).all()
    expected[5, 1] = expected[9, 2] = np.nan
    assert same_bits(got, expected)


@every_isa
def test_an_infinite_value_reaches_only_rows_that_see_it(isa: str) -> None:
    """No row multiplies V of a later position, not even by zero."""
    shape = Shape(3, 1, 16)
    rng = np.random.default_rng(9)
    sequence = random_sequence(shape, 60, 60, rng)
    sequence.v[37] = np.inf
    got = Step(shape, [sequence], rng).attend(isa)
    assert np.isfinite(got[:37]).all()
    assert np.isinf(got[37:]).all()


@every_isa
@pytest.mark.parametrize("spoilt", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["k", "v"])
def test_int8_of_a_position_that_is_not_finite(isa: str, part: str, spoilt: float) -> None:
    """The rows that see it are NaN, whatever its head; the others do not notice."""
    shape = Shape(4, 2, 16, kv_dtype="int8")
    rng = np.random.default_rng(10)
    sequence = random_sequence(shape, 60, 60, rng)
    expected = Step(shape, [sequence], rng).attend(isa).copy()
    getattr(sequence, part)[37, 0, 5] = spoilt
    expected[37:, :2] = np.nan
    assert same_bits(Step(shape, [sequence], rng).attend(isa), expected)


@every_isa
def test_every_half_is_read_as_it_is(isa: str) -> None:
    """With one visible key the output is its V: all float16 values pass through."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[~np.isnan(halves)]
    shape = Shape(1, 1, 16, window=1)
    for v in np.array_split(np.resize(halves, (4096, 1, 1, 16)), 8):
        sequences = [Sequence_(np.ones_like(one), np.ones_like(one), one, 0) for one in v]
        got = Step(shape, sequences, np.random.default_rng(0)).attend(isa)
        assert same_bits(got[:, None], v + np.float32(0))  # fma(1, -0, +0) is +0


def test_plan_covers_every_row_and_head_once() -> None:
    @settings(deadline=None, max_examples=100)
    @given(
        shape=shapes,
        lengths=st.lists(
            st.tuples(st.integers(1, 5000), st.integers(1, 200)), min_size=1, max_size=5
        ),
        num_threads=st.integers(1, 32),
        shared_blocks=st.sampled_from([0, 15, 16, 40, 200]),
    )
    def check(
        shape: Shape, lengths: list[tuple[int, int]], num_threads: int, shared_blocks: int
    ) -> None:
        rows = [min(length, count) for length, count in lengths]
        positions = [p for (n, _), r in zip(lengths, rows, strict=True) for p in range(n - r, n)]
        starts = [0, *np.cumsum(rows).tolist()]
        plan = _plan(shape, lengths, num_threads, shared_blocks)
        _check_plan(shape, positions, starts, plan)
        if num_threads == 1 and shared_blocks < SPLIT_LEN // BLOCK_LEN:
            assert not plan[1]
            assert not plan[3]

    check()


def _plan(
    shape: Shape, lengths: list[tuple[int, int]], num_threads: int, shared_blocks: int = 0
) -> Plan:
    """The plan of sequences whose first blocks are the same."""
    rows = [min(length, count) for length, count in lengths]
    positions = [p for (n, _), r in zip(lengths, rows, strict=True) for p in range(n - r, n)]
    tables: list[int] = []
    table_starts: list[int] = []
    for index, (length, _) in enumerate(lengths):
        table_starts.append(len(tables))
        own = 1000 * (index + 1)
        tables += [b if b < shared_blocks else own + b for b in range(-(-length // BLOCK_LEN))]
    return testing.plan_attention(
        positions, [0, *np.cumsum(rows).tolist()], tables, table_starts, shape.window,
        shape.num_heads, shape.num_kv_heads, num_threads,
    )  # fmt: skip


def _check_plan(shape: Shape, positions: list[int], starts: list[int], plan: Plan) -> None:
    """Items cover exactly the visible splits of every (row, kv head); states are written once."""
    items, merges, num_partials, shared_rows = plan
    limit = testing.attend_row_tile(shape.num_heads, shape.num_kv_heads)
    covered: dict[tuple[int, int], list[int]] = {}
    states: dict[int, tuple[int, int, int]] = {}
    whole = set()
    for seq, row, rows, kv_head, begin, end, partial, shared in items:
        assert 1 <= rows <= limit
        # (row, state of its first head in split 0, states between splits)
        members = [
            (row + i, partial + (i - begin * rows) * shape.group, rows * shape.group)
            for i in range(rows)
        ]
        if shared >= 0:
            members = [(r, state, stride) for r, stride, state in shared_rows[shared:][:rows]]
            for r, _, _ in members:
                assert positions[r] >= end * SPLIT_LEN - 1
                assert not shape.window or positions[r] - shape.window < begin * SPLIT_LEN
        else:
            assert starts[seq] <= row
            assert row + rows <= starts[seq + 1]
        for r, first_state, stride in members:
            covered.setdefault((r, kv_head), []).extend(range(begin, end))
            for g in range(shape.group):
                if partial < 0 and shared < 0:
                    whole.add((r, kv_head * shape.group + g))
                    continue
                for split in range(begin, end):
                    state = first_state + split * stride + g
                    assert state not in states
                    states[state] = (r, kv_head * shape.group + g, split)
    assert sorted(states) == list(range(num_partials))
    for (r, _), splits in covered.items():
        low = max(0, positions[r] - shape.window + 1) if shape.window else 0
        assert len(set(splits)) == len(splits)
        assert set(range(low // SPLIT_LEN, positions[r] // SPLIT_LEN + 1)) <= set(splits)
    merged = set()
    for row, head, num_splits, first, stride in merges:
        chain = [states[first + s * stride] for s in range(num_splits)]
        assert all(state[:2] == (row, head) for state in chain)
        assert [state[2] for state in chain] == list(range(chain[0][2], chain[0][2] + num_splits))
        assert (row, head) not in merged
        merged.add((row, head))
    every = {(r, h) for r in range(len(positions)) for h in range(shape.num_heads)}
    assert whole | merged == every
    assert not whole & merged


def test_plan_spreads_one_long_context_over_the_threads() -> None:
    items, merges, _, _ = _plan(Shape(8, 1), [(8192, 1)], 4)
    assert sum(end - begin for *_, begin, end, _, _ in items) == 8192 // SPLIT_LEN
    assert max(end - begin for *_, begin, end, _, _ in items) <= 8192 // SPLIT_LEN // 8
    assert len(merges) == 8
    short, none, _, _ = _plan(Shape(8, 1), [(BLOCK_LEN + 1, 1)], 4)
    assert len(short) == 1
    assert not none


def test_plan_reads_a_prefix_once_for_all_its_sequences() -> None:
    """32 choices of one prompt: of 4 splits in full, one read for each KV head, in one pass."""
    shape = Shape(9, 3, 64)
    items, merges, _, shared_rows = _plan(shape, [(1030 + i, 1) for i in range(32)], 2, 64)
    shared = [item for item in items if item[7] >= 0]
    assert sum(item[5] - item[4] for item in shared) == 4 * 3
    assert all(item[2] == 32 for item in shared)
    assert len(shared_rows) == 32 * 3
    assert len(items) - len(shared) == 32 * 3
    assert len(merges) == 32 * 9


@settings(deadline=None, max_examples=60)
@given(
    shape=shapes,
    lengths=st.lists(
        st.tuples(st.sampled_from(EDGES) | st.integers(1, 900), st.integers(1, 3)),
        min_size=2,
        max_size=6,
    ),
    shared=st.sampled_from([15, 16, 17, 32, 50]),
    seed=seeds,
)
def test_rows_that_share_blocks_are_computed_as_if_alone(
    shape: Shape, lengths: list[tuple[int, int]], shared: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    sequences = [random_sequence(shape, length, min(length, rows), rng) for length, rows in lengths]
    counts = share_prefix(sequences, [shared - i % 2 for i in range(len(lengths))])
    step = Step(shape, sequences, rng, counts)
    alone = [Step(shape, [s], rng).attend(ISAS[0]) for s in sequences]
    for num_threads in (1, 2, 5):
        plan = step.plan(num_threads)
        for isa in ISAS:
            assert same_bits(step.attend(isa, plan), np.concatenate(alone))
