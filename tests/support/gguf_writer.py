"""Writes GGUF bytes, right or deliberately wrong: every count, offset and dimension can be set."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = (
    range(13)
)
_FORMATS = {
    UINT8: "<B",
    INT8: "<b",
    UINT16: "<H",
    INT16: "<h",
    UINT32: "<I",
    INT32: "<i",
    FLOAT32: "<f",
    BOOL: "<?",
    UINT64: "<Q",
    INT64: "<q",
    FLOAT64: "<d",
}


@dataclass(frozen=True)
class Value:
    """A typed metadata value; of an array, `item_kind` is the type of the elements."""

    kind: int
    value: Any
    item_kind: int = 0


@dataclass(frozen=True)
class Tensor:
    """One tensor to write. `dims` is GGUF's order (row length first); `offset` None: packed."""

    name: str | bytes
    dims: Sequence[int]
    type_id: int
    data: bytes
    offset: int | None = None


def u32(value: int) -> Value:
    return Value(UINT32, value)


def f32(value: float) -> Value:
    return Value(FLOAT32, value)


def text(value: str | bytes) -> Value:
    return Value(STRING, value)


def flag(value: bool) -> Value:
    return Value(BOOL, value)


def array(item_kind: int, items: Sequence[Any]) -> Value:
    return Value(ARRAY, items, item_kind)


def gguf_bytes(
    metadata: Mapping[str, Value] | Sequence[tuple[str | bytes, Value]],
    tensors: Sequence[Tensor],
    *,
    version: int = 3,
    alignment: int = 32,
    num_keys: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    """A whole file. `alignment` is only used for padding: write general.alignment yourself."""
    pairs = list(metadata.items()) if isinstance(metadata, Mapping) else list(metadata)
    out = bytearray(b"GGUF")
    out += struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(pairs) if num_keys is None else num_keys,
    )
    for key, value in pairs:
        out += string_bytes(key) + struct.pack("<I", value.kind) + _value_bytes(value)
    offset = 0
    for tensor in tensors:
        out += string_bytes(tensor.name) + struct.pack("<I", len(tensor.dims))
        out += struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims)
        place = offset if tensor.offset is None else tensor.offset
        out += struct.pack("<IQ", tensor.type_id, place)
        offset += len(tensor.data) + -len(tensor.data) % alignment
    if tensors:
        out += bytes(-len(out) % alignment)
    for tensor in tensors:
        out += tensor.data + bytes(-len(tensor.data) % alignment)
    return bytes(out)


def string_bytes(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def _value_bytes(value: Value) -> bytes:
    if value.kind == STRING:
        return string_bytes(value.value)
    if value.kind != ARRAY:
        return struct.pack(_FORMATS[value.kind], value.value)
    head = struct.pack("<IQ", value.item_kind, len(value.value))
    if value.item_kind == STRING:
        return head + b"".join(string_bytes(item) for item in value.value)
    if value.item_kind == ARRAY:
        return head + b"".join(_value_bytes(item) for item in value.value)
    return head + struct.pack(f"<{len(value.value)}{_FORMATS[value.item_kind][1]}", *value.value)
