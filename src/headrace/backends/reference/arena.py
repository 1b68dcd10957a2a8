"""The paged KV arena of backends/layout.py as a NumPy array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.backends.layout import BLOCK_LEN, KVLayout

Array = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]


SMALLEST = np.float32(2.0**-100)  # values below it are zero


def to_bytes(x: Array) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Codes and scales of int8 keys or values [..., head_dim]: one scale for the last axis.

    A NaN or an infinity makes the scale NaN and the codes zero.
    """
    x = x.astype(np.float32)
    amax = np.abs(x).max(axis=-1, keepdims=True)
    is_finite, is_zero = np.isfinite(amax), amax < SMALLEST
    inverse = np.float32(127) / np.where(is_finite & ~is_zero, amax, np.float32(1))
    codes = np.rint(np.where(is_finite & ~is_zero, x, np.float32(0)) * inverse).astype(np.int8)
    scales = np.where(is_zero, np.float32(0), amax / np.float32(127))
    scales = np.where(is_finite, scales, np.float32(np.nan))
    return codes, scales[..., 0]


class Arena:
    """Every block of every group, laid out as the layout says, in `dtype`: float16 in serving, or
    int8 with scales [layer slot, block, kv_head, K or V, BLOCK_LEN].

    Memory starts as NaN, so that a position that was never written cannot go unnoticed.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, dtype: npt.DTypeLike) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        block = (layout.num_kv_heads, 2, layout.head_dim * BLOCK_LEN)
        self.is_bytes = np.dtype(dtype) == np.int8
        start = 0 if self.is_bytes else np.nan
        self.memory = np.full((layout.layers_per_block, num_blocks, *block), start, dtype)
        scales = (layout.layers_per_block, num_blocks, layout.num_kv_heads, 2, BLOCK_LEN)
        self.scales = np.full(scales if self.is_bytes else 0, np.nan, np.float32)

    def copy_block(self, source: int, destination: int) -> None:
        """Copy all layers of a block."""
        self.memory[:, destination] = self.memory[:, source]
        if self.is_bytes:
            self.scales[:, destination] = self.scales[:, source]

    def write(self, layer_slot: int, table: Ints, positions: Ints, k: Array, v: Array) -> None:
        """Store k, v [rows, num_kv_heads, head_dim] of one sequence at its `positions`."""
        keys, values = self._views(layer_slot)
        blocks, lanes = table[positions // BLOCK_LEN], positions % BLOCK_LEN
        # Two index arrays around a slice put the rows first.
        if self.is_bytes:
            scales = self.scales[layer_slot]
            keys[blocks, :, :, lanes], scales[blocks, :, 0, lanes] = to_bytes(k)
            values[blocks, :, lanes, :], scales[blocks, :, 1, lanes] = to_bytes(v)
        else:
            keys[blocks, :, :, lanes] = k
            values[blocks, :, lanes, :] = v

    def read(self, layer_slot: int, table: Ints, positions: Ints) -> tuple[Array, Array]:
        """Keys and values [num_kv_heads, len(positions), head_dim] in the stored dtype, or float32
        for int8."""
        keys, values = self._views(layer_slot)
        blocks, lanes = table[positions // BLOCK_LEN], positions % BLOCK_LEN
        if blocks.size and blocks.min() < 0:
            raise ValueError("a visible position lies in a block that the table does not have")
        k, v = keys[blocks, :, :, lanes], values[blocks, :, lanes, :]
        if self.is_bytes:
            scales = self.scales[layer_slot]
            k = k * scales[blocks, :, 0, lanes][..., None]
            v = v * scales[blocks, :, 1, lanes][..., None]
        return k.transpose(1, 0, 2), v.transpose(1, 0, 2)

    def _views(self, layer_slot: int) -> tuple[Array, Array]:
        """Keys [block, kv_head, head_dim, BLOCK_LEN], values [block, kv_head, BLOCK_LEN, dim]."""
        region = self.memory[layer_slot]
        num_blocks, heads, _, _ = region.shape
        dim = self.layout.head_dim
        keys = region[:, :, 0].reshape(num_blocks, heads, dim, BLOCK_LEN)
        values = region[:, :, 1].reshape(num_blocks, heads, BLOCK_LEN, dim)
        return keys, values
