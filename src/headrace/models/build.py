"""Program builder shared by the families: one decoder layer recipe, its options read from ModelConfig."""

from __future__ import annotations

import math

from headrace.models.config import ModelConfig, RopeConfig
from headrace.models.program import (
    Add,
    AnyOp,
    Attend,
    Buffer,
    Embed,
    Gate,
    Head,
    HeadNorm,
    Linear,
    Norm,
    Program,
    RopeTable,
    RopeWrite,
    Rows,
    SelectWanted,
)


def rope_table(rope: RopeConfig, freq_factors: tuple[float, ...] | None = None) -> RopeTable:
    """inv_freq_i = theta^(-2i/dim) with the scaling of the configuration applied.

    `freq_factors` (the tensor named by rope.freq_factors_tensor) divides each frequency. llama3
    scaling follows transformers' modeling_rope_utils.py: wavelengths above original_max_len /
    low_freq_factor are divided by `factor`, those below original_max_len / high_freq_factor stay,
    the band between is interpolated.
    """
    inv_freq = [rope.theta ** (-2.0 * i / rope.dim) for i in range(rope.dim // 2)]
    if rope.scaling == "linear":
        inv_freq = [f / rope.factor for f in inv_freq]
    elif rope.scaling == "llama3":
        inv_freq = [_llama3_frequency(f, rope) for f in inv_freq]
    if freq_factors is not None:
        if len(freq_factors) != len(inv_freq):
            raise ValueError("freq_factors must have one entry per rotated pair")
        inv_freq = [f / d for f, d in zip(inv_freq, freq_factors, strict=True)]
    return RopeTable(tuple(inv_freq), rope.interleaved)


def _llama3_frequency(freq: float, rope: RopeConfig) -> float:
    wavelength = 2.0 * math.pi / freq
    if wavelength < rope.original_max_len / rope.high_freq_factor:
        return freq
    if wavelength > rope.original_max_len / rope.low_freq_factor:
        return freq / rope.factor
    smooth = (rope.original_max_len / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    return (1.0 - smooth) * freq / rope.factor + smooth * freq


class ProgramBuilder:
    """Collects operations of one model. Families call `layer()` once per layer and `finish()`.

    Buffers: `x` residual stream, `h` normed input, `qkv`, `att`, `gate_up`, `act`, `y` branch output,
    `w`/`wh` wanted rows.
    """

    def __init__(self, config: ModelConfig, freq_factors: tuple[float, ...] | None = None) -> None:
        self.config = config
        self.ops: list[AnyOp] = []
        self.ropes = [rope_table(config.rope, freq_factors)]
        if config.rope_local is not None:
            self.ropes.append(rope_table(config.rope_local))
        self._extent = 0
        c = config
        self._qkv_width = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
        self.ops.append(Embed(-1, 0, "x", "token_embd.weight", c.embed_scale))

    def layer(self, index: int) -> None:
        """Append one decoder layer: attention branch, then gated MLP branch."""
        self._extent = index + 1
        self._attention(index, f"blk.{index}.")
        self._mlp(index, f"blk.{index}.")

    def _attention(self, index: int, prefix: str) -> None:
        c, e = self.config, self._extent
        is_window = c.layer_is_window[index]
        rope = 1 if is_window and c.rope_local is not None else 0
        names = tuple(f"{prefix}attn_{part}" for part in "qkv")
        biases = tuple(f"{n}.bias" for n in names) if c.qkv_bias else ()
        self.ops.append(Norm(index, e, "h", "x", f"{prefix}attn_norm.weight", c.norm_eps))
        self.ops.append(Linear(index, e, "qkv", "h", tuple(f"{n}.weight" for n in names), biases))
        if c.qk_norm:
            q_weight, k_weight = f"{prefix}attn_q_norm.weight", f"{prefix}attn_k_norm.weight"
            k_column = c.num_heads * c.head_dim
            self.ops.append(
                HeadNorm(index, e, "qkv", 0, c.num_heads, c.head_dim, q_weight, c.norm_eps)
            )
            self.ops.append(
                HeadNorm(index, e, "qkv", k_column, c.num_kv_heads, c.head_dim, k_weight, c.norm_eps)
            )
        heads = (c.num_heads, c.num_kv_heads, c.head_dim)
        window = c.window if is_window else 0
        self.ops.append(RopeWrite(index, e, "qkv", rope, *heads))
        self.ops.append(
            Attend(index, e, "att", "qkv", *heads, c.attn_scale, window, c.attn_softcap)
        )
        self.ops.append(Linear(index, e, "y", "att", (f"{prefix}attn_output.weight",)))
        self._join(index, f"{prefix}post_attention_norm.weight")

    def _mlp(self, index: int, prefix: str) -> None:
        c, e = self.config, self._extent
        self.ops.append(Norm(index, e, "h", "x", f"{prefix}ffn_norm.weight", c.norm_eps))
        self.ops.append(
            Linear(
                index, e, "gate_up", "h", (f"{prefix}ffn_gate.weight", f"{prefix}ffn_up.weight")
            )
        )
        self.ops.append(Gate(index, e, "act", "gate_up", c.activation))
        self.ops.append(Linear(index, e, "y", "act", (f"{prefix}ffn_down.weight",)))
        self._join(index, f"{prefix}post_ffw_norm.weight")

    def _join(self, index: int, post_norm: str) -> None:
        """Add the branch output to the residual stream, normed first where the family does so."""
        if self.config.post_norms:
            self.ops.append(Norm(index, self._extent, "y", "y", post_norm, self.config.norm_eps))
        self.ops.append(Add(index, self._extent, "x", "y"))

    def finish(self) -> Program:
        """Append the final norm and the head, and freeze the Program."""
        c = self.config
        extent = c.num_layers + 1
        head = "token_embd.weight" if c.tied_head else "output.weight"
        self.ops.append(SelectWanted(-1, extent, "w", "x"))
        self.ops.append(Norm(-1, extent, "wh", "w", "output_norm.weight", c.norm_eps))
        self.ops.append(Head(-1, extent, "wh", head, c.logit_softcap))
        buffers = (
            Buffer("x", c.hidden_dim),
            Buffer("h", c.hidden_dim),
            Buffer("qkv", self._qkv_width),
            Buffer("att", c.num_heads * c.head_dim),
            Buffer("y", c.hidden_dim),
            Buffer("gate_up", 2 * c.ffn_dim),
            Buffer("act", c.ffn_dim),
            Buffer("w", c.hidden_dim, Rows.WANTED),
            Buffer("wh", c.hidden_dim, Rows.WANTED),
        )
        windows = tuple(c.window if w else 0 for w in c.layer_is_window)
        return Program(
            buffers,
            tuple(self.ops),
            tuple(self.ropes),
            windows,
            c.num_kv_heads,
            c.head_dim,
            c.hidden_dim,
            c.vocab_size,
        )
