"""config.json of a Hugging Face folder to ModelConfig.

Both spellings are read: `rope_theta` with `rope_scaling`, and `rope_parameters` (transformers 5).
Nothing that `auto_map` names is ever imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.models.config import ModelConfig, RopeConfig
from headrace.weights.base import TensorInfo
from headrace.weights.check import MAX_LAYERS
from headrace.weights.json_fields import Fields

_FAMILY_OF = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
}
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")
_VISION_KEYS = ("vision_config", "audio_config", "vision_tower")


def read_family(config: Fields) -> str:
    """Raises ModelFormatError for anything that is not a dense, unquantized text model we know."""
    quantization = config.fields("quantization_config")
    if quantization is not None:
        method = str(quantization.get("quant_method"))[:20]
        raise config.fail(
            f"the model is quantized with {method!r}, which is not supported; use the original"
            " model or a GGUF file."
        )
    if any(config.get(key) is not None for key in _VISION_KEYS):
        raise config.fail("models that see or hear are not supported; use a text-only one.")
    if any(config.get(key) for key in _EXPERT_KEYS):
        raise config.fail("mixture-of-experts models are not supported.")
    model_type = config.text("model_type", "")
    family = _FAMILY_OF.get(model_type)
    if family is None:
        known = ", ".join(_FAMILY_OF)
        raise config.fail(f"the model type {model_type!r} is not supported (supported: {known}).")
    return family


def read_config(config: Fields, family: str, tensors: Mapping[str, TensorInfo]) -> ModelConfig:
    """Numbers and tensors are checked by the caller (weights.check)."""
    hidden_dim = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_layers = config.integer("num_hidden_layers")
    if num_heads < 1:
        raise config.fail(f"'num_attention_heads' is {num_heads}.")
    if not 1 <= num_layers <= MAX_LAYERS:
        raise config.fail(f"'num_hidden_layers' is {num_layers}, outside 1 to {MAX_LAYERS}.")
    head_dim = config.integer("head_dim", hidden_dim // num_heads)
    if head_dim < 1:
        raise config.fail(f"'head_dim' is {head_dim}.")
    common = ModelConfig(
        family=family,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        ffn_dim=config.integer("intermediate_size"),
        vocab_size=config.integer("vocab_size"),
        max_model_len=config.integer("max_position_embeddings"),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=_rope(config, head_dim, "full_attention", 10_000.0),
        rope_local=None,
        attn_scale=1 / math.sqrt(head_dim),
        activation="silu",
        embed_scale=1.0,
        layer_is_window=(False,) * num_layers,
        window=0,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        qk_norm=family in ("qwen3", "gemma3"),
        post_norms=family == "gemma3",
        tied_head=config.boolean("tie_word_embeddings", family == "gemma3"),
    )
    return _FINISH[family](config, common)


def _rope(config: Fields, head_dim: int, layer_type: str, default_theta: float) -> RopeConfig:
    parameters = config.fields("rope_parameters")
    if parameters is not None:
        parameters = parameters.fields(layer_type) or parameters
    scaling = parameters or config.fields("rope_scaling") or Fields(config.file_name, {})
    theta = config.number("rope_theta", default_theta)
    share = config.number("partial_rotary_factor", 1.0)
    if not 0 < share <= 1:
        raise config.fail(f"'partial_rotary_factor' is {share}.")
    base = RopeConfig(
        theta=scaling.number("rope_theta", theta), dim=int(head_dim * share), interleaved=False
    )
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind == "default":
        return base
    if kind == "linear":
        return replace(base, scaling="linear", factor=scaling.number("factor"))
    if kind == "llama3":
        return replace(
            base,
            scaling="llama3",
            factor=scaling.number("factor"),
            low_freq_factor=scaling.number("low_freq_factor"),
            high_freq_factor=scaling.number("high_freq_factor"),
            original_max_len=scaling.integer("original_max_position_embeddings"),
        )
    raise config.fail(f"rope scaling {kind!r} is not supported (linear and llama3 are).")


def _llama(config: Fields, common: ModelConfig) -> ModelConfig:
    """Llama and Mistral; Mistral's window, when there is one, holds for every layer."""
    _expect_activation(config, "silu")
    window = config.integer("sliding_window", 0)
    if not 0 < window < common.max_model_len:
        return common
    return replace(common, window=window, layer_is_window=(True,) * common.num_layers)


def _qwen(config: Fields, common: ModelConfig) -> ModelConfig:
    """Qwen 2 and 3: layers from max_window_layers on have a window, if windows are used at all."""
    _expect_activation(config, "silu")
    if not config.boolean("use_sliding_window", False) or not config.integer("sliding_window", 0):
        return common
    first = config.integer("max_window_layers", 28)
    pattern = tuple(layer >= first for layer in range(common.num_layers))
    pattern = _layer_types(config, common.num_layers) or pattern
    if not any(pattern):
        return common
    return replace(common, window=config.integer("sliding_window"), layer_is_window=pattern)


def _gemma3(config: Fields, common: ModelConfig) -> ModelConfig:
    _expect_activation(config, "gelu_pytorch_tanh")
    if config.boolean("use_bidirectional_attention", False):
        raise config.fail("bidirectional attention is not supported.")
    period = config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", 6))
    if not 1 <= period <= MAX_LAYERS:
        raise config.fail(f"'sliding_window_pattern' is {period}.")
    pattern = tuple((layer + 1) % period != 0 for layer in range(common.num_layers))
    query_scale = config.number("query_pre_attn_scalar", 256.0)
    if query_scale <= 0:
        raise config.fail(f"'query_pre_attn_scalar' is {query_scale}.")
    return replace(
        common,
        rope=_rope(config, common.head_dim, "full_attention", 1_000_000.0),
        rope_local=_gemma_local_rope(config, common.head_dim),
        attn_scale=1 / math.sqrt(query_scale),
        activation="gelu_tanh",
        embed_scale=math.sqrt(max(common.hidden_dim, 0)),
        layer_is_window=_layer_types(config, common.num_layers) or pattern,
        window=config.integer("sliding_window", 4096),
        logit_softcap=config.number("final_logit_softcapping", 0.0),
        attn_softcap=config.number("attn_logit_softcapping", 0.0),
    )


def _gemma_local_rope(config: Fields, head_dim: int) -> RopeConfig:
    """Window layers have a base of their own and no scaling."""
    parameters = config.fields("rope_parameters")
    nested = parameters.fields("sliding_attention") if parameters is not None else None
    if nested is not None:
        return _rope(config, head_dim, "sliding_attention", 10_000.0)
    theta = config.number("rope_local_base_freq", 10_000.0)
    return RopeConfig(theta=theta, dim=head_dim, interleaved=False)


def _layer_types(config: Fields, num_layers: int) -> tuple[bool, ...] | None:
    kinds: Any = config.get("layer_types")
    if kinds is None:
        return None
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, Sequence) or len(kinds) != num_layers:
        raise config.fail("'layer_types' must name the type of every layer.")
    if any(kind not in known for kind in kinds):
        raise config.fail("'layer_types' names a type of layer that is not supported.")
    return tuple(kind == "sliding_attention" for kind in kinds)


def _expect_activation(config: Fields, wanted: str) -> None:
    activation = config.text("hidden_activation", config.text("hidden_act", wanted))
    if activation != wanted:
        raise config.fail(f"the activation {activation!r} is not supported (expected {wanted!r}).")


_FINISH: Mapping[str, Callable[[Fields, ModelConfig], ModelConfig]] = {
    "llama": _llama,
    "qwen2": _qwen,
    "qwen3": _qwen,
    "gemma3": _gemma3,
}
