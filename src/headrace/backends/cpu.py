"""CpuBackend: a Program on the native core. One native call runs a step, with the GIL released."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from headrace import _native
from headrace.backends.base import RowResult, SamplingSpec, StepPlan, StepResult, WantedRow
from headrace.backends.layout import (
    BLOCK_LEN,
    DEFAULT_KV_DTYPE,
    KV_DTYPES,
    KVLayout,
    make_layout,
)
from headrace.backends.lower import lower
from headrace.backends.packing import PackedTensor, pack_weights
from headrace.backends.threads import make_pool
from headrace.errors import ModelFormatError, ResourceError
from headrace.models.program import Program
from headrace.weights.base import WeightSource

# What can change a bit of the output beside the model: the arithmetic of the kernels (every
# instruction set gives equal bits, so they share it), and its revision.
NUMERIC_TABLE = "cpu-1"
KERNEL_REVISION = 1
SPLIT_LEN = 256

_MAX_CACHED_SPECS = 4096
_MAX_BLOCKS = 1 << 30
_MAX_STEP_ROWS = 1 << 16


class CpuBackend:
    """backends.base.Backend. Made by `load`; `submit` runs the step, `collect` hands it out."""

    def __init__(
        self,
        model: _native.Model,
        layout: KVLayout,
        *,
        num_blocks: int,
        max_step_rows: int,
        numerics_id: str,
        lease: _native.ComputeLease | None = None,
    ) -> None:
        self._model: _native.Model | None = model
        self._layout = layout
        self._num_blocks = num_blocks
        self._max_step_rows = max_step_rows
        self._numerics_id = numerics_id
        self._lease = lease
        # By id(spec); holding the spec keeps its id from being used again.
        self._specs: dict[int, tuple[SamplingSpec, _native.SamplingSpec]] = {}

    @classmethod
    def load(
        cls,
        source: WeightSource,
        program: Program,
        *,
        kv_bytes: int,
        threads: int | None = None,
        max_step_rows: int,
        isa: str | None = None,
        packing: str | None = None,
        activations: str = "quantized",
        lease: _native.ComputeLease | None = None,
        kv_dtype: str = DEFAULT_KV_DTYPE,
    ) -> CpuBackend:
        """Pack the weights of `source` and lower `program`; the source may be closed afterwards.

        `kv_bytes`: bytes of the KV arena, rounded down to whole blocks; touched as it is used.
        `threads`: None for what the affinity mask and the cgroup grant. `isa`: a kernel table, None
        for HEADRACE_ISA or the best. `packing`, `activations`: see `pack_weights`. `lease`: held by
        every step, and while weights are packed, so that processes take turns. `kv_dtype`: how keys
        and values are kept, "fp16" or "int8".
        Raises ModelFormatError for weights that do not fit the Program, ResourceError for what the
        machine lacks.
        """
        pool = make_pool(threads, lease)
        try:
            isa = _chosen_isa(isa)
        except ValueError as error:
            raise ResourceError(f"{error}.") from error
        if not 1 <= max_step_rows <= _MAX_STEP_ROWS:
            raise ResourceError(
                f"A step of {max_step_rows} tokens is asked for; it may have 1 to {_MAX_STEP_ROWS}."
            )
        if kv_dtype not in list(KV_DTYPES):
            known = ", ".join(KV_DTYPES)
            raise ResourceError(f"{kv_dtype!r} is no type of keys and values; use one of {known}.")
        layout = make_layout(program.kv_windows, program.num_kv_heads, program.head_dim, kv_dtype)
        num_blocks = _num_blocks(source.name, kv_bytes, layout)
        weights = pack_weights(
            source, program, pool, isa=isa, packing=packing, activations=activations
        )
        try:
            tape = lower(program, layout, weights.native)
            model = _native.Model(pool, tape, num_blocks=num_blocks, max_step_rows=max_step_rows)
        except ValueError as error:
            raise ModelFormatError(f"{source.name!r}: {error}.") from error
        except MemoryError:
            raise _no_address_space(kv_bytes) from None
        return cls(
            model,
            layout,
            num_blocks=num_blocks,
            max_step_rows=max_step_rows,
            numerics_id=_numerics_id(
                source.header_digest, weights.tensors, program, layout, activations
            ),
            lease=lease,
        )

    @property
    def layout(self) -> KVLayout:
        return self._layout

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def numerics_id(self) -> str:
        return self._numerics_id

    @property
    def max_step_rows(self) -> int:
        return self._max_step_rows

    def submit(self, plan: StepPlan) -> object:
        """Run a step. ValueError, with nothing changed, for a plan that breaks the contract."""
        rows, _, native_s = self._step(plan, ())
        waited_s = 0.0 if self._lease is None else self._lease.waited_s
        return StepResult([RowResult(*row) for row in rows], native_s, waited_s)

    def collect(self, handle: object) -> StepResult:
        if not isinstance(handle, StepResult):
            raise TypeError("collect takes what submit returned")
        return handle

    def hidden_states(self, plan: StepPlan, buffers: Sequence[str]) -> dict[str, list[list[float]]]:
        values = self.hidden_bytes(plan, buffers)
        return {name: _rows_of(width, data) for name, (width, data) in values.items()}

    def hidden_bytes(self, plan: StepPlan, buffers: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        """hidden_states as (floats in a row, rows of float32), for buffers of many values."""
        _, values, _ = self._step(plan, buffers)
        return dict(zip(buffers, values, strict=True))

    def close(self) -> None:
        """Free weights, arena and threads."""
        self._model = None
        self._specs.clear()

    def _step(self, plan: StepPlan, buffers: Sequence[str]) -> _native.StepOutput:
        if self._model is None:
            raise RuntimeError("the backend is closed")
        return self._model.step(
            plan.tokens,
            plan.positions,
            plan.seq_starts,
            plan.tables,
            plan.table_starts,
            plan.copies,
            [self._wanted(row) for row in plan.wanted],
            buffers,
        )

    def _wanted(self, row: WantedRow) -> _native.WantedRow:
        cached = self._specs.get(id(row.spec))
        spec = self._native_spec(row.spec) if cached is None else cached[1]
        return (
            row.row,
            spec,
            row.sample,
            row.target,
            row.output_pos,
            row.history,
            row.prompt_len,
            row.banned,
            row.mask,
        )

    def _native_spec(self, spec: SamplingSpec) -> _native.SamplingSpec:
        native = _native.SamplingSpec(
            temperature=spec.temperature,
            top_k=spec.top_k,
            top_p=spec.top_p,
            min_p=spec.min_p,
            repetition_penalty=spec.repetition_penalty,
            presence_penalty=spec.presence_penalty,
            frequency_penalty=spec.frequency_penalty,
            logit_bias=list(spec.logit_bias),
            seed=spec.seed,
            num_top=spec.num_top,
        )
        if len(self._specs) >= _MAX_CACHED_SPECS:
            self._specs.clear()
        self._specs[id(spec)] = (spec, native)
        return native


def _num_blocks(name: str, kv_bytes: int, layout: KVLayout) -> int:
    num_blocks = kv_bytes // layout.block_bytes
    if num_blocks < len(layout.groups):
        raise ResourceError(
            f"A KV cache of {kv_bytes} bytes holds no token of {name!r}; it needs at least"
            f" {len(layout.groups) * layout.block_bytes} bytes."
        )
    if num_blocks > _MAX_BLOCKS:
        raise _no_address_space(kv_bytes)
    return num_blocks


def _no_address_space(kv_bytes: int) -> ResourceError:
    return ResourceError(
        f"There is no address space for a KV cache of {kv_bytes} bytes; use a smaller one."
    )


def _chosen_isa(isa: str | None) -> str:
    if isa is None:
        return _native.isa()
    if isa not in _native.isas():
        known = ", ".join(_native.isas())
        raise ValueError(f"{isa!r} is not a kernel table of this processor; use one of {known}")
    return isa


def _numerics_id(
    header_digest: str,
    tensors: Sequence[PackedTensor],
    program: Program,
    layout: KVLayout,
    activations: str,
) -> str:
    digest = hashlib.sha256()
    parts = [NUMERIC_TABLE, KERNEL_REVISION, header_digest, layout, BLOCK_LEN, SPLIT_LEN]
    parts.append(activations)
    parts += sorted((t.name, t.packed.name, t.checksum) for t in tensors)
    parts += [([f.hex() for f in rope.inv_freq], rope.interleaved) for rope in program.ropes]
    for part in parts:
        digest.update(repr(part).encode() + b"\n")
    return digest.hexdigest()


def _rows_of(width: int, data: bytes) -> list[list[float]]:
    values = array("f", data).tolist()
    return [values[i : i + width] for i in range(0, len(values), width)]
