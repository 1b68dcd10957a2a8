"""The paged KV arena of backends/layout.py as a NumPy array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.backends.layout import BLOCK_LEN, KVLayout

Array = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]


class Arena:
    """Every block of every group, laid out as the layout says, in `dtype` (float16 in serving).

    Memory starts as NaN, so that a position that was never written cannot go unnoticed.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, dtype: npt.DTypeLike) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        block = (layout.num_kv_heads, 2, layout.head_dim * BLOCK_LEN)
        self.memory = np.full((layout.layers_per_block, num_blocks, *block), np.nan, dtype)

    def copy_block(self, source: int, destination: int) -> None:
        """Copy all layers of a block."""
        self.memory[:, destination] = self.memory[:, source]

    def write(self, layer_slot: int, table: Ints, positions: Ints, k: Array, v: Array) -> None:
        """Store k, v [rows, num_kv_heads, head_dim] of one sequence at its `positions`."""
        keys, values = self._views(layer_slot)
        blocks, lanes = table[positions // BLOCK_LEN], positions % BLOCK_LEN
        # Two index arrays around a slice put the rows first.
        keys[blocks, :, :, lanes] = k
        values[blocks, :, lanes, :] = v

    def read(self, layer_slot: int, table: Ints, positions: Ints) -> tuple[Array, Array]:
        """Keys and values [num_kv_heads, len(positions), head_dim] in the stored dtype."""
        keys, values = self._views(layer_slot)
        blocks, lanes = table[positions // BLOCK_LEN], positions % BLOCK_LEN
        if blocks.size and blocks.min() < 0:
            raise ValueError("a visible position lies in a block that the table does not have")
        return (
            keys[blocks, :, :, lanes].transpose(1, 0, 2),
            values[blocks, :, lanes, :].transpose(1, 0, 2),
        )

    def _views(self, layer_slot: int) -> tuple[Array, Array]:
        """Keys [block, kv_head, head_dim, BLOCK_LEN], values [block, kv_head, BLOCK_LEN, dim]."""
        region = self.memory[layer_slot]
        num_blocks, heads, _, _ = region.shape
        dim = self.layout.head_dim
        keys = region[:, :, 0].reshape(num_blocks, heads, dim, BLOCK_LEN)
        values = region[:, :, 1].reshape(num_blocks, heads, BLOCK_LEN, dim)
        return keys, values
