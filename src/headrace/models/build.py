"""The primitives from which a family declares its layers, and the ends that all families share."""

from __future__ import annotations

import math
from collections.abc import Iterator

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


class LayerBuilder:
    """Appends the operations of one decoder layer; its weights are one extent.

    A weight is named without its `blk.N.` prefix and `.weight` suffix. Buffers: `x` residual
    stream, `h` normed input of a branch, `qkv`, `att` outputs of the heads, `gate_up`, `act`,
    `y` output of a branch.
    """

    def __init__(self, config: ModelConfig, index: int, ops: list[AnyOp]) -> None:
        self.index = index
        self.is_window = config.layer_is_window[index]
        self._config = config
        self._ops = ops
        self._place = (index, index + 1)  # layer, extent: the embedding is extent 0
        self._heads = (config.num_heads, config.num_kv_heads, config.head_dim)

    def norm(self, out: str, src: str, weight: str) -> None:
        """`out` = RMS norm of `src`."""
        self._ops.append(Norm(*self._place, out, src, self._weight(weight), self._config.norm_eps))

    def qkv(self, *, bias: bool = False) -> None:
        """`qkv` = the fused query, key and value projections of `h`."""
        names = ("attn_q", "attn_k", "attn_v")
        weights = tuple(self._weight(name) for name in names)
        biases = tuple(f"blk.{self.index}.{name}.bias" for name in names) if bias else ()
        self._ops.append(Linear(*self._place, "qkv", "h", weights, biases))

    def head_norms(self) -> None:
        """Norm every query head and every key head, each kind with one weight of head_dim."""
        heads, kv_heads, dim = self._heads
        for name, column, count in (("attn_q_norm", 0, heads), ("attn_k_norm", heads, kv_heads)):
            weight, eps = self._weight(name), self._config.norm_eps
            self._ops.append(HeadNorm(*self._place, "qkv", column * dim, count, dim, weight, eps))

    def attend(self, *, rope: int = 0) -> None:
        """`att` = attention with rope table `rope`, over the window where the layer has one."""
        c = self._config
        window = c.window if self.is_window else 0
        self._ops.append(RopeWrite(*self._place, "qkv", rope, *self._heads))
        self._ops.append(
            Attend(*self._place, "att", "qkv", *self._heads, c.attn_scale, window, c.attn_softcap)
        )

    def linear(self, out: str, src: str, weight: str) -> None:
        """`out` = weight @ `src`."""
        self._ops.append(Linear(*self._place, out, src, (self._weight(weight),)))

    def gated_mlp(self, activation: str) -> None:
        """`y` = down @ (activation(gate @ h) * (up @ h)), activation "silu" or "gelu_tanh"."""
        weights = (self._weight("ffn_gate"), self._weight("ffn_up"))
        self._ops.append(Linear(*self._place, "gate_up", "h", weights))
        self._ops.append(Gate(*self._place, "act", "gate_up", activation))
        self.linear("y", "act", "ffn_down")

    def add(self, out: str, src: str) -> None:
        """`out` += `src`."""
        self._ops.append(Add(*self._place, out, src))

    def _weight(self, name: str) -> str:
        return f"blk.{self.index}.{name}.weight"


class ProgramBuilder:
    """Embeds on construction, hands out `layers()` in order, freezes the Program in `finish()`."""

    def __init__(self, config: ModelConfig, freq_factors: tuple[float, ...] | None = None) -> None:
        self._config = config
        self._ops: list[AnyOp] = [Embed(-1, 0, "x", "token_embd.weight", config.embed_scale)]
        self._ropes = [rope_table(config.rope, freq_factors)]

    def add_rope(self, rope: RopeConfig) -> int:
        """Register another rope table and return its index; table 0 is the one of config.rope."""
        self._ropes.append(rope_table(rope))
        return len(self._ropes) - 1

    def layers(self) -> Iterator[LayerBuilder]:
        """A builder for each layer, first to last."""
        for index in range(self._config.num_layers):
            yield LayerBuilder(self._config, index, self._ops)

    def finish(self) -> Program:
        """Append the final norm and the head over the wanted rows, and freeze the Program."""
        c = self._config
        extent = c.num_layers + 1
        head = "token_embd.weight" if c.tied_head else "output.weight"
        self._ops.append(SelectWanted(-1, extent, "w", "x"))
        self._ops.append(Norm(-1, extent, "wh", "w", "output_norm.weight", c.norm_eps))
        self._ops.append(Head(-1, extent, "wh", head, c.logit_softcap))
        return Program(
            buffers=_buffers(c),
            ops=tuple(self._ops),
            ropes=tuple(self._ropes),
            kv_windows=tuple(c.window if w else 0 for w in c.layer_is_window),
            num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            vocab_size=c.vocab_size,
        )


def _buffers(config: ModelConfig) -> tuple[Buffer, ...]:
    c = config
    return (
        Buffer("x", c.hidden_dim),
        Buffer("h", c.hidden_dim),
        Buffer("qkv", (c.num_heads + 2 * c.num_kv_heads) * c.head_dim),
        Buffer("att", c.num_heads * c.head_dim),
        Buffer("y", c.hidden_dim),
        Buffer("gate_up", 2 * c.ffn_dim),
        Buffer("act", c.ffn_dim),
        Buffer("w", c.hidden_dim, Rows.WANTED),
        Buffer("wh", c.hidden_dim, Rows.WANTED),
    )
