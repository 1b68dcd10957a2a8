"""The NumPy dequantizers equal the gguf package's, bit for bit, on arbitrary bytes."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from headrace.backends.reference.dequant import dequantize
from headrace.weights.base import BLOCK_SIZES, DType


def _random_blocks(dtype: DType, num_rows: int, row_len: int) -> bytes:
    """Any bytes are a valid block; scales that are NaN or infinite are replaced by finite ones."""
    block_len, block_bytes = BLOCK_SIZES[dtype]
    rng = np.random.default_rng(int(dtype))
    data = rng.integers(0, 256, (num_rows * row_len // block_len, block_bytes), np.uint8)
    half_columns = {
        DType.Q4_0: [0],
        DType.Q4_1: [0, 2],
        DType.Q5_0: [0],
        DType.Q5_1: [0, 2],
        DType.Q8_0: [0],
        DType.Q4_K: [0, 2],
        DType.Q5_K: [0, 2],
        DType.Q6_K: [208],
    }.get(dtype, [])
    for column in half_columns:
        halves = rng.standard_normal(len(data)).astype("<f2")
        data[:, column : column + 2] = halves.reshape(-1, 1).view(np.uint8)
    if dtype in (DType.F32, DType.F16, DType.BF16):
        values = rng.standard_normal((num_rows, row_len)).astype(np.float32)
        if dtype is DType.BF16:
            return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
        return values.astype("<f4" if dtype is DType.F32 else "<f2").tobytes()
    return data.tobytes()


@pytest.mark.parametrize("dtype", list(DType), ids=lambda d: d.name)
def test_equals_the_gguf_package(dtype: DType) -> None:
    shape = (3, 512)
    data = _random_blocks(dtype, *shape)
    rows = np.frombuffer(data, np.uint8).reshape(shape[0], -1)
    expected = np.asarray(quants.dequantize(rows, GGMLQuantizationType(int(dtype))))
    got = dequantize(dtype, data, shape)
    assert got.dtype == np.float32
    assert np.array_equal(got, expected.reshape(shape))


@pytest.mark.parametrize("shape", [(2, 31), (2, 64), (4, 32)])
def test_refuses_a_size_that_does_not_fit(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="do not fill shape"):
        dequantize(DType.Q8_0, bytes(2 * 34), shape)
