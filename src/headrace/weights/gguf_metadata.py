"""Typed access to GGUF metadata: values stay in the file until they are asked for."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import ModelFormatError

STRING, ARRAY, BOOL = 8, 9, 7
# GGUF value type -> struct format of a scalar (ggml/include/gguf.h).
SCALAR_FORMATS: Mapping[int, struct.Struct] = {
    kind: struct.Struct("<" + code)
    for kind, code in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip
_INTEGER_KINDS = frozenset({0, 1, 2, 3, 4, 5, 10, 11})
_LENGTH = struct.Struct("<Q")
_MAX_REPEATS = 1000


@dataclass(frozen=True, slots=True)
class StoredText:
    """A string value: `num_bytes` of valid UTF-8 at `start` of the file."""

    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array value whose elements fill [start, start + num_bytes) of the file, all checked."""

    item_kind: int
    count: int
    start: int
    num_bytes: int


Stored = int | float | bool | StoredText | StoredArray


class Metadata:
    """The keys of one file. Every getter raises ModelFormatError naming the key and the file."""

    def __init__(self, file_name: str, view: memoryview, values: Mapping[str, Stored]) -> None:
        self.file_name = file_name
        self._view = view
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def keys(self) -> list[str]:
        return list(self._values)

    def fail(self, message: str) -> ModelFormatError:
        return ModelFormatError(f"{self.file_name!r}: {message}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, StoredText):
            raise self._wrong(key, value, "a string")
        return bytes(self._view[value.start : value.start + value.num_bytes]).decode()

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer, or an array that repeats one integer (some writers store one per layer)."""
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, StoredArray) and value.item_kind != STRING and value.count:
            items = set(self.numbers(key)) if value.count <= _MAX_REPEATS else set()
            if len(items) != 1:
                raise self.fail(f"metadata key {key!r} differs by layer, which is not supported.")
            value = items.pop()
        if type(value) is not int:
            raise self._wrong(key, value, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int and type(value) is not float:
            raise self._wrong(key, value, "a number")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._values.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self._wrong(key, value, "a boolean")
        return value

    def is_array(self, key: str) -> bool:
        return isinstance(self._values.get(key), StoredArray)

    def array_len(self, key: str) -> int:
        return self._array(key).count

    def integers(self, key: str) -> list[int]:
        """The elements of an integer array."""
        value = self._array(key)
        if value.item_kind not in _INTEGER_KINDS:
            raise self._wrong(key, value, "an array of integers")
        return list(struct.unpack_from(self._format(value), self._view, value.start))

    def numbers(self, key: str) -> list[int] | list[float]:
        """The elements of a numeric array (booleans as 0 and 1)."""
        value = self._array(key)
        if value.item_kind == STRING:
            raise self._wrong(key, value, "an array of numbers")
        return list(struct.unpack_from(self._format(value), self._view, value.start))

    def strings(self, key: str) -> list[bytes]:
        """The elements of a string array; each is checked to be valid UTF-8."""
        value = self._array(key)
        if value.item_kind != STRING:
            raise self._wrong(key, value, "an array of strings")
        # Slicing bytes makes one object per string; slicing a view would make two.
        blob = bytes(self._view[value.start : value.start + value.num_bytes])
        pos, unpack = 0, _LENGTH.unpack_from
        items: list[bytes] = []
        append = items.append
        for _ in range(value.count):
            start = pos + 8
            pos = start + unpack(blob, pos)[0]
            append(blob[start:pos])
        try:
            b"\n".join(items).decode()
        except UnicodeDecodeError:
            raise self.fail(f"metadata key {key!r} holds a string that is not UTF-8.") from None
        return items

    def _format(self, value: StoredArray) -> str:
        return f"<{value.count}{SCALAR_FORMATS[value.item_kind].format[1:]}"

    def _array(self, key: str) -> StoredArray:
        value = self._values.get(key)
        if not isinstance(value, StoredArray):
            raise self._wrong(key, value, "an array")
        return value

    def _wrong(self, key: str, value: Stored | None, wanted: str) -> ModelFormatError:
        if value is None:
            return self.fail(f"metadata key {key!r} is missing.")
        return self.fail(f"metadata key {key!r} must be {wanted}.")
