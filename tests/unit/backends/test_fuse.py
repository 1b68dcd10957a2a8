"""Fused operations: which are fused, and that no bit tells."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace import _native
from headrace.backends.base import SamplingSpec
from headrace.backends.cpu import CpuBackend
from headrace.backends.fuse import fuse
from headrace.backends.layout import make_layout
from headrace.backends.lower import lower
from headrace.backends.packing import pack_weights
from headrace.models.program import Add, AnyOp, Gate, Linear, Norm
from headrace.models.registry import build_program
from headrace.weights.base import DType
from tests.support.cpu_runs import Request, RowBits, Run, Step
from tests.support.make_model import Shape, make_gguf
from tests.support.plans import PlanMaker
from tests.support.sources import MemorySource, memory_source, model_config

NUM_BLOCKS = 192
LENGTHS = (300, 37, 5)
# Numbers of rows on both sides of every block size: 1, a register tile, the rows gated at once.
STEPS: list[Step] = [
    [(0, 258), (1, 3)],
    [(0, 1)],
    [(0, 4), (1, 1), (2, 1)],
    [(0, 37), (1, 33), (2, 4)],
]
SPEC = SamplingSpec(temperature=0.0, num_top=1)
FUSED_ATTENTION = ["Norm", "Linear", "RopeWrite", "Attend", "AddedLinear"]
FUSED_MLP = ["Norm", "GatedLinear", "AddedLinear"]
FUSED_GEMMA = [
    *("Norm", "Linear", "HeadNorm", "HeadNorm", "RopeWrite", "Attend", "Linear", "Norm", "Add"),
    *("Norm", "GatedLinear", "Linear", "Norm", "Add"),
]


@pytest.mark.parametrize(
    ("family", "layer"), [("llama", FUSED_ATTENTION + FUSED_MLP), ("gemma3", FUSED_GEMMA)]
)
def test_what_is_fused(family: str, layer: list[str]) -> None:
    program = build_program(model_config(Shape(family, vocab_size=50), gguf=True))
    names = [type(op).__name__ for op in fuse(program.ops)]
    assert names == ["Embed", *layer * program.num_layers, "SelectWanted", "Norm", "Head"]


LINEAR = Linear(0, 1, "y", "h", ("w",))
GATE_UP = Linear(0, 1, "gu", "h", ("gate", "up"))
GATE = Gate(0, 1, "act", "gu", "silu")
DOWN = Linear(0, 1, "y", "act", ("down",))


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([LINEAR, Add(0, 1, "x", "y"), Norm(0, 1, "h", "y", "n", 0.0)], id="y-is-read"),
        pytest.param([LINEAR, Add(0, 1, "x", "z")], id="something-else-is-added"),
        pytest.param([LINEAR, Add(0, 1, "h", "y")], id="added-to-its-source"),
        pytest.param([LINEAR, Add(0, 1, "y", "y")], id="added-to-itself"),
        pytest.param([LINEAR], id="nothing-follows"),
        pytest.param([GATE_UP, GATE], id="nobody-reads-the-gated"),
        pytest.param([GATE_UP, GATE, Norm(0, 1, "n", "act", "n", 0.0), DOWN], id="a-norm-reads-it"),
        pytest.param([GATE_UP, GATE, DOWN, Add(0, 1, "x", "act")], id="two-read-the-gated"),
        pytest.param([GATE_UP, GATE, DOWN, Add(0, 1, "x", "gu")], id="gate-and-up-are-read"),
        pytest.param([Linear(0, 1, "gu", "h", ("both",)), GATE, DOWN], id="gate-and-up-in-one"),
        pytest.param([Linear(0, 1, "gu", "act", ("a", "b")), GATE, DOWN], id="gated-in-place"),
    ],
)
def test_what_is_not_fused(ops: list[AnyOp]) -> None:
    assert fuse(ops) == ops


def test_a_buffer_that_is_written_again_is_dead() -> None:
    add = Add(0, 1, "x", "y")
    names = [type(op).__name__ for op in fuse([LINEAR, add, LINEAR, add, LINEAR])]
    assert names == ["AddedLinear", "AddedLinear", "Linear"]


def _backend(source: MemorySource, *, fused: bool, threads: int) -> CpuBackend:
    program = build_program(source.config)
    layout = make_layout(program.kv_windows, program.num_kv_heads, program.head_dim)
    pool = _native.ThreadPool(threads)
    weights = pack_weights(source, program, pool, isa=_native.isa(), packing=None)
    tape = lower(program, layout, weights.native, fused=fused)
    rows = sum(LENGTHS)
    model = _native.Model(pool, tape, num_blocks=NUM_BLOCKS, max_step_rows=rows)
    return CpuBackend(model, layout, num_blocks=NUM_BLOCKS, max_step_rows=rows, numerics_id="")


def _bits(source: MemorySource, *, fused: bool, threads: int) -> dict[tuple[int, int], RowBits]:
    rng = random.Random(1)
    requests = [Request(tuple(rng.randrange(3, 300) for _ in range(n)), SPEC) for n in LENGTHS]
    backend = _backend(source, fused=fused, threads=threads)
    try:
        return Run(backend, requests).steps(STEPS)
    finally:
        backend.close()


# Each kind of activations between each kind of products, gate and up of one kind or of two.
DTYPES: list[dict[str, DType]] = [
    {},
    {"ffn_down": DType.Q8_0},
    {"ffn_gate": DType.Q8_0, "ffn_down": DType.F16},
    {"ffn_up": DType.F32, "ffn_down": DType.Q5_0, "attn_output": DType.BF16},
]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_no_bit_changes(tmp_path: Path, family: str, dtypes: dict[str, DType]) -> None:
    """Outputs that are no multiple of the groups of a thread; heads that are no whole groups."""
    made = make_gguf(
        tmp_path / "m.gguf",
        family=family,
        dtype=DType.Q4_1,
        dtypes=dtypes,
        window=21,
        ffn_dim=224,
        num_kv_heads=4 if family == "qwen2" else 2,
    )
    source = memory_source(made)
    expected = _bits(source, fused=False, threads=1)
    for threads in (1, 2, 3):
        assert _bits(source, fused=True, threads=threads) == expected


@pytest.mark.parametrize("ffn_dim", [1, 20, 100])
def test_odd_widths_of_float_weights(tmp_path: Path, ffn_dim: int) -> None:
    source = memory_source(make_gguf(tmp_path / "m.gguf", dtype=DType.F32, ffn_dim=ffn_dim))
    expected = _bits(source, fused=False, threads=1)
    assert _bits(source, fused=True, threads=2) == expected


def test_buffers_that_are_gone(tmp_path: Path) -> None:
    source = memory_source(make_gguf(tmp_path / "m.gguf"))
    fused = _backend(source, fused=True, threads=1)
    maker = PlanMaker(fused.layout, NUM_BLOCKS)
    plan = maker.plan([(maker.sequence(), [5, 6])])
    for name in ("y", "gate_up", "act"):
        with pytest.raises(ValueError, match=f"buffer {name} is not in memory .* fused=False"):
            fused.hidden_states(plan, [name])
    assert len(fused.hidden_states(plan, ["x", "h"])["h"]) == 2
    unfused = _backend(source, fused=False, threads=1)
    states = unfused.hidden_states(plan, ["y", "gate_up", "act"])
    assert [len(rows[0]) for rows in states.values()] == [64, 256, 128]
