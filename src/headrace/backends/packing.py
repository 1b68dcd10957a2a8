"""Packs the weights of a source for the native kernels: which type each tensor gets, and the record
of what was read, for the model's identity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace import _native
from headrace.errors import ModelFormatError, ResourceError
from headrace.models.program import Embed, Head, HeadNorm, Linear, Norm, Program
from headrace.weights.base import BLOCK_SIZES, DType, TensorInfo, WeightSource

PACKINGS = ("bf16", "int8", "int4")
ACTIVATIONS = ("quantized", "float32")

_FLOATS = (DType.F32, DType.F16, DType.BF16)


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A tensor as loaded: how it is packed, and the checksum of its stored bytes."""

    name: str
    packed: DType
    checksum: int


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Native weights and the record of every tensor in them, in loading order."""

    native: _native.Weights
    tensors: tuple[PackedTensor, ...]


def pack_weights(
    source: WeightSource,
    program: Program,
    pool: _native.ThreadPool,
    *,
    isa: str,
    packing: str | None,
    activations: str = "quantized",
) -> PackedWeights:
    """Packs every tensor the Program names, in the order of first use, each once.

    `packing` applies to tensors stored as floats: None keeps them, bf16 rounds float32 to bfloat16,
    int8 is Q8_0, int4 is Q4_1 with an int8 embedding and head. `activations`: "quantized" rounds
    them before products with quantized weights (native/gemm/gemm.h), "float32" never. The source's
    pages are released tensor by tensor. Raises ModelFormatError and ResourceError.
    """
    if packing is not None and packing not in PACKINGS:
        raise ModelFormatError(f"Packing {packing!r} is unknown; use one of {', '.join(PACKINGS)}.")
    if activations not in ACTIVATIONS:
        raise ModelFormatError(
            f"Activations {activations!r} are unknown; use one of {', '.join(ACTIVATIONS)}."
        )
    floats = activations == "float32"
    matrices = {name: _packed_type(source, name, packing) for name in _matrix_names(program)}
    try:
        capacity = sum(_packed_bytes(source.tensors[n], t) for n, t in matrices.items())
        native = _native.Weights(pool, isa=isa, capacity_bytes=capacity)
        tensors = [_add_matrix(native, source, n, t, floats) for n, t in matrices.items()]
        tensors += [_add_vector(native, source, name) for name in _vector_names(program)]
    except ValueError as error:
        raise ModelFormatError(f"{source.name!r}: {error}.") from error
    except MemoryError:
        raise ResourceError(
            f"There is no memory for the weights of {source.name!r}; use a smaller model."
        ) from None
    return PackedWeights(native, tuple(tensors))


def _matrix_names(program: Program) -> Iterator[str]:
    for op in program.ops:
        match op:
            case Embed() | Head():
                yield op.weight
            case Linear():
                yield from op.weights


def _vector_names(program: Program) -> list[str]:
    names: dict[str, None] = {}
    for op in program.ops:
        match op:
            case Norm() | HeadNorm():
                names[op.weight] = None
            case Linear():
                names.update(dict.fromkeys(op.biases))
    return list(names)


def _info(source: WeightSource, name: str, num_dims: int) -> TensorInfo:
    info = source.tensors.get(name)
    if info is None:
        raise ModelFormatError(f"{source.name!r}: tensor {name!r} is missing.")
    if len(info.shape) != num_dims:
        raise ModelFormatError(
            f"{source.name!r}: tensor {name!r} must have {num_dims} dimensions, not"
            f" {len(info.shape)}."
        )
    return info


def _packed_type(source: WeightSource, name: str, packing: str | None) -> DType:
    info = _info(source, name, 2)
    packed = info.dtype
    if packing is not None and info.dtype in _FLOATS:
        packed = _float_packing(name, info.dtype, packing)
    block = BLOCK_SIZES[packed][0]
    if info.shape[1] % block:
        raise ModelFormatError(
            f"{source.name!r}: rows of tensor {name!r} have {info.shape[1]} weights, which"
            f" {packed.name} cannot hold in blocks of {block}."
        )
    return packed


def _float_packing(name: str, stored: DType, packing: str) -> DType:
    if packing == "bf16":
        return DType.BF16 if stored is DType.F32 else stored
    if packing == "int8" or name in ("token_embd.weight", "output.weight"):
        return DType.Q8_0
    return DType.Q4_1


def _packed_bytes(info: TensorInfo, packed: DType) -> int:
    return _native.packed_bytes(packed, info.shape[0], info.shape[1])


def _add_matrix(
    native: _native.Weights, source: WeightSource, name: str, packed: DType, floats: bool
) -> PackedTensor:
    info = source.tensors[name]
    num_rows, row_len = info.shape
    checksum = native.add_matrix(
        name,
        info.dtype,
        packed,
        num_rows,
        row_len,
        source.data(name),
        float_activations=floats,
    )
    source.release(name)
    return PackedTensor(name, packed, checksum)


def _add_vector(native: _native.Weights, source: WeightSource, name: str) -> PackedTensor:
    info = _info(source, name, 1)
    checksum = native.add_vector(name, info.dtype, info.shape[0], source.data(name))
    source.release(name)
    return PackedTensor(name, info.dtype, checksum)
