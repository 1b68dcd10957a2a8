"""ReferenceBackend: the executable definition of a Program, in plain NumPy. Readable over fast."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.backends.base import StepPlan, StepResult
from headrace.backends.layout import KVLayout, make_layout
from headrace.backends.reference import ops
from headrace.backends.reference.activations import round_activations
from headrace.backends.reference.arena import Arena
from headrace.backends.reference.dequant import dequantize
from headrace.backends.reference.sampling import sample_row
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
    SelectWanted,
)
from headrace.models.registry import build_program
from headrace.weights.base import WeightSource

Array = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int32]

LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class Numerics:
    """How numbers are held; int8 `kv` has scales. `round_activations`: as the CPU backend quantizes
    them before a product with quantized weights."""

    compute: type[np.floating[Any]] = np.float32
    kv: type[np.floating[Any] | np.int8] = np.float16
    round_activations: bool = False


EXACT = Numerics(kv=np.float32)
EXACT64 = Numerics(compute=np.float64, kv=np.float64)
CPU_LIKE = Numerics(round_activations=True)
CPU_LIKE_INT8_KV = Numerics(kv=np.int8, round_activations=True)


class Step:
    """A plan with its tokens resolved, and the buffers of its run: name to [rows, width].

    The logits of the wanted rows, [wanted, vocab], are the buffer `logits`.
    """

    def __init__(self, plan: StepPlan, previous: Sequence[int]) -> None:
        drawn = np.array([*previous], np.int32)
        tokens = np.array(plan.tokens, np.int32)
        late = tokens < 0
        tokens[late] = drawn[-1 - tokens[late]]
        self.plan = plan
        self.tokens: Ints = tokens
        self.positions: Ints = np.array(plan.positions, np.int32)
        self.buffers: dict[str, Array] = {}

    def sequences(self, group: int) -> Iterator[tuple[slice, Ints]]:
        """(rows, block table of `group`) of each sequence."""
        plan = self.plan
        starts, table = plan.table_starts[group], np.array(plan.tables[group], np.int32)
        for s, (first, end) in enumerate(pairwise(plan.seq_starts)):
            last = starts[s + 1] if s + 1 < len(starts) else len(table)
            yield slice(first, end), table[starts[s] : last]


class ReferenceBackend:
    """backends.base.Backend over dequantized weights. Steps run inside `submit`.

    Every weight is dequantized when first used and kept: four bytes a weight. `program` is the
    source's own unless another over the same tensors is given.
    """

    def __init__(
        self,
        source: WeightSource,
        *,
        num_blocks: int,
        program: Program | None = None,
        numerics: Numerics = EXACT,
        max_step_rows: int = 4096,
    ) -> None:
        self._source = source
        self._numerics = numerics
        self._weights: dict[str, Array] = {}
        self._max_step_rows = max_step_rows
        self._drawn: list[int] = []
        self.program = program or build_program(source.config, self._freq_factors())
        p = self.program
        kv_dtype = "int8" if numerics.kv is np.int8 else "fp16"
        self._layout = make_layout(p.kv_windows, p.num_kv_heads, p.head_dim, kv_dtype)
        self.arena = Arena(self._layout, num_blocks, numerics.kv)

    def _freq_factors(self) -> tuple[float, ...] | None:
        name = self._source.config.rope.freq_factors_tensor
        if name is None:
            return None
        info = self._source.tensors[name]
        return tuple(dequantize(info.dtype, self._source.data(name), info.shape).tolist())

    @property
    def layout(self) -> KVLayout:
        return self._layout

    @property
    def num_blocks(self) -> int:
        return self.arena.num_blocks

    @cached_property
    def numerics_id(self) -> str:
        return hashlib.sha256(
            f"reference {self._numerics} {self._source.header_digest}".encode()
        ).hexdigest()

    @property
    def max_step_rows(self) -> int:
        return self._max_step_rows

    def submit(self, plan: StepPlan) -> object:
        logits = self.logits(plan)
        rows = [
            sample_row(row.astype(np.float32), wanted)
            for row, wanted in zip(logits, plan.wanted, strict=True)
        ]
        self._drawn = [row.token for row in rows]
        return StepResult(rows)

    def collect(self, handle: object) -> StepResult:
        if not isinstance(handle, StepResult):
            raise TypeError("collect takes what submit returned")
        return handle

    def hidden_states(self, plan: StepPlan, buffers: Sequence[str]) -> dict[str, list[list[float]]]:
        final = self._run(plan)
        return {name: final[name].tolist() for name in buffers}

    def logits(self, plan: StepPlan) -> Array:
        """Run a plan without sampling: the logits of its wanted rows, [wanted, vocab]."""
        return self._run(plan)[LOGITS]

    def trace(self, plan: StepPlan) -> Iterator[tuple[AnyOp, dict[str, Array]]]:
        """Run a plan; after each operation, yield it and the buffers (live, not copies)."""
        if len(plan.tokens) > self._max_step_rows:
            raise ValueError(f"a step has at most {self._max_step_rows} rows")
        for source, destination in plan.copies:
            self.arena.copy_block(source, destination)
        step = Step(plan, self._drawn)
        for op in self.program.ops:
            self._apply(op, step)
            yield op, step.buffers

    def close(self) -> None:
        """Forget weights and KV; the source stays the caller's."""
        self._weights.clear()
        self.arena.memory = self.arena.memory[:, :0]

    def _run(self, plan: StepPlan) -> dict[str, Array]:
        buffers: dict[str, Array] = {}
        for _, live in self.trace(plan):
            buffers = live
        return buffers

    def _apply(self, op: AnyOp, step: Step) -> None:
        b = step.buffers
        match op:
            case Embed():
                b[op.out] = self._weight(op.weight)[step.tokens] * self._numerics.compute(op.scale)
            case Norm():
                b[op.out] = ops.rms_norm(b[op.src], self._weight(op.weight), op.eps)
            case Linear():
                biases = [self._weight(name) for name in op.biases]
                parts = [self._product(b[op.src], name) for name in op.weights]
                b[op.out] = ops.join(parts, biases)
            case HeadNorm():
                self._norm_heads(op, b[op.buf])
            case RopeWrite():
                self._rope_write(op, step)
            case Attend():
                b[op.out] = self._attend(op, step)
            case Gate():
                b[op.out] = ops.gate(b[op.src], op.activation)
            case Add():
                b[op.out] = b[op.out] + b[op.src]
            case SelectWanted():
                b[op.out] = b[op.src][[wanted.row for wanted in step.plan.wanted]]
            case Head():
                logits = self._product(b[op.src], op.weight)
                b[LOGITS] = ops.cap(logits, op.softcap) if op.softcap > 0 else logits

    def _weight(self, name: str) -> Array:
        """The dequantized weight, kept after the first use."""
        weight = self._weights.get(name)
        if weight is None:
            info = self._source.tensors[name]
            stored = dequantize(info.dtype, self._source.data(name), info.shape)
            weight = stored.astype(self._numerics.compute)
            self._weights[name] = weight
        return weight

    def _product(self, x: Array, weight: str) -> Array:
        """`x @ weight.T`, the activations rounded first where these numerics say so."""
        if self._numerics.round_activations:
            x = round_activations(x, self._source.tensors[weight].dtype)
        return x @ self._weight(weight).T

    def _norm_heads(self, op: HeadNorm, buf: Array) -> None:
        columns = slice(op.column, op.column + op.num_heads * op.head_dim)
        heads = buf[:, columns].reshape(len(buf), op.num_heads, op.head_dim)
        normed = ops.rms_norm(heads, self._weight(op.weight), op.eps)
        buf[:, columns] = normed.reshape(len(buf), op.num_heads * op.head_dim)

    def _rope_write(self, op: RopeWrite, step: Step) -> None:
        buf = step.buffers[op.buf]
        heads = buf.reshape(len(buf), buf.shape[1] // op.head_dim, op.head_dim)
        num_rotated = op.num_heads + op.num_kv_heads
        rope = self.program.ropes[op.rope]
        heads[:, :num_rotated] = ops.rotate(heads[:, :num_rotated], step.positions, rope)
        group, slot = self._layout.place(op.layer)
        for rows, table in step.sequences(group):
            k, v = heads[rows, op.num_heads : num_rotated], heads[rows, num_rotated:]
            self.arena.write(slot, table, step.positions[rows], k, v)

    def _attend(self, op: Attend, step: Step) -> Array:
        num_heads = op.num_heads + 2 * op.num_kv_heads
        qkv = step.buffers[op.src].reshape(len(step.tokens), num_heads, op.head_dim)
        group, slot = self._layout.place(op.layer)
        out = np.empty((len(qkv), op.num_heads, op.head_dim), qkv.dtype)
        for rows, table in step.sequences(group):
            positions = step.positions[rows]
            lowest = max(0, int(positions[0]) - op.window + 1) if op.window else 0
            seen = np.arange(lowest, int(positions[-1]) + 1)
            keys, values = self.arena.read(slot, table, seen)
            visible = seen[None, :] <= positions[:, None]
            if op.window:
                visible &= seen[None, :] > positions[:, None] - op.window
            out[rows] = ops.attend(
                qkv[rows, : op.num_heads],
                keys.astype(qkv.dtype),
                values.astype(qkv.dtype),
                visible,
                op.scale,
                op.softcap,
            )
        return out.reshape(len(qkv), op.num_heads * op.head_dim)
