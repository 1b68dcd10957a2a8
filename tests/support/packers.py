"""Simple packers: float32 rows into each stored tensor type. Slow, plain, and only for tests.

Layouts are those of ggml-quants.c. Scales come from minima and maxima, not from a search.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headrace.weights.base import BLOCK_SIZES, DType

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_LOW = np.uint8(15)


def pack(dtype: DType, values: Floats) -> bytes:
    """Quantize an array whose last axis is the row; rows must be whole blocks of `dtype`."""
    block_len, _ = BLOCK_SIZES[dtype]
    row_len = values.shape[-1]
    if row_len % block_len:
        raise ValueError(f"a row of {row_len} is not a multiple of {block_len} ({dtype.name})")
    blocks = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, block_len)
    return _PACKERS[dtype](blocks).tobytes()


def _half(values: Floats) -> Bytes:
    """(n,) float32 -> (n, 2) bytes of float16."""
    return values.astype("<f2").reshape(-1, 1).view(np.uint8)


def _divide(values: Floats, scales: Floats) -> Floats:
    """values (n, k) / scales (n,), zero where the scale is zero."""
    safe = np.where(scales == 0, np.float32(1), scales)
    quotient = values / safe[:, None]
    return np.where(scales[:, None] == 0, np.float32(0), quotient).astype(np.float32)


def _nibbles(quants: Bytes) -> Bytes:
    """(n, 32) values < 16 -> (n, 16): element j in the low half, j + 16 in the high half."""
    return quants[:, :16] | np.left_shift(quants[:, 16:], np.uint8(4))


def _high_bits(quants: Bytes) -> Bytes:
    """(n, 32) values < 32 -> (n, 4): bit j is bit 4 of element j, little endian."""
    return np.packbits(quants >> 4, axis=1, bitorder="little")


def _signed(blocks: Floats, bits: int) -> tuple[Floats, Bytes]:
    """Symmetric quantization whose largest magnitude maps to -2^(bits-1)."""
    half_range = 1 << (bits - 1)
    peak = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)[:, 0]
    scale = (peak / -half_range).astype(np.float32)
    quants = np.clip(np.rint(_divide(blocks, scale)) + half_range, 0, 2 * half_range - 1)
    return scale, quants.astype(np.uint8)


def _affine(blocks: Floats, bits: int) -> tuple[Floats, Floats, Bytes]:
    low, high = blocks.min(axis=1), blocks.max(axis=1)
    scale = ((high - low) / ((1 << bits) - 1)).astype(np.float32)
    quants = np.clip(np.rint(_divide(blocks - low[:, None], scale)), 0, (1 << bits) - 1)
    return scale, low, quants.astype(np.uint8)


def _f32(blocks: Floats) -> Bytes:
    return blocks.astype("<f4").view(np.uint8)


def _f16(blocks: Floats) -> Bytes:
    return blocks.astype("<f2").view(np.uint8)


def _bf16(blocks: Floats) -> Bytes:
    """Round to nearest even on the upper 16 bits."""
    bits = blocks.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2").view(np.uint8)


def _q4_0(blocks: Floats) -> Bytes:
    scale, quants = _signed(blocks, 4)
    return np.hstack([_half(scale), _nibbles(quants)])


def _q4_1(blocks: Floats) -> Bytes:
    scale, low, quants = _affine(blocks, 4)
    return np.hstack([_half(scale), _half(low), _nibbles(quants)])


def _q5_0(blocks: Floats) -> Bytes:
    scale, quants = _signed(blocks, 5)
    return np.hstack([_half(scale), _high_bits(quants), _nibbles(quants & _LOW)])


def _q5_1(blocks: Floats) -> Bytes:
    scale, low, quants = _affine(blocks, 5)
    return np.hstack([_half(scale), _half(low), _high_bits(quants), _nibbles(quants & _LOW)])


def _q8_0(blocks: Floats) -> Bytes:
    scale = (np.abs(blocks).max(axis=1) / 127).astype(np.float32)
    quants = np.rint(_divide(blocks, scale)).astype(np.int8)
    return np.hstack([_half(scale), quants.view(np.uint8)])


def _k_affine(blocks: Floats, bits: int) -> tuple[Bytes, Bytes]:
    """Head (d, dmin, 12 packed 6-bit scales and minima) and quants (n, 8, 32) of Q4_K and Q5_K."""
    subs = blocks.reshape(-1, 8, 32)
    minima = np.maximum(-subs.min(axis=2), 0).astype(np.float32)
    scales = ((subs.max(axis=2) + minima).clip(0) / ((1 << bits) - 1)).astype(np.float32)
    d = (scales.max(axis=1) / 63).astype(np.float16).astype(np.float32)
    dmin = (minima.max(axis=1) / 63).astype(np.float16).astype(np.float32)
    sc = np.clip(np.rint(_divide(scales, d)), 0, 63).astype(np.uint8)
    mn = np.clip(np.rint(_divide(minima, dmin)), 0, 63).astype(np.uint8)
    step = (d[:, None] * sc).reshape(-1)
    shifted = (subs + (dmin[:, None] * mn)[:, :, None]).reshape(-1, 32).astype(np.float32)
    quants = np.clip(np.rint(_divide(shifted, step)), 0, (1 << bits) - 1).astype(np.uint8)
    packed = np.hstack(
        [
            sc[:, :4] | ((sc[:, 4:] >> 4) << 6),
            mn[:, :4] | ((mn[:, 4:] >> 4) << 6),
            (sc[:, 4:] & 15) | ((mn[:, 4:] & 15) << 4),
        ]
    )
    return np.hstack([_half(d), _half(dmin), packed]), quants.reshape(-1, 8, 32)


def _paired_nibbles(quants: Bytes) -> Bytes:
    """(n, 8, 32) -> (n, 128): sub-blocks 2c and 2c + 1 share 32 bytes."""
    low, high = quants[:, 0::2] & _LOW, quants[:, 1::2] & _LOW
    packed: Bytes = low | np.left_shift(high, np.uint8(4))
    return packed.reshape(-1, 128)


def _q4_k(blocks: Floats) -> Bytes:
    head, quants = _k_affine(blocks, 4)
    return np.hstack([head, _paired_nibbles(quants)])


def _q5_k(blocks: Floats) -> Bytes:
    head, quants = _k_affine(blocks, 5)
    high = np.zeros((len(quants), 32), np.uint8)
    for sub in range(8):
        high |= (quants[:, sub] >> 4) << sub
    return np.hstack([head, high, _paired_nibbles(quants)])


def _q6_k(blocks: Floats) -> Bytes:
    subs = blocks.reshape(-1, 16, 16)
    scales = (np.abs(subs).max(axis=2) / 31).astype(np.float32)
    d = (scales.max(axis=1) / 127).astype(np.float16).astype(np.float32)
    sc = np.clip(np.rint(_divide(scales, d)), 0, 127).astype(np.int8)
    step = (d[:, None] * sc).reshape(-1).astype(np.float32)
    quants = np.clip(np.rint(_divide(subs.reshape(-1, 16), step)), -32, 31) + 32
    # (n, half, quarter, 32): quarter k of a half holds elements 32k .. 32k + 31.
    parts = quants.astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate(
        [
            (parts[:, :, 0] & 15) | ((parts[:, :, 2] & 15) << 4),
            (parts[:, :, 1] & 15) | ((parts[:, :, 3] & 15) << 4),
        ],
        axis=2,
    ).reshape(-1, 128)
    top = parts >> 4
    high = (top[:, :, 0] | (top[:, :, 1] << 2) | (top[:, :, 2] << 4) | (top[:, :, 3] << 6)).reshape(
        -1, 64
    )
    return np.hstack([low, high, sc.view(np.uint8), _half(d)])


_PACKERS: dict[DType, Callable[[Floats], Bytes]] = {
    DType.F32: _f32,
    DType.F16: _f16,
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
