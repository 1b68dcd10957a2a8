"""HfSource: a Hugging Face folder (config.json, *.safetensors, tokenizer.json)."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from headrace.errors import ModelFormatError
from headrace.models.config import ModelConfig
from headrace.weights.base import DType, TensorInfo, TokenizerSpec
from headrace.weights.check import check_model
from headrace.weights.hf_config import read_config, read_family
from headrace.weights.hf_text import read_chat_template, read_tokenizer
from headrace.weights.json_fields import Fields, read_bounded
from headrace.weights.mapping import MappedFile
from headrace.weights.names import canonical_name, is_derived
from headrace.weights.safetensors_file import SafetensorsFile

MAX_SHARDS = 1000
INDEX_NAME = "model.safetensors.index.json"
_PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")


class HfSource:
    """See weights.base.WeightSource.

    Gemma's norm weights are stored without their +1; they are presented as float32 with it, the
    only tensors that are copied. Everything else is a view of the mapping in its stored type.
    """

    def __init__(self, folder: Path) -> None:
        """Maps and checks every file. Raises ModelFormatError or ModelNotFoundError."""
        self._folder = folder
        self._config_bytes = read_bounded(folder / "config.json")
        self._fields = Fields.read(folder / "config.json")
        self._family = read_family(self._fields)
        self._files: list[SafetensorsFile] = []
        self._tensors: dict[str, TensorInfo] = {}
        self._places: dict[str, tuple[MappedFile, int, DType]] = {}
        self._shifted: dict[str, memoryview] = {}
        try:
            for name in _shard_names(folder):
                self._add_file(folder / name)
            self._drop_tied_head()
        except BaseException:
            self.close()
            raise

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    @cached_property
    def config(self) -> ModelConfig:
        config = read_config(self._fields, self._family, self._tensors)
        check_model(self.name, config, self._tensors)
        return config

    @cached_property
    def tokenizer(self) -> TokenizerSpec:
        return read_tokenizer(self._folder, self._fields, self.config.vocab_size)

    @property
    def chat_template(self) -> str | None:
        return read_chat_template(self._folder)

    @property
    def name(self) -> str:
        """The folder's name; in the Hub's cache, where that is a commit, the repository's."""
        parent = self._folder.resolve().parent
        if parent.name == "snapshots" and parent.parent.name.startswith("models--"):
            return parent.parent.name.rpartition("--")[2]
        return self._folder.resolve().name

    @property
    def file_bytes(self) -> int:
        return sum(file.file.size for file in self._files)

    @cached_property
    def header_digest(self) -> str:
        digest = hashlib.sha256(len(self._config_bytes).to_bytes(8, "little") + self._config_bytes)
        for file in self._files:
            digest.update(file.file.view[: file.header_len])
        return digest.hexdigest()

    def data(self, name: str) -> memoryview:
        file, start, stored = self._places[name]
        info = self._tensors[name]
        if not self._is_shifted(name):
            return file.view[start : start + info.num_bytes]
        if name not in self._shifted:
            count = info.num_bytes // 4
            raw = file.view[start : start + count * (4 if stored is DType.F32 else 2)]
            self._shifted[name] = _plus_one(raw, stored)
        return self._shifted[name]

    def release(self, name: str) -> None:
        file, start, _ = self._places[name]
        if not self._is_shifted(name):
            file.release(start, self._tensors[name].num_bytes)

    def check_unchanged(self) -> None:
        """Raises ModelFormatError if a file was written to since it was opened."""
        for file in self._files:
            file.file.check_unchanged()

    def close(self) -> None:
        self._shifted.clear()
        for file in self._files:
            file.file.close()

    def _add_file(self, path: Path) -> None:
        if not path.exists():
            raise ModelFormatError(f"{self._folder.name!r}: {path.name!r} is missing.")
        file = SafetensorsFile(path)
        self._files.append(file)
        for stored_name, tensor in file.tensors.items():
            if is_derived(stored_name):
                continue
            name = canonical_name(self._family, stored_name)
            if name is None:
                raise ModelFormatError(
                    f"{path.name!r}: tensor {stored_name!r} does not belong to a {self._family}"
                    " model as headrace computes it."
                )
            if name in self._tensors:
                raise ModelFormatError(f"{path.name!r}: tensor {stored_name!r} appears twice.")
            info = tensor.info
            shape, dtype, num_bytes = info.shape, info.dtype, info.num_bytes
            if self._is_shifted(name):
                num_bytes = num_bytes * 4 // (4 if dtype is DType.F32 else 2)
                self._tensors[name] = TensorInfo(name, DType.F32, shape, num_bytes)
            else:
                self._tensors[name] = TensorInfo(name, dtype, shape, num_bytes)
            self._places[name] = (file.file, tensor.start, dtype)

    def _drop_tied_head(self) -> None:
        """A tied model may still store a head; transformers ignores it, and so do we."""
        if self._fields.boolean("tie_word_embeddings", self._family == "gemma3"):
            self._tensors.pop("output.weight", None)

    def _is_shifted(self, name: str) -> bool:
        return self._family == "gemma3" and name.endswith("norm.weight")


def _shard_names(folder: Path) -> list[str]:
    """File names of the weights: those of the index, or the only file."""
    if (folder / INDEX_NAME).is_file():
        index = Fields.read(folder / INDEX_NAME)
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise index.fail("'weight_map' must be an object.")
        names = sorted({str(name) for name in weight_map.values()})
        if len(names) > MAX_SHARDS:
            raise index.fail(f"it names {len(names)} files, more than {MAX_SHARDS}.")
        for name in names:
            # A plain file name of this folder: nothing may lead out of it.
            if "/" in name or "\0" in name or not name.endswith(".safetensors"):
                raise index.fail(f"it names the file {name[:80]!r}.")
        return names
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if "model.safetensors" in found:
        return ["model.safetensors"]
    if len(found) == 1:
        return found
    if found:
        raise ModelFormatError(f"{folder.name!r} has several .safetensors files but no index.")
    if any(next(folder.glob(pattern), None) is not None for pattern in _PICKLE_PATTERNS):
        raise ModelFormatError(
            f"{folder.name!r} holds only pickled weights, which can run code; use a version with"
            " .safetensors files."
        )
    raise ModelFormatError(f"{folder.name!r} has no .safetensors files.")


def _plus_one(raw: memoryview, stored: DType) -> memoryview:
    """Stored values plus one as little-endian float32. The sum is exact in float64 before it is
    rounded, so the result is what float32 addition gives."""
    count = len(raw) // (4 if stored is DType.F32 else 2)
    if stored is DType.BF16:
        widened = bytearray(4 * count)
        widened[2::4] = raw[0::2]
        widened[3::4] = raw[1::2]
        values: tuple[float, ...] = struct.unpack(f"<{count}f", widened)
    else:
        values = struct.unpack(f"<{count}{'f' if stored is DType.F32 else 'e'}", raw)
    shifted = array("f", [value + 1.0 for value in values])
    return memoryview(shifted).cast("B").toreadonly()
