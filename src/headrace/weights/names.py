"""Hugging Face tensor names to canonical ones (weights.base)."""

from __future__ import annotations

import re

_LAYER = re.compile(r"model\.layers\.(0|[1-9]\d{0,3})\.(.+)\.(weight|bias)")
_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_MIDDLE = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Gemma normalizes the attention output before adding it, so the same name is another norm there.
_GEMMA_MIDDLE = _MIDDLE | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def canonical_name(family: str, name: str) -> str | None:
    """The canonical name, or None for a name that no model of the family has."""
    if name in _TOP:
        return _TOP[name]
    match = _LAYER.fullmatch(name)
    if match is None:
        return None
    middle = (_GEMMA_MIDDLE if family == "gemma3" else _MIDDLE).get(match[2])
    return f"blk.{match[1]}.{middle}.{match[3]}" if middle else None


def hf_name(family: str, name: str) -> str | None:
    """The inverse of `canonical_name`: None for what a Hugging Face folder does not store."""
    for stored, canonical in _TOP.items():
        if name == canonical:
            return stored
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != "blk":
        return None
    for middle, canonical in (_GEMMA_MIDDLE if family == "gemma3" else _MIDDLE).items():
        if parts[2] == canonical:
            return f"model.layers.{parts[1]}.{middle}.{parts[3]}"
    return None


def is_derived(name: str) -> bool:
    """Old files store the rotary frequencies, which follow from the configuration."""
    return name.endswith(".rotary_emb.inv_freq")
