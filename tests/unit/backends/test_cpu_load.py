"""Loading: packings, identity, tied tables, and every misfit as one clear error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace import _native
from headrace.backends import cpu
from headrace.backends.base import SamplingSpec, WantedRow
from headrace.backends.cpu import CpuBackend
from headrace.backends.layout import make_layout
from headrace.backends.reference.dequant import dequantize
from headrace.errors import HeadraceError, ModelFormatError, ResourceError
from headrace.models.program import Head, Linear, Norm, Program, RopeTable
from headrace.models.registry import build_program
from headrace.weights.base import DType
from tests.support.cpu_runs import load
from tests.support.make_model import MadeModel, MadeTensor, make_gguf, make_hf
from tests.support.packers import pack
from tests.support.plans import PlanMaker
from tests.support.sources import MemorySource, memory_source

GREEDY = SamplingSpec(temperature=0.0, num_top=0)
NO_FLOATS = np.zeros(0, np.float32)


@pytest.fixture
def made(tmp_path: Path) -> MadeModel:
    return make_gguf(tmp_path / "model.gguf", dtype=DType.Q8_0)


def _sample(backend: CpuBackend) -> tuple[int, float]:
    maker = PlanMaker(backend.layout, backend.num_blocks)
    plan = maker.plan([(maker.sequence(), [5, 6, 7, 8, 9])], [WantedRow(4, GREEDY)])
    row = backend.collect(backend.submit(plan)).rows[0]
    return row.token, row.logprob


def _load(
    source: MemorySource, program: Program, kv_bytes: int = 1 << 20, kv_dtype: str = "fp16"
) -> CpuBackend:
    return CpuBackend.load(
        source, program, kv_bytes=kv_bytes, threads=1, max_step_rows=16, kv_dtype=kv_dtype
    )


def test_a_tied_table_is_packed_once(made: MadeModel) -> None:
    released: list[str] = []

    class Recorder(MemorySource):
        def release(self, name: str) -> None:
            released.append(name)

    load(Recorder(memory_source(made).config, made.tensors))
    assert sorted(released) == sorted(made.tensors)


def test_a_closed_backend_says_so(made: MadeModel) -> None:
    backend = load(memory_source(made))
    backend.close()
    backend.close()
    with pytest.raises(RuntimeError, match="closed"):
        _sample(backend)


def test_the_source_may_close_after_loading(made: MadeModel) -> None:
    from headrace.weights.open import open_source

    source = open_source(made.path)
    backend = load(source)
    source.close()
    assert _sample(backend) == _sample(load(memory_source(made)))


@pytest.mark.parametrize("packing", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("stored", [DType.F32, DType.F16, DType.BF16])
def test_a_packing_is_the_packed_model(tmp_path: Path, packing: str, stored: DType) -> None:
    """Loading with a packing equals loading a source whose tensors were packed beforehand."""
    source = memory_source(make_hf(tmp_path / "hf", dtype=stored, tied_head=False))
    target = {"bf16": DType.BF16, "int8": DType.Q8_0, "int4": DType.Q4_1}[packing]
    before: dict[str, MadeTensor] = {}
    for name, tensor in source.made.items():
        kind = target
        if packing == "int4" and name in ("token_embd.weight", "output.weight"):
            kind = DType.Q8_0
        if len(tensor.shape) == 1 or (packing == "bf16" and stored is not DType.F32):
            kind = tensor.dtype
        data = tensor.data
        if kind is not tensor.dtype:
            rows, row_len = tensor.shape
            data = _native.testing.requantize(tensor.dtype, kind, data, rows, row_len)
        before[name] = replace(tensor, dtype=kind, data=data)
    packed = load(MemorySource(source.config, before))
    assert _sample(load(source, packing=packing)) == _sample(packed)


@pytest.mark.parametrize("packed", [DType.Q8_0, DType.Q4_1])
def test_requantizing_keeps_half_a_step(packed: DType) -> None:
    floats = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32)
    floats[0] = 0.0
    floats[1, :32] = 3.25
    floats[2, 0] = 1e-30
    stored = _native.testing.requantize(DType.F32, packed, floats.tobytes(), 9, 64)
    error = np.abs(dequantize(packed, memoryview(stored), (9, 64)) - floats).reshape(-1, 32)
    blocks = floats.reshape(-1, 32)
    if packed is DType.Q8_0:
        step = np.abs(blocks).max(1) / 127
    else:
        step = (blocks.max(1) - blocks.min(1)) / 15
    bound = 0.5 * step + 2e-3 * np.abs(blocks).max(1) + 1e-7
    assert (error.max(1) <= bound).all()
    theirs = dequantize(packed, memoryview(pack(packed, floats)), (9, 64)) - floats
    assert (error**2).mean() <= 1.02 * (theirs**2).mean()


def test_bfloat16_rounds_to_nearest_even() -> None:
    bits = [0x3F808000, 0x3F818000, 0x3F80FFFF, 0x7F7FFFFF, 0xFF800000, 0x7F800001, 0x00000001]
    floats = np.array(bits, np.uint32)
    stored = _native.testing.requantize(DType.F32, DType.BF16, floats.tobytes(), 1, len(bits))
    expected = [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80, 0x7FC0, 0x0000]
    assert np.frombuffer(stored, np.uint16).tolist() == expected


def test_a_block_that_cannot_be_coded_is_nan() -> None:
    floats = np.ones((1, 64), np.float32)
    floats[0, 40] = np.inf
    for packed in (DType.Q8_0, DType.Q4_1):
        stored = _native.testing.requantize(DType.F32, packed, floats.tobytes(), 1, 64)
        values = dequantize(packed, memoryview(stored), (1, 64))[0]
        assert np.isnan(values[32:]).all()
        assert np.isfinite(values[:32]).all()


def test_packing_leaves_quantized_tensors_alone(made: MadeModel) -> None:
    source = memory_source(made)
    assert _sample(load(source, packing="int4")) == _sample(load(source))


def test_the_numerics_id_names_what_changes_bits(made: MadeModel, tmp_path: Path) -> None:
    source = memory_source(made)
    base = load(source)
    same = load(source, threads=2, isa="scalar", num_blocks=17, max_step_rows=9)
    assert same.numerics_id == base.numerics_id
    assert len(base.numerics_id) == 64
    floats = memory_source(make_hf(tmp_path / "hf"))
    ids = {load(floats, packing=packing).numerics_id for packing in (None, "int8", "int4")}
    program = build_program(source.config, None)
    rope = program.ropes[0]
    slower = RopeTable(tuple(f / 2 for f in rope.inv_freq), rope.interleaved)
    ids.add(_load(source, replace(program, ropes=(slower,))).numerics_id)
    tensor = made.tensors["blk.0.ffn_up.weight"]
    data = bytearray(tensor.data)
    data[40] ^= 1
    made.tensors["blk.0.ffn_up.weight"] = replace(tensor, data=bytes(data))
    changed = memory_source(made)
    changed.header_digest = source.header_digest
    ids.add(load(changed).numerics_id)
    ids.add(load(source, activations="float32").numerics_id)
    assert len(ids | {base.numerics_id}) == 7


def test_unknown_activations_are_refused(made: MadeModel) -> None:
    with pytest.raises(ModelFormatError, match="use one of quantized, float32"):
        load(memory_source(made), activations="int8")


@pytest.mark.parametrize("number", ["KERNEL_REVISION", "SPLIT_LEN", "BLOCK_LEN"])
def test_the_numerics_id_names_the_arithmetic(
    made: MadeModel, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    source = memory_source(made)
    before = load(source).numerics_id
    monkeypatch.setattr(cpu, number, getattr(cpu, number) + 1)
    assert load(source).numerics_id != before


def _swap(program: Program, index: int, **fields: object) -> Program:
    ops = list(program.ops)
    ops[index] = replace(ops[index], **fields)  # type: ignore[arg-type]  # fields fit the op
    return replace(program, ops=tuple(ops))


def _index(program: Program, kind: type) -> int:
    return next(i for i, op in enumerate(program.ops) if isinstance(op, kind))


MISFITS: dict[str, tuple[Callable[[Program], Program], str]] = {
    "lacking matrix": (
        lambda p: _swap(p, _index(p, Linear), weights=("blk.9.attn_q.weight",)),
        "'blk.9.attn_q.weight' is missing",
    ),
    "vector as matrix": (
        lambda p: _swap(p, _index(p, Linear), weights=("blk.0.attn_norm.weight",)),
        "must have 2 dimensions",
    ),
    "matrix as vector": (
        lambda p: _swap(p, _index(p, Norm), weight="blk.0.attn_q.weight"),
        "must have 1 dimensions",
    ),
    "wrong output width": (
        lambda p: _swap(p, _index(p, Linear), weights=("blk.0.attn_q.weight",)),
        "do not fill buffer qkv",
    ),
    "unknown buffer": (lambda p: _swap(p, _index(p, Norm), src="nope"), "no buffer nope"),
    "head on step rows": (lambda p: _swap(p, _index(p, Head), src="x"), "must have wanted rows"),
    "vocabulary": (lambda p: replace(p, vocab_size=p.vocab_size - 8), "the vocabulary"),
    "rope wider than a head": (
        lambda p: replace(p, ropes=(RopeTable((1.0,) * 9, False),)),
        "more columns than a head",
    ),
    "rope not finite": (
        lambda p: replace(p, ropes=(RopeTable((float("inf"),), False),)),
        "frequency is out of range",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_misfit_is_a_model_format_error(made: MadeModel, name: str) -> None:
    change, message = MISFITS[name]
    source = memory_source(made)
    with pytest.raises(ModelFormatError, match=message):
        _load(source, change(build_program(source.config, None)))


def test_data_of_another_size_is_an_error(made: MadeModel) -> None:
    tensor = made.tensors["blk.1.ffn_down.weight"]
    made.tensors["blk.1.ffn_down.weight"] = replace(tensor, data=tensor.data[:-34])
    with pytest.raises(ModelFormatError, match=r"blk\.1\.ffn_down\.weight: .* do not match"):
        load(memory_source(made))


def test_rows_that_blocks_cannot_hold(tmp_path: Path) -> None:
    source = memory_source(make_hf(tmp_path / "hf", ffn_dim=80))
    with pytest.raises(ModelFormatError, match=r"'blk.0.ffn_down.weight' have 80 .* blocks of 32"):
        load(source, packing="int8")
    load(source)


def test_what_the_machine_lacks_is_a_resource_error(made: MadeModel) -> None:
    source = memory_source(made)
    program = build_program(source.config, None)
    layout = make_layout(program.kv_windows, program.num_kv_heads, program.head_dim)
    with pytest.raises(ResourceError, match="at least"):
        _load(source, program, kv_bytes=layout.block_bytes - 1)
    with pytest.raises(ResourceError, match="KV cache"):
        _load(source, program, kv_bytes=(1 << 62))
    with pytest.raises(ResourceError, match="not a kernel table of this processor"):
        load(source, isa="sse9")
    with pytest.raises(ResourceError, match="threads must be between"):
        load(source, threads=5000)
    with pytest.raises(ResourceError, match="A step of 70000 tokens"):
        load(source, max_step_rows=70_000)
    with pytest.raises(ModelFormatError, match="use one of bf16, int8, int4"):
        load(source, packing="int3")


def test_the_environment_forces_a_table(made: MadeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    source = memory_source(made)
    monkeypatch.setenv("HEADRACE_ISA", "scalar")
    assert _native.isa() == "scalar"
    load(source)
    monkeypatch.setenv("HEADRACE_ISA", "sse9")
    with pytest.raises(HeadraceError, match=r"HEADRACE_ISA=sse9 .* use one of"):
        load(source)
    monkeypatch.setenv("HEADRACE_ISA", "")
    assert _native.isa() == _native.isas()[0]


def test_the_backend_imports_neither_numpy_nor_torch() -> None:
    code = "import sys, headrace.backends.cpu\nprint(sorted({'numpy', 'torch'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_int8_keys_and_values_take_half_the_memory(made: MadeModel) -> None:
    source = memory_source(made)
    program = build_program(source.config)
    backends = [_load(source, program, kv_dtype=kv, kv_bytes=1 << 20) for kv in ("fp16", "int8")]
    halves, small = backends
    head_dim = halves.layout.head_dim
    assert small.layout.block_bytes * 2 * head_dim == halves.layout.block_bytes * (head_dim + 4)
    assert small.num_blocks > halves.num_blocks
    assert small.numerics_id != halves.numerics_id


def test_an_unknown_type_of_keys_and_values_is_refused(made: MadeModel) -> None:
    source = memory_source(made)
    with pytest.raises(ResourceError, match="'int5' is no type of keys and values; use one of fp"):
        _load(source, build_program(source.config), kv_dtype="int5")
