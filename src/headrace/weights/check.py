"""The last gate of a model file: its numbers are in range and every tensor is there in its shape.

After `check_model` later stages need no checks of their own on configuration or tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from headrace.errors import ModelFormatError
from headrace.models.config import ModelConfig, RopeConfig
from headrace.weights.base import DType, TensorInfo

MAX_LAYERS = 1000
MAX_DIM = 1 << 20
MAX_FFN_DIM = 1 << 22
MAX_VOCAB = 1 << 22
MAX_CONTEXT = 1 << 27
MAX_HEAD_DIM = 1024
_PLAIN = (DType.F32, DType.F16, DType.BF16)


def check_model(source: str, config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> None:
    """Raises ModelFormatError, naming `source` and the first thing that is wrong."""
    check_numbers(source, config)
    expected = expected_tensors(config)
    for name, shape in expected.items():
        info = tensors.get(name)
        if info is None:
            raise ModelFormatError(f"{source!r}: tensor {name!r} is missing.")
        if info.shape != shape:
            raise ModelFormatError(
                f"{source!r}: tensor {name!r} has the shape {list(info.shape)} instead of"
                f" {list(shape)}."
            )
        if len(shape) == 1 and info.dtype not in _PLAIN:
            raise ModelFormatError(
                f"{source!r}: tensor {name!r} is stored as {info.dtype.name}; norms and biases"
                " must be F32, F16 or BF16."
            )
    for name in tensors:
        if name not in expected:
            kind = "an expert (mixture-of-experts models are" if "_exps" in name else "(it is"
            raise ModelFormatError(
                f"{source!r}: tensor {name!r} does not belong to a {config.family} model as"
                f" headrace computes it {kind} not supported)."
            )


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model, by canonical name, with its row-major shape."""
    hidden = config.hidden_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    if not config.tied_head:
        shapes["output.weight"] = (config.vocab_size, hidden)
    for rope in (config.rope, config.rope_local):
        if rope is not None and rope.freq_factors_tensor is not None:
            shapes[rope.freq_factors_tensor] = (rope.dim // 2,)
    layer = _layer_tensors(config)
    for i in range(config.num_layers):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def _layer_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, ffn, head = config.hidden_dim, config.ffn_dim, config.head_dim
    q_dim, kv_dim = config.num_heads * head, config.num_kv_heads * head
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (q_dim, hidden),
        "attn_k.weight": (kv_dim, hidden),
        "attn_v.weight": (kv_dim, hidden),
        "attn_output.weight": (hidden, q_dim),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (ffn, hidden),
        "ffn_up.weight": (ffn, hidden),
        "ffn_down.weight": (hidden, ffn),
    }
    if config.qkv_bias:
        layer |= {"attn_q.bias": (q_dim,), "attn_k.bias": (kv_dim,), "attn_v.bias": (kv_dim,)}
    if config.qk_norm:
        layer |= {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}
    if config.post_norms:
        layer |= {"post_attention_norm.weight": (hidden,), "post_ffw_norm.weight": (hidden,)}
    return layer


def check_numbers(source: str, config: ModelConfig) -> None:
    """Raises ModelFormatError for a number out of range; tensors are not looked at."""
    for what, value, limit in (
        ("number of layers", config.num_layers, MAX_LAYERS),
        ("hidden size", config.hidden_dim, MAX_DIM),
        ("number of attention heads", config.num_heads, MAX_DIM),
        ("number of key-value heads", config.num_kv_heads, MAX_DIM),
        ("head size", config.head_dim, MAX_HEAD_DIM),
        ("feed-forward size", config.ffn_dim, MAX_FFN_DIM),
        ("vocabulary size", config.vocab_size, MAX_VOCAB),
        ("context length", config.max_model_len, MAX_CONTEXT),
    ):
        if not 1 <= value <= limit:
            raise ModelFormatError(f"{source!r}: the {what} is {value}, outside 1 to {limit}.")
    if config.num_heads % config.num_kv_heads:
        raise ModelFormatError(
            f"{source!r}: {config.num_heads} attention heads cannot share"
            f" {config.num_kv_heads} key-value heads evenly."
        )
    if any(config.layer_is_window) and config.window < 1:
        raise ModelFormatError(f"{source!r}: the sliding window is {config.window}.")
    for what, number, low, high in (
        ("norm epsilon", config.norm_eps, 0.0, 1.0),
        ("attention scale", config.attn_scale, 0.0, 1e3),
        ("embedding scale", config.embed_scale, 0.0, 1e6),
        ("logit soft cap", config.logit_softcap or 1.0, 0.0, 1e9),
        ("attention soft cap", config.attn_softcap or 1.0, 0.0, 1e9),
    ):
        if not low < number < high:
            raise ModelFormatError(f"{source!r}: the {what} is {number}.")
    _check_rope(source, config.rope, config.head_dim)
    if config.rope_local is not None:
        _check_rope(source, config.rope_local, config.head_dim)


def _check_rope(source: str, rope: RopeConfig, head_dim: int) -> None:
    if not 2 <= rope.dim <= head_dim or rope.dim % 2:
        raise ModelFormatError(
            f"{source!r}: the rotary width is {rope.dim}; it must be even and at most {head_dim}."
        )
    for what, number in (
        ("rope base", rope.theta),
        ("rope scaling factor", rope.factor),
        ("rope low frequency factor", rope.low_freq_factor),
        ("rope high frequency factor", rope.high_freq_factor),
    ):
        if not (math.isfinite(number) and 0 < number < 1e12):
            raise ModelFormatError(f"{source!r}: the {what} is {number}.")
    if rope.scaling == "llama3" and (
        rope.high_freq_factor <= rope.low_freq_factor or rope.original_max_len < 1
    ):
        raise ModelFormatError(f"{source!r}: the llama3 rope scaling is inconsistent.")
