"""The seam between model files and everything above: tensors by canonical name, metadata, text.

Contract
- A `WeightSource` is read-only and owns its file mappings. `data(name)` returns a memoryview into a
  mapping (never a copy); it is valid until `close()`. `release(name)` may drop the pages of that
  tensor from memory; the view stays usable (pages come back on access).
- Every size, offset and dimension was checked against the file before the source is returned, with
  arithmetic that cannot overflow; constructing one of a hostile file raises `ModelFormatError`.
- Tensor names are the canonical (GGUF) names: `token_embd.weight`, `output_norm.weight`,
  `output.weight` (absent when tied), `blk.N.attn_norm.weight`, `blk.N.attn_{q,k,v,output}.weight`,
  `blk.N.attn_{q,k,v}.bias`, `blk.N.attn_{q,k}_norm.weight`, `blk.N.post_attention_norm.weight`,
  `blk.N.ffn_norm.weight`, `blk.N.ffn_{gate,up,down}.weight`, `blk.N.post_ffw_norm.weight`,
  `rope_freqs.weight`. A Hugging Face folder is mapped to them by `weights/names.py`.
- Shapes are row-major: a linear weight is (n_out, n_in), the embedding (vocab, hidden). GGUF stores
  the dimensions reversed; the reader turns them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace.models.config import ModelConfig


class DType(enum.IntEnum):
    """Stored tensor types. Values are ggml's type ids, also for tensors of safetensors files."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30


# dtype -> (weights per block, bytes per block), ggml-common.h.
BLOCK_SIZES: Mapping[DType, tuple[int, int]] = {
    DType.F32: (1, 4),
    DType.F16: (1, 2),
    DType.BF16: (1, 2),
    DType.Q4_0: (32, 18),
    DType.Q4_1: (32, 20),
    DType.Q5_0: (32, 22),
    DType.Q5_1: (32, 24),
    DType.Q8_0: (32, 34),
    DType.Q4_K: (256, 144),
    DType.Q5_K: (256, 176),
    DType.Q6_K: (256, 210),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor. `shape` is row-major; `num_bytes` is its exact stored size."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """What `text.tokenizer.load_tokenizer` needs. Exactly one of the two forms is filled.

    `json_bytes`: a tokenizer.json. Otherwise the GGUF vocabulary: `model` is `gpt2` (byte-level
    BPE, with `pre` naming the split) or `llama` (SentencePiece-style, with `scores`); `token_types`
    are GGUF's (1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte). `eos_id` is the
    end token that the file itself names, `eos_ids` all that end a generation.
    """

    json_bytes: bytes | None = None
    model: str = ""
    pre: str = ""
    tokens: list[bytes] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    token_types: list[int] = field(default_factory=list)
    merges: list[bytes] = field(default_factory=list)
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    eos_id: int | None = None
    unk_id: int | None = None
    pad_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False


class WeightSource(Protocol):
    """An opened model (one file, sharded files, or a folder). See the module docstring."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    @property
    def config(self) -> ModelConfig:
        """Read from the file's metadata; raises ModelFormatError for an unknown architecture."""
        ...

    @property
    def tokenizer(self) -> TokenizerSpec:
        """Raises ModelFormatError when the file carries no tokenizer."""
        ...

    @property
    def chat_template(self) -> str | None: ...

    @property
    def name(self) -> str:
        """The file stem or folder name; never a path."""
        ...

    @property
    def file_bytes(self) -> int: ...

    @property
    def header_digest(self) -> str:
        """sha256 hex of all metadata and tensor infos; with tensor checksums it is the identity."""
        ...

    def data(self, name: str) -> memoryview:
        """The stored bytes of a tensor, read-only, length `tensors[name].num_bytes`."""
        ...

    def release(self, name: str) -> None: ...

    def close(self) -> None: ...
