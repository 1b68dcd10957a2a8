"""GgufSource: a GGUF model of one or several mapped files behind the WeightSource contract."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from headrace.errors import ModelFormatError
from headrace.models.config import ModelConfig
from headrace.weights.base import TensorInfo, TokenizerSpec
from headrace.weights.gguf_config import read_config
from headrace.weights.gguf_metadata import Metadata
from headrace.weights.gguf_parse import Header, parse_header
from headrace.weights.gguf_vocab import read_vocabulary
from headrace.weights.mapping import MappedFile

MAX_SHARDS = 1000
_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf")


def shard_paths(path: Path) -> list[Path]:
    """All files of the model that `path` is (any) one of, in order."""
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    stem, count = match["stem"], int(match["count"])
    if not 1 <= int(match["index"]) <= count <= MAX_SHARDS:
        raise ModelFormatError(f"{path.name!r}: the shard number or count in its name is wrong.")
    return [path.with_name(f"{stem}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]


def model_stem(path: Path) -> str:
    """The model's name: the file stem without a shard suffix."""
    match = _SHARD_NAME.fullmatch(path.name)
    return match["stem"] if match else path.stem


class GgufSource:
    """See weights.base.WeightSource. Metadata is the first file's, tensors are all files'."""

    def __init__(self, path: Path) -> None:
        """Maps and checks every file. Raises ModelFormatError or ModelNotFoundError."""
        self._files: list[MappedFile] = []
        self._headers: list[Header] = []
        self._tensors: dict[str, TensorInfo] = {}
        self._places: dict[str, tuple[MappedFile, int]] = {}
        self._name = model_stem(path)
        try:
            paths = shard_paths(path)
            for shard in paths:
                if len(paths) > 1 and not shard.exists():
                    raise ModelFormatError(f"{path.name!r}: its shard {shard.name!r} is missing.")
                self._add_file(shard)
            self._check_shards()
            for file in self._files:
                file.check_unchanged()
        except BaseException:
            self.close()
            raise

    @property
    def metadata(self) -> Metadata:
        return self._headers[0].metadata

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    @cached_property
    def config(self) -> ModelConfig:
        return read_config(self.metadata, self._tensors)

    @cached_property
    def tokenizer(self) -> TokenizerSpec:
        return read_vocabulary(self.metadata, self.config.vocab_size)

    @property
    def chat_template(self) -> str | None:
        key = "tokenizer.chat_template"
        return self.metadata.text(key) if key in self.metadata else None

    @property
    def name(self) -> str:
        return self._name

    @property
    def file_bytes(self) -> int:
        return sum(file.size for file in self._files)

    @cached_property
    def header_digest(self) -> str:
        digest = hashlib.sha256()
        for file, header in zip(self._files, self._headers, strict=True):
            digest.update(header.header_len.to_bytes(8, "little"))
            digest.update(file.view[: header.header_len])
        return digest.hexdigest()

    def data(self, name: str) -> memoryview:
        file, start = self._places[name]
        return file.view[start : start + self._tensors[name].num_bytes]

    def release(self, name: str) -> None:
        file, start = self._places[name]
        file.release(start, self._tensors[name].num_bytes)

    def check_unchanged(self) -> None:
        """Raises ModelFormatError if a file was written to since it was opened."""
        for file in self._files:
            file.check_unchanged()

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _add_file(self, path: Path) -> None:
        file = MappedFile(path)
        self._files.append(file)
        header = parse_header(path.name, file.view)
        self._headers.append(header)
        for tensor in header.tensors:
            info = tensor.info
            if info.name in self._tensors:
                raise ModelFormatError(f"{path.name!r}: tensor {info.name!r} is in two shards.")
            self._tensors[info.name] = info
            self._places[info.name] = (file, tensor.start)

    def _check_shards(self) -> None:
        num_files = len(self._files)
        for i, header in enumerate(self._headers):
            meta = header.metadata
            count = meta.integer("split.count", 1 if num_files == 1 else 0)
            if max(count, 1) != num_files or meta.integer("split.no", 0) != i:
                raise meta.fail(
                    f"it says it is shard {meta.integer('split.no', 0) + 1} of {count}, but its"
                    f" name says {i + 1} of {num_files}; keep the original file names."
                )
        total = self.metadata.integer("split.tensors.count", len(self._tensors))
        if total != len(self._tensors):
            raise self.metadata.fail(
                f"its shards hold {len(self._tensors)} tensors instead of {total}."
            )
