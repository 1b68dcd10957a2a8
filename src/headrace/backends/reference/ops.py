"""The arithmetic of every Program operation, in plain NumPy. Rows first; the dtype of x is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.models.program import RopeTable

Array = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """`x` [..., dim] * rsqrt(mean(x^2) + eps) * weight [dim]."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    out: Array = x / np.sqrt(mean_square + x.dtype.type(eps)) * weight
    return out


def join(parts: Sequence[Array], biases: Sequence[Array]) -> Array:
    """The products of a fused group [rows, n_i], each plus its bias [n_i] if any, side by side."""
    if biases:
        parts = [part + bias for part, bias in zip(parts, biases, strict=True)]
    return np.concatenate(parts, axis=1)


def rotate(heads: Array, positions: Ints, rope: RopeTable) -> Array:
    """Rotate pairs of heads [rows, num_heads, head_dim]; columns past the table's stay.

    (a, b) becomes (a cos - b sin, b cos + a sin). The angle is taken in float64.
    """
    pairs = len(rope.inv_freq)
    angle = np.outer(positions.astype(np.float64), np.array(rope.inv_freq))[:, None, :]
    cos, sin = np.cos(angle).astype(heads.dtype), np.sin(angle).astype(heads.dtype)
    if rope.interleaved:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    else:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    a, b = heads[:, :, first], heads[:, :, second]
    out = heads.copy()
    out[:, :, first] = a * cos - b * sin
    out[:, :, second] = b * cos + a * sin
    return out


def attend(
    q: Array,
    keys: Array,
    values: Array,
    visible: npt.NDArray[np.bool_],
    scale: float,
    softcap: float,
) -> Array:
    """Softmax attention of one sequence.

    q [rows, num_heads, head_dim]; keys, values [num_kv_heads, positions, head_dim]; visible
    [rows, positions]. Query head h reads kv head h // (num_heads / num_kv_heads).
    """
    group = q.shape[1] // keys.shape[0]
    keys, values = np.repeat(keys, group, axis=0), np.repeat(values, group, axis=0)
    scores = np.matmul(q.transpose(1, 0, 2), keys.transpose(0, 2, 1)) * q.dtype.type(scale)
    if softcap > 0:
        scores = cap(scores, softcap)
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: Array = np.matmul(weights, values)
    return out.transpose(1, 0, 2)


def gate(x: Array, activation: str) -> Array:
    """act(x[:, :w]) * x[:, w:]; act is "silu" or "gelu_tanh"."""
    width = x.shape[1] // 2
    return _ACTIVATIONS[activation](x[:, :width]) * x[:, width:]


def _silu(x: Array) -> Array:
    # exp overflows to infinity for very negative x, which gives the right limit, -0.
    with np.errstate(over="ignore"):
        out: Array = x / (1 + np.exp(-x))
    return out


def _gelu_tanh(x: Array) -> Array:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    inner = x.dtype.type(np.sqrt(2 / np.pi)) * (x + x.dtype.type(0.044715) * x * x * x)
    out: Array = x.dtype.type(0.5) * x * (1 + np.tanh(inner))
    return out


_ACTIVATIONS = {"silu": _silu, "gelu_tanh": _gelu_tanh}


def cap(x: Array, limit: float) -> Array:
    """`limit * tanh(x / limit)`."""
    return x.dtype.type(limit) * np.tanh(x / x.dtype.type(limit))
