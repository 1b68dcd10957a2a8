"""Programs: the order of operations, shapes that fit, extents in first-use order."""

from __future__ import annotations

import pytest

from headrace.models.config import ModelConfig
from headrace.models.program import (
    Add,
    AnyOp,
    Attend,
    Embed,
    Gate,
    Head,
    HeadNorm,
    Linear,
    Norm,
    Program,
    RopeWrite,
    Rows,
    SelectWanted,
)
from headrace.models.registry import FAMILIES, build_program
from tests.support.make_model import Shape, tensor_shapes
from tests.support.sources import model_config

ATTENTION = ["Norm", "Linear", "RopeWrite", "Attend", "Linear", "Add"]
NORMED_HEADS = ["Norm", "Linear", "HeadNorm", "HeadNorm", "RopeWrite", "Attend", "Linear"]
MLP = ["Norm", "Linear", "Gate", "Linear", "Add"]
LAYERS = {
    "llama": ATTENTION + MLP,
    "qwen2": ATTENTION + MLP,
    "qwen3": [*NORMED_HEADS, "Add", *MLP],
    "gemma3": [*NORMED_HEADS, "Norm", "Add", *MLP[:-1], "Norm", "Add"],
}
BY_FAMILY = pytest.mark.parametrize("family", sorted(FAMILIES))


def _shape(family: str) -> Shape:
    return Shape(family, num_layers=7, vocab_size=50, head_dim=32, tied_head=family != "qwen3")


def _program(family: str) -> tuple[ModelConfig, Program]:
    config = model_config(_shape(family), gguf=True)
    return config, build_program(config)


@BY_FAMILY
def test_order_of_operations(family: str) -> None:
    config, program = _program(family)
    names = [type(op).__name__ for op in program.ops]
    expected = ["Embed", *LAYERS[family] * config.num_layers, "SelectWanted", "Norm", "Head"]
    assert names == expected


@BY_FAMILY
def test_extents_are_in_first_use_order(family: str) -> None:
    config, program = _program(family)
    extents = [op.extent for op in program.ops]
    assert extents == sorted(extents)
    assert set(extents) == set(range(config.num_layers + 2))
    for op in program.ops:
        assert op.layer == (op.extent - 1 if 0 < op.extent <= config.num_layers else -1)


@BY_FAMILY
def test_uses_every_tensor_of_the_file_and_no_other(family: str) -> None:
    _, program = _program(family)
    used = {name for op in program.ops for name in _weights(op)}
    assert used == set(tensor_shapes(_shape(family)))


@BY_FAMILY
def test_widths_of_buffers_and_weights_agree(family: str) -> None:
    _, program = _program(family)
    shapes = tensor_shapes(_shape(family))
    written: set[str] = set()
    for op in program.ops:
        reads, out = _buffers(op)
        assert set(reads) <= written, f"{op} reads what nothing wrote"
        written |= {out} if out else set()
        _check_widths(op, program, shapes)
    assert written == {b.name for b in program.buffers}


@BY_FAMILY
def test_only_wanted_rows_reach_the_head(family: str) -> None:
    _, program = _program(family)
    rows = {b.name: b.rows for b in program.buffers}
    wanted = {name for name, kind in rows.items() if kind is Rows.WANTED}
    for op in program.ops:
        reads, out = _buffers(op)
        touched = {*reads, *([out] if out else [])}
        if isinstance(op, SelectWanted):
            assert (rows[op.src], rows[op.out]) == (Rows.STEP, Rows.WANTED)
        else:
            assert touched <= wanted or not touched & wanted


def test_gemma3_windows_and_ropes() -> None:
    config, program = _program("gemma3")
    assert program.kv_windows == (8, 8, 8, 8, 8, 0, 8)
    attends = [op for op in program.ops if isinstance(op, Attend)]
    ropes = [op for op in program.ops if isinstance(op, RopeWrite)]
    assert [op.window for op in attends] == list(program.kv_windows)
    assert [op.rope for op in ropes] == [0 if w == 0 else 1 for w in program.kv_windows]
    assert len(program.ropes) == 2
    embed = program.ops[0]
    assert isinstance(embed, Embed)
    assert embed.scale == config.embed_scale == 8.0


def test_biases_only_where_the_family_has_them() -> None:
    for family in FAMILIES:
        _, program = _program(family)
        biases = [op.biases for op in program.ops if isinstance(op, Linear) and op.biases]
        assert len(biases) == (7 if family == "qwen2" else 0)
        assert all(len(names) == 3 for names in biases)


def test_a_tied_head_uses_the_embedding() -> None:
    for family, weight in (("llama", "token_embd.weight"), ("qwen3", "output.weight")):
        _, program = _program(family)
        head = program.ops[-1]
        assert isinstance(head, Head)
        assert head.weight == weight


def test_an_unknown_buffer_has_no_width() -> None:
    _, program = _program("llama")
    with pytest.raises(KeyError):
        program.width("nothing")


def _weights(op: AnyOp) -> tuple[str, ...]:
    if isinstance(op, Linear):
        return op.weights + op.biases
    if isinstance(op, Embed | Norm | HeadNorm | Head):
        return (op.weight,)
    return ()


def _buffers(op: AnyOp) -> tuple[tuple[str, ...], str | None]:
    """(buffers read, buffer written)."""
    match op:
        case Embed():
            return (), op.out
        case HeadNorm() | RopeWrite():
            return (op.buf,), op.buf
        case Add():
            return (op.src, op.out), op.out
        case Head():
            return (op.src,), None
        case _:
            return (op.src,), op.out


def _check_widths(op: AnyOp, program: Program, shapes: dict[str, tuple[int, ...]]) -> None:
    width = program.width
    match op:
        case Linear():
            assert {shapes[name][1] for name in op.weights} == {width(op.src)}
            outputs = [shapes[name][0] for name in op.weights]
            assert sum(outputs) == width(op.out)
            assert not op.biases or [shapes[name] for name in op.biases] == [(n,) for n in outputs]
        case Norm():
            assert shapes[op.weight] == (width(op.src),) == (width(op.out),)
        case Gate():
            assert width(op.src) == 2 * width(op.out)
        case HeadNorm():
            assert shapes[op.weight] == (op.head_dim,)
            assert op.column + op.num_heads * op.head_dim <= width(op.buf)
        case Attend():
            assert width(op.out) == op.num_heads * op.head_dim
            assert width(op.src) == (op.num_heads + 2 * op.num_kv_heads) * op.head_dim
        case Add() | SelectWanted():
            assert width(op.out) == width(op.src)
        case Head():
            assert shapes[op.weight] == (program.vocab_size, width(op.src))
        case _:
            pass
