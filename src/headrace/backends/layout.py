"""How KV is laid out: layer groups over pages of one size, so that any page can serve any group.

A block holds `BLOCK_LEN` positions of the layers of one group. Layers with the same window form
groups of at most `layers_per_block` layers; every block has the same number of bytes, so one pool
and one free list serve full-attention and window groups alike (a short group wastes its unused
layers).

Arena: layer-major regions, region l (0 <= l < layers_per_block) holds layer slot l of every block:
    arena[layer_slot][block][kv_head][ K: head_dim x BLOCK_LEN | V: BLOCK_LEN x head_dim ]
of float16, or of signed bytes, behind which lie the float32 scales of the BLOCK_LEN keys and those
of the values. K is stored transposed, so that the key of absolute position p sits in lane
p % BLOCK_LEN. Heads are major inside a block, so that tensor-parallel slices are ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_LEN = 16
# How keys and values are stored, and the native core's number for it (KVType).
KV_DTYPES = {"fp16": 0, "int8": 1}
DEFAULT_KV_DTYPE = "fp16"
_VALUE_BYTES = {"fp16": 2, "int8": 1}
_SCALE_BYTES = {"fp16": 0, "int8": 4}


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share one block table. `window` 0 means full attention."""

    layers: tuple[int, ...]
    window: int


@dataclass(frozen=True, slots=True)
class KVLayout:
    """See the module docstring."""

    groups: tuple[LayerGroup, ...]
    layers_per_block: int
    num_kv_heads: int
    head_dim: int
    kv_dtype: str = DEFAULT_KV_DTYPE

    @property
    def region_block_bytes(self) -> int:
        """Bytes of one layer of one block."""
        values = self.head_dim * _VALUE_BYTES[self.kv_dtype] + _SCALE_BYTES[self.kv_dtype]
        return self.num_kv_heads * 2 * BLOCK_LEN * values

    @property
    def block_bytes(self) -> int:
        return self.layers_per_block * self.region_block_bytes

    def place(self, layer: int) -> tuple[int, int]:
        """(group index, layer slot inside a block) of a model layer."""
        for index, group in enumerate(self.groups):
            if layer in group.layers:
                return index, group.layers.index(layer)
        raise ValueError(f"layer {layer} is in no group")


def make_layout(
    kv_windows: Sequence[int],
    num_kv_heads: int,
    head_dim: int,
    kv_dtype: str = DEFAULT_KV_DTYPE,
) -> KVLayout:
    """Group layers by window; the smallest class of layers sets the group size.

    With 3 full and 15 window layers: groups of 3 (one full, five window), no waste.
    """
    classes: dict[int, list[int]] = {}
    for layer, window in enumerate(kv_windows):
        classes.setdefault(window, []).append(layer)
    size = min(len(layers) for layers in classes.values())
    groups = [
        LayerGroup(tuple(layers[i : i + size]), window)
        for window, layers in sorted(classes.items())
        for i in range(0, len(layers), size)
    ]
    return KVLayout(tuple(groups), size, num_kv_heads, head_dim, kv_dtype)
