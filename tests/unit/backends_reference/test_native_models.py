"""The native backend equals the NumPy twin, operation by operation, for every family and type.

The twin rounds activations as the kernels do, and starts each operation from the native buffers, so
that only one operation's rounding lies between them: no quant and no float16 flips.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from headrace import _native
from headrace.backends.base import SamplingSpec, StepPlan, WantedRow
from headrace.backends.cpu import CpuBackend
from headrace.backends.layout import KVLayout
from headrace.backends.lower import lower
from headrace.backends.packing import pack_weights
from headrace.backends.reference import (
    CPU_LIKE,
    CPU_LIKE_INT8_KV,
    LOGITS,
    Numerics,
    ReferenceBackend,
)
from headrace.models.program import AnyOp, Attend, Head, HeadNorm, Program, RopeWrite
from headrace.models.registry import build_program
from headrace.models.views import first_ops, with_logits
from headrace.weights.base import DType, WeightSource
from headrace.weights.open import open_source
from tests.support.make_model import make_gguf
from tests.support.plans import PlanMaker

Floats = npt.NDArray[np.floating[Any]]
NUM_BLOCKS = 64
MAX_ROWS = 48
PROMPT = [int(i) for i in np.random.default_rng(0).integers(3, 300, 44)]
# Share of the largest value of a buffer.
TOLERANCE = 2e-6
FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")


@pytest.fixture(
    params=[(f, t) for f in FAMILIES for t in DType], ids=lambda p: f"{p[0]}-{p[1].name}"
)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> WeightSource:
    family, dtype = request.param
    made = make_gguf(tmp_path / "m.gguf", family=family, dtype=dtype, window=20, tied_head=False)
    return open_source(made.path)


class _Natives:
    """Native backends of cuts of one Program, over weights that are packed once."""

    def __init__(
        self,
        source: WeightSource,
        program: Program,
        layout: KVLayout,
        activations: str = "quantized",
    ) -> None:
        self._layout = layout
        self._pool = _native.ThreadPool(2)
        self._weights = pack_weights(
            source,
            program,
            self._pool,
            isa=_native.isa(),
            packing=None,
            activations=activations,
        )

    def backend(self, program: Program) -> CpuBackend:
        tape = lower(program, self._layout, self._weights.native)
        model = _native.Model(self._pool, tape, num_blocks=NUM_BLOCKS, max_step_rows=MAX_ROWS)
        return CpuBackend(
            model,
            self._layout,
            num_blocks=NUM_BLOCKS,
            max_step_rows=MAX_ROWS,
            numerics_id="",
        )


def _plans(reference: ReferenceBackend) -> list[StepPlan]:
    """A prompt in two chunks, the second beside another sequence; some rows are wanted."""
    maker = PlanMaker(reference.layout, NUM_BLOCKS)
    first, second = maker.sequence(), maker.sequence()
    spec = SamplingSpec()
    return [
        maker.plan([(first, PROMPT[:21])], [WantedRow(20, spec)]),
        maker.plan(
            [(first, PROMPT[21:]), (second, PROMPT[5:12])],
            [WantedRow(row, spec) for row in (0, 22, 29)],
        ),
    ]


def _relative(got: Floats, expected: Floats) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def _written(op: AnyOp) -> str:
    """The buffer that an operation writes."""
    name = op.buf if isinstance(op, HeadNorm | RopeWrite) else getattr(op, "out", None)
    assert isinstance(name, str)
    return name


def _native_states(
    natives: _Natives, program: Program, plans: list[StepPlan]
) -> list[list[Floats]]:
    """[operation][plan] -> the buffer that it wrote."""
    states = []
    for index, op in enumerate(program.ops):
        backend = natives.backend(first_ops(program, index + 1))
        name = _written(op)
        runs = [backend.hidden_states(plan, [name])[name] for plan in plans]
        states.append([np.array(run, np.float32) for run in runs])
        backend.close()
    return states


def _store_native_kv(
    reference: ReferenceBackend, op: RopeWrite, plan: StepPlan, qkv: Floats
) -> None:
    """Write the native keys and values, which round to the same float16 or int8."""
    heads = qkv.reshape(len(qkv), -1, op.head_dim)
    end = op.num_heads + op.num_kv_heads
    group, slot = reference.layout.place(op.layer)
    positions = np.array(plan.positions)
    starts = [*plan.table_starts[group], len(plan.tables[group])]
    for s in range(len(plan.seq_starts) - 1):
        rows = slice(plan.seq_starts[s], plan.seq_starts[s + 1])
        table = np.array(plan.tables[group][starts[s] : starts[s + 1]])
        k, v = heads[rows, op.num_heads : end], heads[rows, end:]
        reference.arena.write(slot, table, positions[rows], k, v)


def _check_every_operation(
    source: WeightSource, program: Program, numerics: Numerics = CPU_LIKE
) -> None:
    reference = ReferenceBackend(source, program=program, num_blocks=NUM_BLOCKS, numerics=numerics)
    plans = _plans(reference)
    activations = "quantized" if numerics.round_activations else "float32"
    natives = _Natives(source, program, reference.layout, activations)
    states = _native_states(natives, program, plans)
    for p, plan in enumerate(plans):
        for index, (op, live) in enumerate(reference.trace(plan)):
            native, name = states[index][p], _written(op)
            assert _relative(native, live[name]) < TOLERANCE, f"operation {index}: {op}"
            if isinstance(op, RopeWrite):
                _store_native_kv(reference, op, plan, native)
            live[name] = native.copy()


def test_every_operation(source: WeightSource) -> None:
    _check_every_operation(source, with_logits(build_program(source.config)))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_operation_on_int8_keys_and_values(tmp_path: Path, family: str) -> None:
    made = make_gguf(tmp_path / "m.gguf", family=family, dtype=DType.F32, window=20)
    source = open_source(made.path)
    _check_every_operation(source, with_logits(build_program(source.config)), CPU_LIKE_INT8_KV)


def test_every_operation_with_float_activations(source: WeightSource) -> None:
    _check_every_operation(source, with_logits(build_program(source.config)), Numerics())


def test_options_that_no_family_uses_yet(tmp_path: Path) -> None:
    """Attention softcap, and heads of which only a part rotates."""
    source = open_source(make_gguf(tmp_path / "m.gguf", dtype=DType.Q8_0).path)
    program = with_logits(build_program(source.config))
    ropes = tuple(replace(rope, inv_freq=rope.inv_freq[:3]) for rope in program.ropes)
    ops = tuple(replace(op, softcap=0.5) if isinstance(op, Attend) else op for op in program.ops)
    _check_every_operation(source, replace(program, ops=ops, ropes=ropes))


def test_a_softcapped_head(tmp_path: Path) -> None:
    source = open_source(make_gguf(tmp_path / "m.gguf", dtype=DType.F32).path)
    program = build_program(source.config)
    head = program.ops[-1]
    assert isinstance(head, Head)
    program = replace(program, ops=(*program.ops[:-1], replace(head, softcap=0.5)))
    reference = ReferenceBackend(source, program=program, num_blocks=NUM_BLOCKS, numerics=CPU_LIKE)
    serving = _Natives(source, program, reference.layout).backend(program)
    plan = _plans(reference)[0]
    plan.wanted[0].spec = SamplingSpec(temperature=0.0, num_top=source.config.vocab_size)
    results = [b.collect(b.submit(plan)).rows[0] for b in (serving, reference)]
    got, expected = (dict(result.top) for result in results)
    assert max(expected.values()) - min(expected.values()) < 1.0
    # A BLAS that adds in another order rounds some keys and values to another half.
    assert got == pytest.approx(expected, abs=2**-11)


def test_sampled_logprobs_are_those_of_the_logits(source: WeightSource) -> None:
    """The head that hands row tiles to sampling gives the logits that the product gives."""
    reference = ReferenceBackend(source, num_blocks=NUM_BLOCKS)
    natives = _Natives(source, with_logits(reference.program), reference.layout)
    vocab = source.config.vocab_size
    plan = _plans(reference)[0]
    plan.wanted[0].spec = SamplingSpec(temperature=0.0, num_top=vocab)
    shown = natives.backend(with_logits(reference.program))
    logits = np.array(shown.hidden_states(plan, [LOGITS])[LOGITS][0], np.float64)
    serving = natives.backend(reference.program)
    (row,) = serving.collect(serving.submit(plan)).rows
    normaliser = math.log(np.exp(logits - logits.max()).sum()) + logits.max()
    assert row.token == int(np.argmax(logits))
    assert len(row.top) == vocab
    for token, logprob in row.top:
        assert logprob == pytest.approx(logits[token] - normaliser, abs=1e-6)
