"""ModelConfig: every number that decides a Program, the same for every kind of source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding of one kind of layer.

    Pair i of a head rotates by position * theta^(-2i/dim) / factor_i. `interleaved`: pairs are
    (2i, 2i+1) as in GGUF files of the llama architecture; otherwise (i, i + dim/2) ("neox").
    `scaling`: "none", "linear" (frequencies divided by `factor`), or "llama3" (by wavelength, with
    `low_freq_factor`, `high_freq_factor`, `original_max_len`; transformers modeling_rope_utils.py).
    A GGUF file stores llama3 scaling as the tensor `rope_freqs.weight` (a divisor per pair)
    instead: `freq_factors_tensor` names it. `dim` is the rotated width (<= head_dim).
    """

    theta: float
    dim: int
    interleaved: bool
    scaling: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_len: int = 0
    freq_factors_tensor: str | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and constants of one model.

    `family` is a key of `models.registry`: llama, qwen2, qwen3, gemma3. `layer_is_window[i]` says
    that layer i attends to the last `window` positions only (itself included); such layers use
    `rope_local` when it is given. `attn_scale` multiplies q.k. `activation` is "silu" or
    "gelu_tanh". `tied_head`: logits use the embedding table. `max_model_len` is the context length
    of the file.
    """

    family: str
    num_layers: int
    hidden_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    max_model_len: int
    norm_eps: float
    rope: RopeConfig
    rope_local: RopeConfig | None
    attn_scale: float
    activation: str
    embed_scale: float
    layer_is_window: tuple[bool, ...]
    window: int
    qkv_bias: bool
    qk_norm: bool
    post_norms: bool
    tied_head: bool
    logit_softcap: float = 0.0
    attn_softcap: float = 0.0
