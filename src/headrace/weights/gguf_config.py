"""GGUF metadata to ModelConfig, one function per family; what is returned was checked.

Rules are those of llama.cpp's src/models/*.cpp and the conversion scripts that write these files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.models.config import ModelConfig, RopeConfig
from headrace.weights.base import TensorInfo
from headrace.weights.check import MAX_LAYERS, check_model
from headrace.weights.gguf_metadata import Metadata

GEMMA_GLOBAL_EVERY = 6
GEMMA_LOCAL_THETA = 10_000.0
# Gemma 3 27B scales queries by hidden_dim / num_heads instead of the head size; only its number of
# layers tells it apart, because the files carry no key for it (llama.cpp does the same).
GEMMA_27B_LAYERS = 62


def read_config(meta: Metadata, tensors: Mapping[str, TensorInfo]) -> ModelConfig:
    """Raises ModelFormatError for an unknown architecture, a missing or impossible key, a missing,
    superfluous or misshapen tensor."""
    arch = meta.text("general.architecture")
    finish = _FAMILIES.get(arch)
    if finish is None:
        known = ", ".join(_FAMILIES)
        raise meta.fail(f"the architecture {arch!r} is not supported (supported: {known}).")
    if meta.integer(f"{arch}.expert_count", 0):
        raise meta.fail("mixture-of-experts models are not supported.")
    config = finish(meta, tensors, _common(meta, arch, tensors))
    check_model(meta.file_name, config, tensors)
    return config


def _common(meta: Metadata, arch: str, tensors: Mapping[str, TensorInfo]) -> ModelConfig:
    """The keys that all families share, and the defaults of a llama model."""
    num_layers = meta.integer(f"{arch}.block_count")
    if not 1 <= num_layers <= MAX_LAYERS:
        raise meta.fail(f"the number of layers is {num_layers}, outside 1 to {MAX_LAYERS}.")
    hidden_dim = meta.integer(f"{arch}.embedding_length")
    num_heads = meta.integer(f"{arch}.attention.head_count")
    if num_heads < 1:
        raise meta.fail(f"the number of attention heads is {num_heads}.")
    head_dim = meta.integer(f"{arch}.attention.key_length", hidden_dim // num_heads)
    value_dim = meta.integer(f"{arch}.attention.value_length", head_dim)
    if head_dim < 1 or value_dim != head_dim:
        raise meta.fail(f"key heads of size {head_dim} and value heads of {value_dim} do not fit.")
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise meta.fail("tensor 'token_embd.weight' is missing.")
    vocab_size = embedding.shape[0]
    key = "tokenizer.ggml.tokens"
    if meta.is_array(key) and meta.array_len(key) > vocab_size:
        raise meta.fail(f"it has {meta.array_len(key)} tokens for {vocab_size} embedding rows.")
    return ModelConfig(
        family=arch,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=num_heads,
        num_kv_heads=meta.integer(f"{arch}.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        ffn_dim=meta.integer(f"{arch}.feed_forward_length"),
        vocab_size=vocab_size,
        max_model_len=meta.integer(f"{arch}.context_length"),
        norm_eps=meta.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        rope=_rope(meta, arch, tensors, head_dim),
        rope_local=None,
        attn_scale=meta.number(f"{arch}.attention.scale", 0.0) or 1 / math.sqrt(head_dim),
        activation="silu",
        embed_scale=1.0,
        layer_is_window=(False,) * num_layers,
        window=0,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        qk_norm=False,
        post_norms=False,
        tied_head="output.weight" not in tensors,
        logit_softcap=meta.number(f"{arch}.final_logit_softcapping", 0.0),
        attn_softcap=meta.number(f"{arch}.attn_logit_softcapping", 0.0),
    )


def _rope(
    meta: Metadata, arch: str, tensors: Mapping[str, TensorInfo], head_dim: int
) -> RopeConfig:
    scaling = meta.text(f"{arch}.rope.scaling.type", "none")
    # Files from before 2023-10 have `scale_linear` alone; some writers give no type.
    factor = meta.number(f"{arch}.rope.scaling.factor", 0.0)
    factor = factor or meta.number(f"{arch}.rope.scale_linear", 0.0) or 1.0
    if scaling not in ("none", "linear"):
        raise meta.fail(f"rope scaling {scaling!r} is not supported.")
    if scaling == "none" and f"{arch}.rope.scaling.type" in meta:
        factor = 1.0
    freq_factors = "rope_freqs.weight"
    return RopeConfig(
        theta=meta.number(f"{arch}.rope.freq_base", 10_000.0),
        dim=meta.integer(f"{arch}.rope.dimension_count", head_dim),
        interleaved=arch == "llama",
        scaling="none" if factor == 1.0 else "linear",
        factor=factor,
        freq_factors_tensor=freq_factors if freq_factors in tensors else None,
    )


def _llama(meta: Metadata, tensors: Mapping[str, TensorInfo], config: ModelConfig) -> ModelConfig:
    """Llama and Mistral. A window key (Mistral 7B v0.1) holds for every layer."""
    window = meta.integer(f"{config.family}.attention.sliding_window", 0)
    if not 0 < window < config.max_model_len:
        return config
    return replace(config, window=window, layer_is_window=(True,) * config.num_layers)


def _qwen2(meta: Metadata, tensors: Mapping[str, TensorInfo], config: ModelConfig) -> ModelConfig:
    return config


def _qwen3(meta: Metadata, tensors: Mapping[str, TensorInfo], config: ModelConfig) -> ModelConfig:
    return replace(config, qk_norm=True)


def _gemma3(meta: Metadata, tensors: Mapping[str, TensorInfo], config: ModelConfig) -> ModelConfig:
    """Norm weights of the file already hold the +1. The window counts the token itself."""
    attn_scale = config.attn_scale
    if config.num_layers == GEMMA_27B_LAYERS and "gemma3.attention.scale" not in meta:
        attn_scale = 1 / math.sqrt(config.hidden_dim / config.num_heads)
    local = RopeConfig(
        theta=meta.number("gemma3.rope.freq_base_swa", GEMMA_LOCAL_THETA),
        dim=config.rope.dim,
        interleaved=False,
    )
    return replace(
        config,
        rope=replace(config.rope, theta=meta.number("gemma3.rope.freq_base", 1_000_000.0)),
        rope_local=local,
        attn_scale=attn_scale,
        activation="gelu_tanh",
        embed_scale=math.sqrt(config.hidden_dim),
        layer_is_window=_gemma_pattern(meta, config.num_layers),
        window=meta.integer("gemma3.attention.sliding_window"),
        qk_norm=True,
        post_norms=True,
    )


def _gemma_pattern(meta: Metadata, num_layers: int) -> tuple[bool, ...]:
    """The pattern key is a flag per layer, or a period whose last layer is global."""
    key = "gemma3.attention.sliding_window_pattern"
    if meta.is_array(key):
        if meta.array_len(key) != num_layers:
            raise meta.fail(f"{key!r} has {meta.array_len(key)} entries for {num_layers} layers.")
        return tuple(bool(flag) for flag in meta.numbers(key))
    period = meta.integer(key, GEMMA_GLOBAL_EVERY)
    if not 1 <= period <= MAX_LAYERS:
        raise meta.fail(f"{key!r} is {period}.")
    return tuple((layer + 1) % period != 0 for layer in range(num_layers))


_Finish = Callable[[Metadata, Mapping[str, TensorInfo], ModelConfig], ModelConfig]
_FAMILIES: Mapping[str, _Finish] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}
