"""Lowers a Program to the native tape: one call per operation, each checked by the tape."""

from __future__ import annotations

from headrace import _native
from headrace.backends.fuse import AddedLinear, FusedOp, GatedLinear, fuse
from headrace.backends.layout import KV_DTYPES, KVLayout
from headrace.models.program import (
    Add,
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


def lower(
    program: Program, layout: KVLayout, weights: _native.Weights, *, fused: bool = True
) -> _native.Tape:
    """The tape of a Program over packed weights; ValueError when they do not fit each other.

    `fused` (see backends/fuse.py) changes no bit; without it every buffer can be asked for.
    """
    tape = _native.Tape(
        weights=weights,
        buffers=[(b.name, b.width, b.rows is Rows.WANTED) for b in program.buffers],
        ropes=[(list(rope.inv_freq), rope.interleaved) for rope in program.ropes],
        group_windows=[group.window for group in layout.groups],
        layers=[layout.place(layer) for layer in range(program.num_layers)],
        layers_per_block=layout.layers_per_block,
        num_kv_heads=program.num_kv_heads,
        head_dim=program.head_dim,
        kv_type=KV_DTYPES[layout.kv_dtype],
        vocab=program.vocab_size,
    )
    for op in fuse(program.ops) if fused else program.ops:
        _lower_op(tape, op, program)
    return tape


def _lower_op(tape: _native.Tape, op: FusedOp, program: Program) -> None:
    match op:
        case Embed():
            tape.embed(op.out, op.weight, op.scale)
        case Norm():
            tape.norm(op.out, op.src, op.weight, op.eps)
        case Linear():
            tape.linear(op.out, op.src, op.weights, op.biases, False)
        case AddedLinear(linear, add):
            tape.linear(add.out, linear.src, linear.weights, linear.biases, True)
        case GatedLinear(linear, gate):
            out, activation = gate.out, gate.activation
            tape.gated_linear(out, linear.src, linear.weights, linear.biases, activation)
        case HeadNorm():
            tape.head_norm(op.buf, op.column, op.num_heads, op.head_dim, op.weight, op.eps)
        case RopeWrite():
            _check_heads(op, program)
            tape.rope_write(op.buf, op.rope, op.layer, op.num_heads)
        case Attend():
            _check_heads(op, program)
            tape.attend(op.out, op.src, op.layer, op.num_heads, op.scale, op.window, op.softcap)
        case Gate():
            tape.gate(op.out, op.src, op.activation)
        case Add():
            tape.add(op.out, op.src)
        case SelectWanted():
            tape.select_wanted(op.out, op.src)
        case Head():
            tape.head(op.src, op.weight, op.softcap)


def _check_heads(op: RopeWrite | Attend, program: Program) -> None:
    if (op.num_kv_heads, op.head_dim) != (program.num_kv_heads, program.head_dim):
        raise ValueError(f"layer {op.layer} has KV heads of another shape than the program")
