"""Which operations of a Program the native tape runs as one, without the buffer between them.

A pure rewrite of the list of operations; no bit of a result changes. Two patterns:

- `Linear(out=y)`, `Add(out=x, src=y)`: the product is added to x as it is stored (`AddedLinear`).
- `Linear(out=gate_up)`, `Gate(out=act, src=gate_up)`, `Linear(src=act)`: the first two become one
  product that gates its outputs while they are in the first-level cache and leaves only what the
  third reads, quantized rows of act (`GatedLinear`).

Both require that nothing else reads the buffer between: after the step it is not in memory, and
whoever wants to look at it lowers the Program unfused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.models.program import (
    Add,
    AnyOp,
    Embed,
    Gate,
    HeadNorm,
    Linear,
    RopeWrite,
)


@dataclass(frozen=True, slots=True)
class AddedLinear:
    """add.out += the product of `linear`, whose `out` is never stored."""

    linear: Linear
    add: Add


@dataclass(frozen=True, slots=True)
class GatedLinear:
    """gate.out = the gated product of `linear`, for the operation that follows and no other."""

    linear: Linear
    gate: Gate


FusedOp = AnyOp | AddedLinear | GatedLinear


def fuse(ops: Sequence[AnyOp]) -> list[FusedOp]:
    """`ops` with every pattern of the module docstring replaced."""
    fused: list[FusedOp] = []
    index = 0
    while index < len(ops):
        op = ops[index]
        pair: FusedOp | None = None
        if isinstance(op, Linear):
            pair = _added(op, ops[index + 1 :]) or _gated(op, ops[index + 1 :])
        fused.append(pair or op)
        index += 2 if pair else 1
    return fused


def _added(linear: Linear, later: Sequence[AnyOp]) -> AddedLinear | None:
    if not later or not isinstance(add := later[0], Add):
        return None
    apart = add.src == linear.out and add.out not in (linear.out, linear.src)
    return AddedLinear(linear, add) if apart and _is_dead(linear.out, later[1:]) else None


def _gated(linear: Linear, later: Sequence[AnyOp]) -> GatedLinear | None:
    if len(later) < 2 or not isinstance(gate := later[0], Gate):
        return None
    reader = later[1]
    follows = isinstance(reader, Linear) and reader.src == gate.out != linear.src
    apart = len(linear.weights) == 2 and gate.src == linear.out
    dead = _is_dead(linear.out, later[1:]) and _is_dead(gate.out, later[2:])
    return GatedLinear(linear, gate) if follows and apart and dead else None


def _is_dead(buffer: str, later: Sequence[AnyOp]) -> bool:
    """Whether no later operation reads what `buffer` holds now."""
    for op in later:
        if buffer in _read(op):
            return False
        if buffer in _written(op):
            return True
    return True


def _read(op: AnyOp) -> tuple[str, ...]:
    match op:
        case Embed():
            return ()
        case HeadNorm() | RopeWrite():
            return (op.buf,)
        case Add():
            return (op.out, op.src)
        case _:
            return (op.src,)


def _written(op: AnyOp) -> tuple[str, ...]:
    out = getattr(op, "out", None)
    return () if out is None else (out,)
