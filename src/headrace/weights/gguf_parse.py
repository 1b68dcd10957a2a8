"""Bounds-checked parsing of one GGUF file's header (versions 2 and 3, little endian).

Format: ggml/include/gguf.h. Every count, length, dimension and offset is compared with the bytes
that are there before it is used; Python integers cannot overflow. Work is bounded by the limits
below, whatever the file claims.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from headrace.errors import ModelFormatError
from headrace.weights.base import BLOCK_SIZES, DType, TensorInfo
from headrace.weights.gguf_metadata import (
    ARRAY,
    BOOL,
    SCALAR_FORMATS,
    STRING,
    Metadata,
    Stored,
    StoredArray,
    StoredText,
)

MAX_HEADER_BYTES = 48 << 20
MAX_KEYS = 65_536
MAX_TENSORS = 65_536
MAX_STRINGS = 2 << 20  # In all arrays; the largest vocabularies with merges have 0.7 M.
MAX_TEXT_BYTES = 4 << 20
MAX_NAME_BYTES = 256
MAX_DIMS = 4
MIN_ALIGNMENT, MAX_ALIGNMENT, DEFAULT_ALIGNMENT = 8, 1 << 20, 32

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_INFO = struct.Struct("<IQ")
# Types of ggml.h that this reader refuses, so that the error can name them.
_OTHER_TYPES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of one file: its bytes are [start, start + info.num_bytes) of the file."""

    info: TensorInfo
    start: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file declares; `header_len` bytes hold all of it."""

    metadata: Metadata
    tensors: list[StoredTensor]
    header_len: int


def parse_header(file_name: str, view: memoryview) -> Header:
    """Parse and check everything but the tensor data. Raises ModelFormatError."""
    return _Parser(file_name, view).parse()


class _Parser:
    """A cursor over the file. `_pos` never passes `_end`: the file size or the header limit."""

    def __init__(self, file_name: str, view: memoryview) -> None:
        self._file_name = file_name
        self._view = view
        self._pos = 0
        self._end = min(len(view), MAX_HEADER_BYTES)
        self._num_strings = 0

    def parse(self) -> Header:
        if len(self._view) < 4 or bytes(self._view[:4]) != b"GGUF":
            raise self._fail("it is not a GGUF file (wrong first bytes).")
        self._pos = 4
        version = self._u32()
        if version in (0x02000000, 0x03000000):
            raise self._fail("big-endian GGUF is not supported; convert the model again.")
        if version not in (2, 3):
            raise self._fail(f"GGUF version {version} is not supported (2 and 3 are).")
        num_tensors, num_keys = self._u64(), self._u64()
        # A key takes at least 13 bytes (length, type, value), a tensor at least 32.
        self._check_count(num_keys, MAX_KEYS, 13, "metadata keys")
        self._check_count(num_tensors, MAX_TENSORS, 32, "tensors")
        metadata = Metadata(self._file_name, self._view, self._keys(num_keys))
        alignment = metadata.integer("general.alignment", DEFAULT_ALIGNMENT)
        if not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self._fail(f"general.alignment is {alignment}; a power of two >= 8 is needed.")
        tensors = self._tensors(num_tensors, alignment)
        return Header(metadata, tensors, self._pos)

    def _keys(self, num_keys: int) -> dict[str, Stored]:
        values: dict[str, Stored] = {}
        for _ in range(num_keys):
            key = self._name("metadata key")
            if key in values:
                raise self._fail(f"metadata key {key!r} appears twice.")
            kind = self._u32()
            values[key] = self._array(key) if kind == ARRAY else self._value(key, kind)
        return values

    def _value(self, key: str, kind: int) -> Stored:
        if kind == STRING:
            num_bytes = self._u64()
            start = self._take(num_bytes)
            if num_bytes > MAX_TEXT_BYTES:
                raise self._fail(f"the string of {key!r} has {num_bytes} bytes; too long.")
            self._decode(start, f"the string of {key!r}")
            return StoredText(start, num_bytes)
        scalar = SCALAR_FORMATS.get(kind)
        if scalar is None:
            raise self._fail(f"metadata key {key!r} has the unknown type {kind}.")
        value: int | float = scalar.unpack_from(self._view, self._take(scalar.size))[0]
        if kind == BOOL:
            if value not in (0, 1):
                raise self._fail(f"metadata key {key!r} is a boolean with the value {value}.")
            return bool(value)
        return value

    def _array(self, key: str) -> StoredArray:
        item_kind, count = self._u32(), self._u64()
        start = self._pos
        if item_kind == ARRAY:
            raise self._fail(f"metadata key {key!r} is an array of arrays, which is not supported.")
        if item_kind == STRING:
            self._num_strings += count
            self._check_count(count, MAX_STRINGS, 8, f"strings in {key!r}")
            if self._num_strings > MAX_STRINGS:
                raise self._fail(f"its arrays hold more than {MAX_STRINGS} strings.")
            self._skip_strings(key, count)
        elif (scalar := SCALAR_FORMATS.get(item_kind)) is not None:
            self._take(count * scalar.size)
        else:
            raise self._fail(f"metadata key {key!r} is an array of the unknown type {item_kind}.")
        return StoredArray(item_kind, count, start, self._pos - start)

    def _skip_strings(self, key: str, count: int) -> None:
        """The hot loop of opening: one unpack per token or merge. A position that a hostile length
        threw out of the file makes the next unpack fail, so one check at the end is enough."""
        header, pos, unpack = self._view[: self._end], self._pos, _U64.unpack_from
        try:
            for _ in range(count):
                pos += unpack(header, pos)[0] + 8
        except (struct.error, OverflowError):
            pos = self._end + 1
        if pos > self._end:
            raise self._fail(f"a string in {key!r} reaches beyond the end of the header.")
        self._pos = pos

    def _tensors(self, num_tensors: int, alignment: int) -> list[StoredTensor]:
        offsets: dict[str, int] = {}
        infos: list[TensorInfo] = []
        for _ in range(num_tensors):
            name = self._name("tensor name")
            if name in offsets:
                raise self._fail(f"tensor {name!r} appears twice.")
            info, offset = self._tensor_info(name)
            if offset % alignment:
                raise self._fail(f"tensor {name!r} is not aligned to {alignment} bytes.")
            infos.append(info)
            offsets[name] = offset
        data_start = -(-self._pos // alignment) * alignment
        tensors = [StoredTensor(info, data_start + offsets[info.name]) for info in infos]
        self._check_layout(tensors)
        return tensors

    def _tensor_info(self, name: str) -> tuple[TensorInfo, int]:
        num_dims = self._u32()
        if not 1 <= num_dims <= MAX_DIMS:
            raise self._fail(f"tensor {name!r} has {num_dims} dimensions.")
        dims = [self._u64() for _ in range(num_dims)]
        type_id, offset = _INFO.unpack_from(self._view, self._take(_INFO.size))
        try:
            dtype = DType(type_id)
        except ValueError:
            type_name = _OTHER_TYPES.get(type_id, f"type {type_id}")
            supported = ", ".join(kind.name for kind in DType)
            raise self._fail(
                f"tensor {name!r} is stored as {type_name}, which is not supported"
                f" (supported: {supported})."
            ) from None
        num_weights = 1
        for dim in dims:
            num_weights *= dim
        block_len, block_bytes = BLOCK_SIZES[dtype]
        if num_weights == 0 or dims[0] % block_len:
            raise self._fail(f"tensor {name!r} has the shape {dims}, impossible for {dtype.name}.")
        num_bytes = num_weights // block_len * block_bytes
        if num_bytes > len(self._view):
            raise self._fail(f"tensor {name!r} is larger than the file, which may be truncated.")
        return TensorInfo(name, dtype, tuple(reversed(dims)), num_bytes), offset

    def _check_layout(self, tensors: list[StoredTensor]) -> None:
        """Every tensor lies inside the file and after its predecessor's end."""
        end, previous = 0, ""
        for tensor in sorted(tensors, key=lambda stored: stored.start):
            name = tensor.info.name
            if tensor.start < end:
                raise self._fail(f"tensors {previous!r} and {name!r} overlap.")
            end, previous = tensor.start + tensor.info.num_bytes, name
        if end > len(self._view):
            raise self._fail(
                f"it is truncated: tensor {previous!r} ends at byte {end} of {len(self._view)}."
            )

    def _check_count(self, count: int, limit: int, min_bytes: int, what: str) -> None:
        if count > limit or count * min_bytes > self._end - self._pos:
            raise self._fail(f"it claims {count} {what}, more than it can hold.")

    def _name(self, what: str) -> str:
        num_bytes = self._u64()
        start = self._take(num_bytes)
        if not 0 < num_bytes <= MAX_NAME_BYTES:
            raise self._fail(f"a {what} has {num_bytes} bytes.")
        return self._decode(start, f"a {what}")

    def _decode(self, start: int, what: str) -> str:
        try:
            return bytes(self._view[start : self._pos]).decode()
        except UnicodeDecodeError:
            raise self._fail(f"{what} is not UTF-8.") from None

    def _u32(self) -> int:
        return int(_U32.unpack_from(self._view, self._take(4))[0])

    def _u64(self) -> int:
        return int(_U64.unpack_from(self._view, self._take(8))[0])

    def _take(self, num_bytes: int) -> int:
        """Start of the next `num_bytes`, which are certain to be there."""
        start = self._pos
        if num_bytes > self._end - start:
            raise self._fail("its header is truncated or larger than allowed.")
        self._pos = start + num_bytes
        return start

    def _fail(self, message: str) -> ModelFormatError:
        return ModelFormatError(f"{self._file_name!r}: {message}")
