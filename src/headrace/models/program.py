"""Program: a model as a flat list of operations over named buffers and weights. Backends lower it.

Semantics (all values float32, rows independent; `backends/reference` is the executable definition)
- Buffers are matrices [rows, width]. `StepRows` buffers have one row per plan row, `WantedRows`
  buffers one row per plan row whose logits are wanted, in plan order.
- Operations run in list order. `layer` is the layer an operation belongs to (-1: none); `extent`
  numbers the weight extents in first-use order, so that a loader can run ahead: before an operation
  runs, its extent must be resident.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Rows(enum.Enum):
    """Which rows a buffer has."""

    STEP = "step"
    WANTED = "wanted"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named float32 matrix [rows, width]."""

    name: str
    width: int
    rows: Rows = Rows.STEP


@dataclass(frozen=True, slots=True)
class Op:
    """Base of all operations."""

    layer: int
    extent: int


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """out[r] = scale * dequantized row token[r] of `weight` (vocab, width)."""

    out: str
    weight: str
    scale: float


@dataclass(frozen=True, slots=True)
class Norm(Op):
    """out[r] = src[r] * rsqrt(mean(src[r]^2) + eps) * weight. `out` may be `src`."""

    out: str
    src: str
    weight: str
    eps: float


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """out[r] = concat_i(weights[i] @ src[r] + biases[i]); a fused group shares src.

    `biases` is empty or has one entry per weight.
    """

    out: str
    src: str
    weights: tuple[str, ...]
    biases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HeadNorm(Op):
    """Norm of each of `num_heads` consecutive heads of `buf`, from column `column`, in place."""

    buf: str
    column: int
    num_heads: int
    head_dim: int
    weight: str
    eps: float


@dataclass(frozen=True, slots=True)
class RopeWrite(Op):
    """Rotate q and k of `buf` = [q heads | k heads | v heads] in place by the row's position with
    rope table `rope` (index into Program.ropes), then store k and v as float16 in the KV cache of
    `layer`, at the row's position."""

    buf: str
    rope: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Attend(Op):
    """out[r] = softmax(scale * q.k) v over cached positions p of the row's sequence with
    max(0, pos - window + 1) <= p <= pos (window 0: no lower limit). Heads share kv heads in groups
    of num_heads / num_kv_heads. softcap > 0: scores become softcap * tanh(score / softcap).
    Split size and merge order are the numeric contract's."""

    out: str
    src: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int
    softcap: float


@dataclass(frozen=True, slots=True)
class Gate(Op):
    """out[r] = act(src[r, :w]) * src[r, w:], w = width(out); act is "silu" or "gelu_tanh"."""

    out: str
    src: str
    activation: str


@dataclass(frozen=True, slots=True)
class Add(Op):
    """out[r] += src[r]."""

    out: str
    src: str


@dataclass(frozen=True, slots=True)
class SelectWanted(Op):
    """out (WANTED rows) = the rows of src whose logits are wanted."""

    out: str
    src: str


@dataclass(frozen=True, slots=True)
class Head(Op):
    """Logits of the wanted rows: weight @ src[r], softcapped when softcap > 0. Never materialised
    whole: a backend hands row tiles to sampling."""

    src: str
    weight: str
    softcap: float


AnyOp = Embed | Norm | Linear | HeadNorm | RopeWrite | Attend | Gate | Add | SelectWanted | Head


@dataclass(frozen=True, slots=True)
class RopeTable:
    """inv_freq[i] (float64): pair i rotates by position * inv_freq[i] radians; the angle is taken
    in float64, cos and sin are rounded to float32. The first 2 * len(inv_freq) columns of each
    head rotate."""

    inv_freq: tuple[float, ...]
    interleaved: bool


@dataclass(frozen=True, slots=True)
class Program:
    """One model, lowered by every backend. `kv_windows[l]` is the window of layer l (0 = full)."""

    buffers: tuple[Buffer, ...]
    ops: tuple[AnyOp, ...]
    ropes: tuple[RopeTable, ...]
    kv_windows: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    @property
    def num_layers(self) -> int:
        return len(self.kv_windows)

    def width(self, buffer: str) -> int:
        """Width of a buffer; KeyError for an unknown name."""
        return {b.name: b.width for b in self.buffers}[buffer]
