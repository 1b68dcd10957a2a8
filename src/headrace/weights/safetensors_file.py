"""Bounds-checked safetensors files on a mapping, because the library's own readers copy the data.

Format: a little-endian u64 header length, a JSON header {name: {dtype, shape, data_offsets}}, data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from headrace.errors import ModelFormatError
from headrace.weights.base import BLOCK_SIZES, DType, TensorInfo
from headrace.weights.mapping import MappedFile

# The format allows 100 MB; a hundred thousand tensors fit into this, and parsing it stays cheap.
MAX_HEADER_BYTES = 8 << 20
MAX_DIMS = 8
MAX_NAME_LEN = 512
_DTYPES = {"F32": DType.F32, "F16": DType.F16, "BF16": DType.BF16}


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor by its name in the file: bytes [start, start + info.num_bytes) of the file."""

    info: TensorInfo
    start: int


class SafetensorsFile:
    """One mapped and checked file. Types other than F32, F16 and BF16 are refused by name."""

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path)
        try:
            self._name = path.name
            self.header_len = self._read_header_len()
            self.tensors = self._read_tensors()
            self.file.check_unchanged()
        except BaseException:
            self.file.close()
            raise

    def _read_header_len(self) -> int:
        """Length of prefix and JSON together: where the data starts."""
        size = self.file.size
        length = int.from_bytes(self.file.view[:8], "little")
        if size < 8 or length > size - 8:
            raise self._fail("its header is longer than the file, which may be truncated.")
        if length > MAX_HEADER_BYTES:
            raise self._fail(f"its header has {length} bytes; more than {MAX_HEADER_BYTES}.")
        return 8 + length

    def _read_tensors(self) -> dict[str, FileTensor]:
        try:
            header = json.loads(
                bytes(self.file.view[8 : self.header_len]), object_pairs_hook=_unique
            )
        except (ValueError, RecursionError) as error:
            raise self._fail(f"its header is not valid JSON ({type(error).__name__}).") from None
        if not isinstance(header, dict):
            raise self._fail("its header is not a JSON object.")
        header.pop("__metadata__", None)
        tensors: dict[str, FileTensor] = {}
        for name, entry in header.items():
            tensors[name] = self._tensor(name, entry)
        end = self.header_len
        for tensor in sorted(tensors.values(), key=lambda tensor: tensor.start):
            if tensor.start != end:
                raise self._fail(f"tensor {tensor.info.name!r} overlaps or leaves a gap.")
            end += tensor.info.num_bytes
        if end != self.file.size:
            raise self._fail(f"its tensors end at byte {end} of {self.file.size}.")
        return tensors

    def _tensor(self, name: str, entry: Any) -> FileTensor:
        if len(name) > MAX_NAME_LEN:
            raise self._fail(f"a tensor name has {len(name)} characters.")
        if not isinstance(entry, dict):
            raise self._fail(f"the entry of tensor {name!r} is not an object.")
        dtype = _DTYPES.get(str(entry.get("dtype")))
        if dtype is None:
            raise self._fail(
                f"tensor {name!r} is stored as {str(entry.get('dtype'))[:20]}, which is not"
                " supported (supported: F32, F16, BF16)."
            )
        shape, offsets = entry.get("shape"), entry.get("data_offsets")
        if not _are_counts(shape) or len(shape) > MAX_DIMS or 0 in shape:
            raise self._fail(f"tensor {name!r} has an impossible shape.")
        if not _are_counts(offsets) or len(offsets) != 2:
            raise self._fail(f"tensor {name!r} has impossible offsets.")
        item_bytes = BLOCK_SIZES[dtype][1]
        num_bytes = item_bytes
        for dim in shape:
            num_bytes *= dim
        begin, end = offsets
        if end - begin != num_bytes or end > self.file.size - self.header_len:
            raise self._fail(f"tensor {name!r} does not fit its offsets or the file.")
        start = self.header_len + begin
        if start % item_bytes:
            raise self._fail(f"tensor {name!r} is not aligned; save the model again.")
        return FileTensor(TensorInfo(name, dtype, tuple(shape), num_bytes), start)

    def _fail(self, message: str) -> ModelFormatError:
        return ModelFormatError(f"{self._name!r}: {message}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice")
    return result


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
