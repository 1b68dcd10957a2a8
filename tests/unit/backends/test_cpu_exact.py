"""No mechanism changes a bit: batches, chunks, threads, block placement, kernel table."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from headrace import _native
from headrace.backends.base import SamplingSpec
from headrace.weights.base import DType
from tests.support.cpu_runs import Request, RowBits, Run, Step, load
from tests.support.make_model import make_gguf
from tests.support.sources import MemorySource, memory_source

# Every stored type once, every family at least twice; gemma3's window is crossed, and so is the
# attention split at 256.
MODELS = [
    *(("llama", dtype) for dtype in DType),
    ("qwen2", DType.Q5_0),
    ("qwen2", DType.BF16),
    ("qwen3", DType.Q8_0),
    ("qwen3", DType.Q6_K),
    ("gemma3", DType.Q4_K),
    ("gemma3", DType.F32),
]
FLOAT_ACTIVATIONS = [("qwen2", DType.Q4_1), ("gemma3", DType.Q6_K)]
CASES = [(*m, "quantized") for m in MODELS] + [(*m, "float32") for m in FLOAT_ACTIVATIONS]
LENGTHS = (37, 283, 16, 5)
NUM_BLOCKS = 320

Bits = dict[tuple[int, int], RowBits]


def _requests() -> list[Request]:
    rng = random.Random(7)
    specs = [
        SamplingSpec(temperature=0.0, num_top=2),
        SamplingSpec(seed=1, num_top=0),
        SamplingSpec(temperature=0.7, top_k=20, top_p=0.9, seed=2, num_top=3),
        SamplingSpec(temperature=1.5, min_p=0.05, seed=3, num_top=1),
    ]
    return [
        Request(tuple(rng.randrange(3, 300) for _ in range(length)), spec)
        for length, spec in zip(LENGTHS, specs, strict=True)
    ]


REQUESTS = _requests()


@dataclass(frozen=True)
class Case:
    source: MemorySource
    activations: str


@pytest.fixture(scope="module", params=CASES, ids=lambda p: f"{p[0]}-{p[1].name}-{p[2]}")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, dtype, activations = request.param
    path = tmp_path_factory.mktemp("made") / "model.gguf"
    # Embedding and head of another type than the layers: two kinds of activations in one step.
    dtypes = {"attn_v": DType.Q8_0, "token_embd": DType.Q8_0} if family == "qwen2" else {}
    made = make_gguf(path, family=family, dtype=dtype, dtypes=dtypes, window=21)
    return Case(memory_source(made), activations)


def _run(
    case: Case,
    steps: list[Step],
    *,
    threads: int = 1,
    isa: str | None = None,
    seed: int = 0,
) -> Bits:
    backend = load(
        case.source,
        num_blocks=NUM_BLOCKS,
        threads=threads,
        isa=isa,
        activations=case.activations,
    )
    try:
        return dict(Run(backend, REQUESTS, seed).steps(steps))
    finally:
        backend.close()


def _alone() -> list[Step]:
    return [[(index, length)] for index, length in enumerate(LENGTHS)]


def _random_steps(seed: int) -> list[Step]:
    """All requests at once, in chunks of random lengths, some waiting now and then."""
    rng = random.Random(seed)
    left = list(LENGTHS)
    steps: list[Step] = []
    while any(left):
        step = []
        for index in rng.sample(range(len(left)), len(left)):
            count = min(left[index], rng.choice([0, 1, 1, 2, 5, 16, 31, 90]))
            if count:
                step.append((index, count))
                left[index] -= count
        if step:
            steps.append(step)
    return steps


@pytest.fixture(scope="module")
def expected(case: Case) -> Bits:
    """Every request alone, whole, on one thread with the best table."""
    return _run(case, _alone())


def test_together_and_in_chunks(case: Case, expected: Bits) -> None:
    assert _run(case, _random_steps(1), seed=5) == expected


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads(case: Case, expected: Bits, threads: int) -> None:
    assert _run(case, [list(enumerate(LENGTHS))], threads=threads, seed=threads) == expected


@pytest.mark.skipif(len(_native.isas()) == 1, reason="this processor has one kernel table")
def test_kernel_tables(case: Case, expected: Bits) -> None:
    assert _run(case, _random_steps(2), threads=2, isa="scalar") == expected


def test_one_token_at_a_time(case: Case, expected: Bits) -> None:
    steps: list[Step] = [[(0, 1), (3, 1)] for _ in range(5)]
    steps += [[(0, 1)] for _ in range(LENGTHS[0] - 5)]
    got = _run(case, steps, threads=2)
    assert got == {place: bits for place, bits in expected.items() if place[0] in (0, 3)}


def test_the_environment_of_the_caller(tmp_path: Path) -> None:
    """A process in which a library flushes subnormals to zero: nothing is computed so, and the
    setting stays. The last norm is stored as subnormal halves."""
    source = memory_source(make_gguf(tmp_path / "m.gguf", dtype=DType.F16))
    norm = source.made["output_norm.weight"]
    halves = struct.pack("<H", 0x0155) * norm.shape[0]
    tensor = replace(norm, dtype=DType.F16, data=halves)
    source = MemorySource(source.config, {**source.made, norm.name: tensor})
    case = Case(source, "quantized")
    flush_to_zero = 0x9FC0
    steps: list[Step] = [list(enumerate(LENGTHS))]
    got = _native.testing.call_in_env(flush_to_zero, lambda: _run(case, steps, threads=2))
    assert got == (_run(case, steps), flush_to_zero)
