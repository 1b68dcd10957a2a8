"""A WeightSource held in memory: a made model without the readers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from headrace.models.config import ModelConfig, RopeConfig
from headrace.weights.base import TensorInfo, TokenizerSpec
from tests.support.make_model import LLAMA3_SCALING, MadeModel, MadeTensor, Shape


class MemorySource:
    """Presents made tensors and a configuration as an opened model file would."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, MadeTensor]) -> None:
        self.config = config
        self.made = dict(tensors)
        self.tensors = {
            name: TensorInfo(name, t.dtype, t.shape, len(t.data)) for name, t in tensors.items()
        }
        self.tokenizer = TokenizerSpec()
        self.chat_template: str | None = None
        self.name = f"tiny-{config.family}"
        self.file_bytes = sum(len(t.data) for t in tensors.values())
        digest = hashlib.sha256(repr(config).encode())
        for tensor in tensors.values():
            digest.update(tensor.data)
        self.header_digest = digest.hexdigest()

    def data(self, name: str) -> memoryview:
        return memoryview(self.made[name].data)

    def release(self, name: str) -> None:
        pass

    def close(self) -> None:
        pass


def memory_source(made: MadeModel) -> MemorySource:
    """The model that was written, without its file."""
    gguf = made.path.suffix == ".gguf"
    return MemorySource(model_config(made.shape, gguf=gguf), made.tensors)


def model_config(shape: Shape, *, gguf: bool) -> ModelConfig:
    """The configuration that a reader finds in a GGUF file or a Hugging Face folder."""
    gemma = shape.family == "gemma3"
    dim = shape.head_dim
    is_window = tuple(gemma and (i + 1) % 6 != 0 for i in range(shape.num_layers))
    return ModelConfig(
        family=shape.family,
        num_layers=shape.num_layers,
        hidden_dim=shape.hidden_dim,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=dim,
        ffn_dim=shape.ffn_dim,
        vocab_size=shape.vocab_size,
        max_model_len=shape.max_model_len,
        norm_eps=float(np.float32(shape.norm_eps)) if gguf else shape.norm_eps,
        rope=_rope(shape, gguf=gguf),
        rope_local=RopeConfig(10000.0, dim, interleaved=False) if gemma else None,
        attn_scale=1 / math.sqrt(dim),
        activation="gelu_tanh" if gemma else "silu",
        embed_scale=math.sqrt(shape.hidden_dim) if gemma else 1.0,
        layer_is_window=is_window,
        window=shape.window if gemma else 0,
        qkv_bias=shape.family == "qwen2",
        qk_norm=shape.family in ("qwen3", "gemma3"),
        post_norms=gemma,
        tied_head=shape.tied_head,
    )


def _rope(shape: Shape, *, gguf: bool) -> RopeConfig:
    interleaved = gguf and shape.family == "llama"
    theta, dim = shape.rope_theta, shape.head_dim
    if shape.rope_scaling == "linear":
        return RopeConfig(theta, dim, interleaved, "linear", factor=8.0)
    if shape.rope_scaling == "none":
        return RopeConfig(theta, dim, interleaved)
    if gguf:
        return RopeConfig(theta, dim, interleaved, freq_factors_tensor="rope_freqs.weight")
    return RopeConfig(
        theta,
        dim,
        interleaved,
        "llama3",
        factor=LLAMA3_SCALING["factor"],
        low_freq_factor=LLAMA3_SCALING["low_freq_factor"],
        high_freq_factor=LLAMA3_SCALING["high_freq_factor"],
        original_max_len=int(LLAMA3_SCALING["original_max_position_embeddings"]),
    )
