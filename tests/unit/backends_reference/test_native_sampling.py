"""Native sampling equals the NumPy twin on the same logits: ids, logprobs, alternatives, failures.

The logits are a row of the embedding table: the head is the identity, so that any finite float can
be one. Ids are equal unless two scores agree to about 1e-12 or a weight lies within one rounding of
a filter's limit; none of these seeds comes near.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from msgspec import structs

from headrace import _native
from headrace.backends.base import RowResult, SamplingSpec, WantedRow
from headrace.backends.cpu import CpuBackend
from headrace.backends.reference.sampling import gumbel_noise, sample_row
from headrace.models.program import Buffer, Embed, Head, Program, RopeTable, Rows, SelectWanted
from headrace.weights.base import DType
from tests.support.make_model import MadeTensor, Shape
from tests.support.plans import PlanMaker
from tests.support.sources import MemorySource, model_config

Floats = npt.NDArray[np.float32]
VOCAB = 1021  # no multiple of any vector width


def _special_rows(rng: np.random.Generator) -> list[Floats]:
    """Equal, huge, tiny; a row that holds a NaN becomes one of NaNs."""
    normal = rng.standard_normal(VOCAB).astype(np.float32)
    with_nan = normal.copy()
    with_nan[VOCAB - 1] = np.nan
    return [
        np.zeros(VOCAB, np.float32),
        normal * np.float32(1e30),
        normal * np.float32(1e-30),
        with_nan,
        normal * np.float32(5e37),
    ]


def _logit_rows() -> Floats:
    """Rows of many spreads, rows full of ties, and rows that are hard."""
    rng = np.random.default_rng(0)
    spreads = [0.1, 1.0, 3.0, 10.0, 40.0]
    rows = [(rng.standard_normal(VOCAB) * s).astype(np.float32) for s in spreads for _ in range(6)]
    rows += [rng.integers(-3, 4, VOCAB).astype(np.float32) for _ in range(4)]
    return np.stack(rows + _special_rows(rng))


ROWS = _logit_rows()
NUM_USUAL = len(ROWS) - 5


def _program() -> Program:
    ops = (
        Embed(-1, 0, "x", "token_embd.weight", 1.0),
        SelectWanted(-1, 1, "w", "x"),
        Head(-1, 1, "w", "output.weight", 0.0),
    )
    buffers = (Buffer("x", VOCAB), Buffer("w", VOCAB, Rows.WANTED))
    return Program(buffers, ops, (RopeTable((1.0,), False),), (0,), 1, 16, VOCAB)


def _backend(isa: str) -> CpuBackend:
    table = np.zeros((VOCAB, VOCAB), np.float32)
    table[: len(ROWS)] = ROWS
    tensors = {}
    for name, values in (
        ("token_embd.weight", table),
        ("output.weight", np.eye(VOCAB, dtype=np.float32)),
    ):
        tensors[name] = MadeTensor(name, DType.F32, values.shape, values.tobytes(), values)
    source = MemorySource(model_config(Shape(vocab_size=VOCAB), gguf=True), tensors)
    return CpuBackend.load(source, _program(), kv_bytes=1 << 20, max_step_rows=64, isa=isa)


@pytest.fixture(scope="module", params=_native.isas())
def backend(request: pytest.FixtureRequest) -> Iterator[CpuBackend]:
    backend = _backend(request.param)
    yield backend
    backend.close()


def _run(backend: CpuBackend, rows: list[tuple[int, WantedRow]]) -> list[RowResult]:
    """Each wanted row over the logits ROWS[i]."""
    maker = PlanMaker(backend.layout, backend.num_blocks)
    wanted = [structs.replace(row, row=r) for r, (_, row) in enumerate(rows)]
    plan = maker.plan([(maker.sequence(), [index for index, _ in rows])], wanted)
    return backend.collect(backend.submit(plan)).rows


def _random_spec(rng: np.random.Generator) -> SamplingSpec:
    def one_of(*values: float) -> float:
        return float(rng.choice(values))

    penalised = bool(rng.integers(2))
    return SamplingSpec(
        temperature=one_of(0.0, 0.3, 0.7, 1.0, 1.7, 5.0),
        top_k=int(one_of(0, 0, 1, 2, 20, 400, 5000)),
        top_p=one_of(1.0, 1.0, 0.99, 0.9, 0.5, 1e-6),
        min_p=one_of(0.0, 0.0, 0.01, 0.3, 1.0),
        repetition_penalty=one_of(1.0, 1.3, 0.7) if penalised else 1.0,
        presence_penalty=one_of(0.0, 0.5, -1.0) if penalised else 0.0,
        frequency_penalty=one_of(0.0, 0.25, -0.5) if penalised else 0.0,
        logit_bias=tuple((int(i), float(rng.normal())) for i in rng.integers(0, VOCAB, 3))
        if rng.integers(2)
        else (),
        seed=int(rng.integers(0, 2**63)),
        num_top=int(one_of(-1, 0, 1, 20)),
    )


def _random_row(rng: np.random.Generator) -> WantedRow:
    spec = _random_spec(rng)
    history = array("i", [int(i) for i in rng.integers(0, VOCAB, 50)])
    mask = rng.integers(0, 256, -(-VOCAB // 8), np.uint8).tobytes()
    return WantedRow(
        row=0,
        spec=spec,
        output_pos=int(rng.integers(0, 5000)),
        history=history if spec.needs_history else None,
        prompt_len=20,
        banned=tuple(int(i) for i in rng.integers(0, VOCAB, 2)) if rng.integers(2) else (),
        mask=mask if rng.integers(3) == 0 else None,
    )


def _check(got: RowResult, expected: RowResult) -> None:
    assert got.failed == expected.failed
    if expected.failed:
        return
    assert got.token == expected.token
    assert math.isnan(got.logprob) == math.isnan(expected.logprob)
    if not math.isnan(expected.logprob):
        assert got.logprob == pytest.approx(expected.logprob, rel=1e-6, abs=1e-6)
    assert [token for token, _ in got.top] == [token for token, _ in expected.top]
    for (_, one), (_, other) in zip(got.top, expected.top, strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-6)


def test_random_requests(backend: CpuBackend) -> None:
    rng = np.random.default_rng(1)
    for _ in range(16):
        rows = [(int(rng.integers(NUM_USUAL)), _random_row(rng)) for _ in range(32)]
        for (index, row), got in zip(rows, _run(backend, rows), strict=True):
            _check(got, sample_row(ROWS[index], row))


def test_hard_logits(backend: CpuBackend) -> None:
    rng = np.random.default_rng(2)
    rows = [
        (index, structs.replace(_random_row(rng), mask=None))
        for index in range(NUM_USUAL, len(ROWS))
        for _ in range(6)
    ]
    for (index, row), got in zip(rows, _run(backend, rows), strict=True):
        _check(got, sample_row(ROWS[index], row))


def test_targets(backend: CpuBackend) -> None:
    rng = np.random.default_rng(3)
    spec = SamplingSpec(num_top=5, temperature=0.7)
    rows = [
        (index, WantedRow(0, spec, sample=False, target=int(rng.integers(VOCAB))))
        for index in range(NUM_USUAL)
    ]
    for (index, row), got in zip(rows, _run(backend, rows), strict=True):
        _check(got, sample_row(ROWS[index], row))


def test_every_alternative_is_reported(backend: CpuBackend) -> None:
    spec = SamplingSpec(num_top=VOCAB, temperature=0.0)
    (got,) = _run(backend, [(3, WantedRow(0, spec))])
    _check(got, sample_row(ROWS[3], WantedRow(0, spec)))
    assert sum(math.exp(logprob) for _, logprob in got.top) == pytest.approx(1.0)


@pytest.mark.parametrize("temperature", [9.9e-6, 1e-5])
def test_the_lowest_temperature_that_draws(backend: CpuBackend, temperature: float) -> None:
    """Logits that differ by less than the noise at this temperature."""
    near = NUM_USUAL - 1
    tied = int(np.argmax(ROWS[near]))
    spec = SamplingSpec(temperature=temperature, logit_bias=((tied, 1e-6),))
    rows = [(near, WantedRow(0, replace(spec, seed=seed))) for seed in range(20)]
    got = _run(backend, rows)
    for (index, row), result in zip(rows, got, strict=True):
        _check(result, sample_row(ROWS[index], row))
    assert (len({result.token for result in got}) == 1) == (temperature < 1e-5)


def test_noise_that_hardly_ever_occurs_still_wins(backend: CpuBackend) -> None:
    """Positions whose winner stands so low that only rare noise lifts it to the top."""
    wide = 12
    spec, logits = SamplingSpec(seed=3), ROWS[wide].astype(np.float64)
    rows = []
    for position in range(4000):
        noise = gumbel_noise(spec.seed, position, VOCAB)
        if noise[np.argmax(logits + noise)] > 9:
            rows.append((wide, WantedRow(0, spec, output_pos=position)))
    assert len(rows) >= 5
    for (index, row), got in zip(rows[:64], _run(backend, rows[:64]), strict=True):
        _check(got, sample_row(ROWS[index], row))


@pytest.mark.parametrize("top_p", [0.9, 1.0])
def test_logits_that_a_penalty_makes_infinite_fail_their_row_only(
    backend: CpuBackend, top_p: float
) -> None:
    huge = len(ROWS) - 1
    history = array("i", [int(np.argmax(ROWS[huge]))])
    spec = SamplingSpec(repetition_penalty=0.01, top_p=top_p, seed=1)
    row = WantedRow(0, spec, history=history, prompt_len=1)
    first, second = _run(backend, [(huge, row), (0, row)])
    assert first.failed
    assert sample_row(ROWS[huge], row).failed
    _check(second, sample_row(ROWS[0], row))


def test_a_mask_that_allows_nothing_fails_its_row_only(backend: CpuBackend) -> None:
    row = WantedRow(0, SamplingSpec(seed=1))
    nothing = structs.replace(row, mask=bytes(-(-VOCAB // 8)))
    first, second = _run(backend, [(0, nothing), (0, row)])
    assert first.failed
    _check(second, sample_row(ROWS[0], row))
