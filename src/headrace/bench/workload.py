"""What a step of a model must read and multiply, from its Program and its file alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.models.program import Attend, Head, HeadNorm, Linear, Norm, Program
from headrace.weights.base import DType, TensorInfo

FLOAT_TYPES = (DType.F32, DType.F16, DType.BF16)


@dataclass(frozen=True, slots=True)
class Workload:
    """Bytes and operations; an operation is half a multiply-add."""

    weight_bytes: int  # read once per step
    integer_ops: int  # of products of quantized weights, for each token; two per multiply-add
    float_ops: int  # likewise of float weights
    head_ops: int  # of the head, for each row whose logits are wanted
    has_integer_head: bool
    attention: tuple[tuple[int, int, int], ...]  # per layer: heads x head_dim, KV bytes, window

    def kv_bytes(self, context: int) -> int:
        """Bytes of keys and values that one token at this position sees."""
        return sum(size * _seen(context, window) for _, size, window in self.attention)

    def attention_ops(self, length: int) -> int:
        """Of a prompt: every token sees those before it and itself, in scores and in values."""
        seen = {w: _seen_in_all(length, w) for w in {window for *_, window in self.attention}}
        return sum(4 * width * seen[window] for width, _, window in self.attention)


def _seen(context: int, window: int) -> int:
    return min(context, window) if window else context


def _seen_in_all(length: int, window: int) -> int:
    inside = _seen(length, window)
    return inside * (inside + 1) // 2 + (length - inside) * inside


def workload_of(program: Program, tensors: Mapping[str, TensorInfo], kv_bytes: int) -> Workload:
    """`kv_bytes`: of one position of one layer."""
    read: dict[str, int] = {}
    ops = {"integer": 0, "float": 0, "head": 0}
    has_integer_head = False
    attention = []
    for op in program.ops:
        match op:
            case Linear():
                for name in op.weights:
                    kind = "float" if tensors[name].dtype in FLOAT_TYPES else "integer"
                    ops[kind] += 2 * tensors[name].shape[0] * tensors[name].shape[1]
                read.update((name, tensors[name].num_bytes) for name in (*op.weights, *op.biases))
            case Head():
                ops["head"] += 2 * tensors[op.weight].shape[0] * tensors[op.weight].shape[1]
                has_integer_head = tensors[op.weight].dtype not in FLOAT_TYPES
                read[op.weight] = tensors[op.weight].num_bytes
            case Norm() | HeadNorm():
                read[op.weight] = tensors[op.weight].num_bytes
            case Attend():
                attention.append((op.num_heads * op.head_dim, kv_bytes, op.window))
            case _:  # of an embedding a token reads one row; a tied one counts as the head
                pass
    return Workload(
        sum(read.values()),
        ops["integer"],
        ops["float"],
        ops["head"],
        has_integer_head,
        tuple(attention),
    )
