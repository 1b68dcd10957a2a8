"""The matrix product of native/gemm/gemm.h in NumPy, rounding for rounding, and random matrices.

Integers are int64, so nothing here can overflow; a fused multiply-add is rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.backends.reference.dequant import dequantize
from headrace.weights.base import BLOCK_SIZES, DType

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

GROUP_LEN = 32
TILE_N = 8
FLOAT_TYPES = (DType.F32, DType.F16, DType.BF16)
# Where the float16 fields of a stored block are.
HALF_COLUMNS: dict[DType, tuple[int, ...]] = {
    DType.Q4_0: (0,),
    DType.Q4_1: (0, 2),
    DType.Q5_0: (0,),
    DType.Q5_1: (0, 2),
    DType.Q8_0: (0,),
    DType.Q4_K: (0, 2),
    DType.Q5_K: (0, 2),
    DType.Q6_K: (208,),
}
_TINY = np.float32(2.0**-100)


def random_matrix(dtype: DType, n: int, k: int, rng: np.random.Generator) -> bytes:
    """Stored rows with arbitrary codes and finite scales."""
    block_len, block_bytes = BLOCK_SIZES[dtype]
    if dtype in FLOAT_TYPES:
        values = rng.standard_normal((n, k)).astype(np.float32)
        if dtype is DType.BF16:
            return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
        return values.astype("<f4" if dtype is DType.F32 else "<f2").tobytes()
    blocks = rng.integers(0, 256, (n * k // block_len, block_bytes), np.uint8)
    for column in HALF_COLUMNS[dtype]:
        halves = (rng.standard_normal(len(blocks)) * 0.1).astype("<f2")
        blocks[:, column : column + 2] = halves.reshape(-1, 1).view(np.uint8)
    return blocks.tobytes()


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """float32 a*b + c rounded once: exact product, sum rounded to odd in float64, then float32."""
    with np.errstate(invalid="ignore", over="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        addend = np.broadcast_to(c, product.shape).astype(np.float64)
        total = product + addend
        part = total - product
        error = (product - (total - part)) + (addend - part)
        even = (total.view(np.uint64) & np.uint64(1)) == 0
        odd = np.nextafter(total, np.copysign(np.inf, error))
        return np.where((error != 0) & even & np.isfinite(total), odd, total).astype(np.float32)


def assert_same(got: Floats, expected: Floats) -> None:
    """Equal bits; a NaN equals any NaN."""
    assert got.shape == expected.shape
    same = (got.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), f"{(~same).sum()} of {same.size} differ, first at {np.argwhere(~same)[0]}"


def activations(rows: int, k: int, rng: np.random.Generator) -> Floats:
    """Groups of very different magnitudes, with zeros."""
    x = rng.standard_normal((rows, k)).astype(np.float32)
    x *= np.repeat(np.exp2(rng.integers(-12, 12, (rows, -(-k // 32)))), 32, axis=1)[:, :k]
    x[rng.random((rows, k)) < 0.1] = 0
    return x.astype(np.float32)


@dataclass(frozen=True)
class Codes:
    """What a stored matrix says: weight = scale * multiplier * (code - offset) + minimum."""

    codes: Ints  # (n, k)
    offset: int
    multipliers: Ints  # (n, k / 16)
    scales: Floats  # (n, k / 32)
    minima: Floats | None  # (n, k / 32)


def _halves(blocks: Bytes, column: int) -> Floats:
    return np.ascontiguousarray(blocks[:, column : column + 2]).view("<f2").astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """(..., m) bytes -> (..., 2, m): low halves, high halves."""
    return np.stack([data & np.uint8(15), data >> np.uint8(4)], axis=-2)


def _flat_codes(dtype: DType, blocks: Bytes, n: int, k: int) -> Codes:
    low = _nibbles(blocks[:, -16:]).reshape(-1, 32).astype(np.int64)
    offset = {DType.Q4_0: 8, DType.Q5_0: 16}.get(dtype, 0)
    minima = None
    if dtype in (DType.Q4_1, DType.Q5_1):
        minima = _halves(blocks, 2).reshape(n, -1)
    if dtype in (DType.Q5_0, DType.Q5_1):
        fifth = np.unpackbits(blocks[:, -20:-16], axis=1, bitorder="little")
        low = low + 16 * fifth.astype(np.int64)
    ones = np.ones((n, k // 16), np.int64)
    return Codes(low.reshape(n, k), offset, ones, _halves(blocks, 0).reshape(n, -1), minima)


def _super_scales(blocks: Bytes) -> tuple[Ints, Ints]:
    """Six-bit scales and minima (blocks, 8) of Q4_K and Q5_K, read bit by bit from 12 bytes."""
    q = blocks[:, 4:16].astype(np.int64)
    scales = np.empty((len(q), 8), np.int64)
    minima = np.empty((len(q), 8), np.int64)
    for j in range(4):
        scales[:, j] = q[:, j] % 64
        minima[:, j] = q[:, j + 4] % 64
        scales[:, j + 4] = q[:, j + 8] % 16 + 16 * (q[:, j] // 64)
        minima[:, j + 4] = q[:, j + 8] // 16 + 16 * (q[:, j + 4] // 64)
    return scales, minima


def _super_codes(dtype: DType, blocks: Bytes, n: int, k: int) -> Codes:
    low = _nibbles(blocks[:, -128:].reshape(-1, 4, 32)).reshape(-1, 8, 32).astype(np.int64)
    if dtype is DType.Q5_K:
        fifth = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little")
        low = low + 16 * fifth.transpose(0, 2, 1).astype(np.int64)
    scales, minima = _super_scales(blocks)
    minimum = -(_halves(blocks, 2) * minima.astype(np.float32))
    return Codes(
        low.reshape(n, k),
        0,
        np.repeat(scales, 2, axis=1).reshape(n, -1),
        np.repeat(_halves(blocks, 0), 8, axis=1).reshape(n, -1),
        minimum.reshape(n, -1),
    )


def _q6_k_codes(blocks: Bytes, n: int, k: int) -> Codes:
    codes = np.empty((len(blocks), 2, 4, 32), np.int64)
    for half in range(2):
        low = blocks[:, 64 * half : 64 * half + 64].astype(np.int64)
        upper = blocks[:, 128 + 32 * half : 160 + 32 * half].astype(np.int64)
        for run in range(4):
            nibbles = low[:, 32 * (run % 2) : 32 * (run % 2) + 32] // (1, 1, 16, 16)[run] % 16
            codes[:, half, run] = nibbles + 16 * (upper // 4**run % 4)
    multipliers = blocks[:, 192:208].view(np.int8).astype(np.int64)
    scales = np.repeat(_halves(blocks, 208), 8, axis=1)
    return Codes(codes.reshape(n, k), 32, multipliers.reshape(n, -1), scales.reshape(n, -1), None)


def decode(dtype: DType, src: bytes, n: int, k: int) -> Codes:
    blocks = np.frombuffer(src, np.uint8).reshape(-1, BLOCK_SIZES[dtype][1])
    if dtype is DType.Q6_K:
        return _q6_k_codes(blocks, n, k)
    if dtype in (DType.Q4_K, DType.Q5_K):
        return _super_codes(dtype, blocks, n, k)
    if dtype is DType.Q8_0:
        codes = blocks[:, 2:].view(np.int8).astype(np.int64).reshape(n, k)
        ones = np.ones((n, k // 16), np.int64)
        return Codes(codes, 0, ones, _halves(blocks, 0).reshape(n, -1), None)
    return _flat_codes(dtype, blocks, n, k)


@dataclass(frozen=True)
class Activations:
    codes: Ints  # (rows, k / 32, 32)
    scales: Floats  # (rows, k / 32)


def quantize(x: Floats, limit: int) -> Activations:
    """Groups of 32: scale amax / limit, code x * (limit / amax) to nearest even."""
    groups = x.reshape(len(x), -1, GROUP_LEN)
    amax = np.abs(groups).max(axis=2)
    finite = np.isfinite(groups).all(axis=2)
    usable = finite & (amax >= _TINY)
    safe = np.where(usable, amax, np.float32(1))
    inverse = np.float32(limit) / safe
    values = np.where(usable[:, :, None], groups, np.float32(0))
    codes = np.rint(values * inverse[:, :, None]).astype(np.int64)
    scales = np.where(usable, safe / np.float32(limit), np.float32(0))
    return Activations(codes, np.where(finite, scales, np.float32(np.nan)))


def _float_weights(dtype: DType, src: bytes, n: int, k: int) -> Floats:
    if dtype is DType.BF16:
        halves = np.frombuffer(src, "<u2").astype(np.uint32) << np.uint32(16)
        return halves.view(np.float32).reshape(n, k)
    return np.frombuffer(src, "<f4" if dtype is DType.F32 else "<f2").astype("<f4").reshape(n, k)


def product(
    dtype: DType, src: bytes, n: int, k: int, x: Floats, bias: Floats | None = None
) -> Floats:
    """(rows, k) activations -> (rows, n) outputs, as every kernel table must give them."""
    acc = np.zeros((len(x), n), np.float32)
    if dtype in FLOAT_TYPES:
        weights = _float_weights(dtype, src, n, k)
        for i in range(k):
            acc = fma(x[:, i, None], weights[None, :, i], acc)
    else:
        acc = _quantized_product(dtype, decode(dtype, src, n, k), x)
    return acc if bias is None else acc + bias


def _quantized_product(dtype: DType, w: Codes, x: Floats) -> Floats:
    act = quantize(x, 32767 if dtype is DType.Q8_0 else 127)
    n, k = w.codes.shape
    acc = np.zeros((len(x), n), np.float32)
    halves = (w.codes - w.offset).reshape(n, k // 16, 16) * w.multipliers[:, :, None]
    for g in range(k // GROUP_LEN):
        weights = halves[:, 2 * g : 2 * g + 2].reshape(n, GROUP_LEN)
        total = (act.codes[:, g] @ weights.T).astype(np.float32)
        scale = w.scales[None, :, g] * act.scales[:, g, None]
        acc = fma(total, scale, acc)
        if w.minima is not None:
            sums = act.codes[:, g].sum(axis=1).astype(np.float32)
            acc = fma(w.minima[None, :, g], (act.scales[:, g] * sums)[:, None], acc)
    return acc


def float_product(
    dtype: DType, src: bytes, n: int, k: int, x: Floats, bias: Floats | None = None
) -> Floats:
    """The product with float activations: one fused multiply-add per input, in order."""
    weights = dequantize(dtype, src, (n, k))
    acc = np.zeros((len(x), n), np.float32)
    for i in range(k):
        acc = fma(x[:, i, None], weights[None, :, i], acc)
    return acc if bias is None else acc + bias
