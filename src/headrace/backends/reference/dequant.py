"""Dequantizers of every stored tensor type, in plain NumPy: what a stored weight means.

Layouts are those of ggml-common.h, values those of dequantize_row_* in ggml-quants.c. A product of
scales and quants fits a float32 exactly and at most one rounded operation follows, so that any
order of evaluation gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from headrace.weights.base import BLOCK_SIZES, DType

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_LOW_NIBBLE = np.uint8(15)


def dequantize(dtype: DType, data: bytes | bytearray | memoryview, shape: Sequence[int]) -> Floats:
    """Stored bytes of a row-major tensor to float32 of that shape.

    Raises ValueError when the last dimension is no whole number of blocks, or the size differs.
    """
    block_len, block_bytes = BLOCK_SIZES[dtype]
    num_weights = int(np.prod(shape))
    if shape[-1] % block_len or len(data) * block_len != num_weights * block_bytes:
        raise ValueError(f"{len(data)} bytes of {dtype.name} do not fill shape {tuple(shape)}")
    blocks = np.frombuffer(data, np.uint8).reshape(-1, block_bytes)
    return _DEQUANTIZERS[dtype](blocks).astype(np.float32, copy=False).reshape(shape)


def _halves(data: Bytes) -> Floats:
    """(n, 2k) bytes to (n, k) float16 values."""
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """(n, 16) bytes to (n, 32): low halves first, then high halves."""
    return np.concatenate([data & _LOW_NIBBLE, data >> 4], axis=1)


def _fifth_bits(data: Bytes) -> Bytes:
    """(n, 4) bytes to (n, 32): bit j, little endian, moved to bit 4 of element j."""
    return np.left_shift(np.unpackbits(data, axis=1, bitorder="little"), np.uint8(4))


def _f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f4")


def _bf16(blocks: Bytes) -> Floats:
    return (np.ascontiguousarray(blocks).view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _halves(blocks[:, :2]) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    scale, low = _halves(blocks[:, :2]), _halves(blocks[:, 2:4])
    return scale * _nibbles(blocks[:, 4:]).astype(np.float32) + low


def _q5_0(blocks: Bytes) -> Floats:
    quants = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _halves(blocks[:, :2]) * (quants.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    scale, low = _halves(blocks[:, :2]), _halves(blocks[:, 2:4])
    quants = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return scale * quants.astype(np.float32) + low


def _q8_0(blocks: Bytes) -> Floats:
    return _halves(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scale and minimum (n, 8, 1) of the eight sub-blocks of Q4_K and Q5_K.

    Twelve bytes hold eight 6-bit scales and minima: 0..3 have the low bits of bytes 0..7; 4..7 have
    four bits in bytes 8..11 and their upper two bits on top of bytes 0..7.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.hstack([first & 63, (third & _LOW_NIBBLE) | (first >> 6 << 4)])
    minima = np.hstack([second & 63, (third >> 4) | (second >> 6 << 4)])
    scale = _halves(blocks[:, 0:2]) * scales.astype(np.float32)
    low = _halves(blocks[:, 2:4]) * minima.astype(np.float32)
    return scale[:, :, None], low[:, :, None]


def _paired_nibbles(data: Bytes) -> Bytes:
    """(n, 128) bytes to (n, 8, 32): sub-blocks 2c and 2c + 1 share 32 bytes, low halves first."""
    pairs = data.reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & _LOW_NIBBLE, pairs >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(blocks: Bytes) -> Floats:
    scale, low = _k_scales(blocks)
    return scale * _paired_nibbles(blocks[:, 16:]).astype(np.float32) - low


def _q5_k(blocks: Bytes) -> Floats:
    scale, low = _k_scales(blocks)
    sub_block = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (blocks[:, None, 16:48] >> sub_block) & np.uint8(1)
    quants = _paired_nibbles(blocks[:, 48:]) | (fifth << 4)
    return scale * quants.astype(np.float32) - low


def _q6_k(blocks: Bytes) -> Floats:
    """Each half of 128 weights: four runs of 32, two low bits of the run index choose the bits."""
    low = blocks[:, :128].reshape(-1, 2, 1, 2, 32)
    low = np.concatenate([low & _LOW_NIBBLE, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)
    quants = (low | (high << 4)).reshape(-1, 16, 16).astype(np.float32) - 32
    scale = _halves(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return scale[:, :, None] * quants


_DEQUANTIZERS: dict[DType, Callable[[Bytes], Floats]] = {
    DType.F32: _f32,
    DType.F16: _halves,
    DType.BF16: _bf16,
    DType.Q4_0: _q4_0,
    DType.Q4_1: _q4_1,
    DType.Q5_0: _q5_0,
    DType.Q5_1: _q5_1,
    DType.Q8_0: _q8_0,
    DType.Q4_K: _q4_k,
    DType.Q5_K: _q5_k,
    DType.Q6_K: _q6_k,
}
