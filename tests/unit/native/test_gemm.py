"""Products of every kernel table equal the written definition, and each row stands alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import _native
from headrace._native import testing
from headrace.weights.base import BLOCK_SIZES, DType
from tests.support import gemm_model
from tests.support.gemm_model import Floats, activations, assert_same

ISAS = _native.isas()
every_dtype = pytest.mark.parametrize("dtype", list(DType), ids=lambda d: d.name)
every_isa = pytest.mark.parametrize("isa", ISAS)


def num_tiles(n: int) -> int:
    return -(-n // gemm_model.TILE_N)


def gemm(
    isa: str, dtype: DType, src: bytes, n: int, x: Floats, bias: Floats | None = None
) -> Floats:
    rows, k = x.shape
    offsets = None if bias is None else bias.tobytes()
    out = testing.gemm(isa, int(dtype), src, n, k, x.tobytes(), rows, offsets, 0, num_tiles(n))
    return np.frombuffer(out, np.float32).reshape(rows, n)


@every_isa
@every_dtype
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_the_definition(isa: str, dtype: DType, with_bias: bool) -> None:
    rng = np.random.default_rng(int(dtype))
    block_len = BLOCK_SIZES[dtype][0]
    for n, num_blocks, rows in ((1, 1, 1), (8, 2, 2), (13, 3, 5), (24, 5, 4), (17, 1, 7)):
        k = block_len * num_blocks if block_len > 1 else 11 * num_blocks
        src = gemm_model.random_matrix(dtype, n, k, rng)
        x = activations(rows, k, rng)
        bias = rng.standard_normal(n).astype(np.float32) if with_bias else None
        expected = gemm_model.product(dtype, src, n, k, x, bias)
        assert_same(gemm(isa, dtype, src, n, x, bias), expected)


@every_dtype
def test_is_close_to_the_product_of_real_numbers(dtype: DType) -> None:
    """The definition itself: quantized activations lose under one percent of the norm."""
    rng = np.random.default_rng(int(dtype))
    n, k, rows = 32, 512, 6
    src = gemm_model.random_matrix(dtype, n, k, rng)
    x = rng.standard_normal((rows, k)).astype(np.float32)
    packed = testing.pack("scalar", int(dtype), src, n, k, 0, num_tiles(n))
    weights = np.stack(
        [
            np.frombuffer(testing.unpack("scalar", int(dtype), packed, n, k, o), np.float32)
            for o in range(n)
        ]
    )
    exact = x.astype(np.float64) @ weights.T.astype(np.float64)
    error = np.linalg.norm(gemm("scalar", dtype, src, n, x) - exact) / np.linalg.norm(exact)
    assert error < {DType.Q8_0: 3e-5, **dict.fromkeys(gemm_model.FLOAT_TYPES, 1e-6)}.get(
        dtype, 1e-2
    )


@every_isa
@every_dtype
def test_a_row_is_the_same_in_every_batch(isa: str, dtype: DType) -> None:
    rng = np.random.default_rng(int(dtype))
    n, k = 21, 512
    src = gemm_model.random_matrix(dtype, n, k, rng)
    x = activations(17, k, rng)
    alone = np.concatenate([gemm(isa, dtype, src, n, x[r : r + 1]) for r in range(len(x))])
    for rows in range(2, 18):
        assert_same(gemm(isa, dtype, src, n, x[:rows]), alone[:rows])
        assert_same(gemm(isa, dtype, src, n, x[-rows:]), alone[-rows:])


@every_isa
@every_dtype
def test_many_rows_are_cut_into_blocks_unseen(isa: str, dtype: DType) -> None:
    """Enough activation bytes for several cache blocks."""
    rng = np.random.default_rng(int(dtype))
    n, k, rows = 9, 2048, 150 if dtype in gemm_model.FLOAT_TYPES else 300
    src = gemm_model.random_matrix(dtype, n, k, rng)
    x = activations(rows, k, rng)
    out = gemm(isa, dtype, src, n, x)
    for r in (0, 1, 46, 47, 48, 92, 135, 136, 137, 138, 149, rows - 1):
        assert_same(out[r : r + 1], gemm(isa, dtype, src, n, x[r : r + 1]))


@every_isa
@every_dtype
def test_tile_ranges_write_their_outputs_and_no_other(isa: str, dtype: DType) -> None:
    rng = np.random.default_rng(int(dtype))
    n, k = 50, 256
    src = gemm_model.random_matrix(dtype, n, k, rng)
    for rows in (1, 6):
        x = activations(rows, k, rng)
        whole = gemm(isa, dtype, src, n, x)
        for begin, end in ((0, 1), (1, 4), (2, 2), (3, 7), (6, 7), (0, 6)):
            raw = testing.gemm(isa, int(dtype), src, n, k, x.tobytes(), rows, None, begin, end)
            part = np.frombuffer(raw, np.uint32).reshape(rows, n)
            expected = np.full((rows, n), 0xFFFFFFFF, np.uint32)
            columns = slice(8 * begin, min(8 * end, n))
            expected[:, columns] = whole.view(np.uint32)[:, columns]
            assert np.array_equal(part, expected)


@every_isa
@every_dtype
@pytest.mark.parametrize("float_activations", [False, True])
def test_a_product_is_added_to_a_residual(isa: str, dtype: DType, float_activations: bool) -> None:
    """One rounding more, for whole and cut vectors of outputs; other outputs keep what they had."""
    rng = np.random.default_rng(int(dtype))
    n, k = 53, 256
    src = gemm_model.random_matrix(dtype, n, k, rng)
    bias = rng.standard_normal(n).astype(np.float32)
    for rows, begin, end in ((1, 0, 7), (3, 1, 2), (11, 2, 7)):
        x = activations(rows, k, rng)
        residual = (rng.standard_normal((rows, n)) * 100).astype(np.float32)
        residual[0, ::9] = (-0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38)
        for offsets in (None, bias.tobytes()):
            shape = (isa, int(dtype), src, n, k, x.tobytes(), rows, offsets, begin, end)
            raw = testing.gemm(*shape, float_activations, residual.tobytes())
            y = np.frombuffer(testing.gemm(*shape, float_activations), np.float32)
            expected = residual.copy()
            columns = slice(8 * begin, min(8 * end, n))
            expected[:, columns] += y.reshape(rows, n)[:, columns]
            assert_same(np.frombuffer(raw, np.float32).reshape(rows, n), expected)


@every_dtype
@given(
    n=st.integers(1, 41),
    num_blocks=st.integers(1, 3),
    rows=st.integers(1, 17),
    seed=st.integers(0, 2**32 - 1),
    exponent=st.integers(-149, 127),
)
def test_tables_agree(
    dtype: DType, n: int, num_blocks: int, rows: int, seed: int, exponent: int
) -> None:
    """Any codes and any scales, NaN and infinity too, and activations of any magnitude."""
    rng = np.random.default_rng(seed)
    block_len, block_bytes = BLOCK_SIZES[dtype]
    k = block_len * num_blocks
    src = rng.integers(0, 256, n * num_blocks * block_bytes, np.uint8).tobytes()
    x = np.ldexp(rng.uniform(-1, 1, (rows, k)), exponent).astype(np.float32)
    expected = gemm("scalar", dtype, src, n, x)
    for isa in ISAS:
        assert_same(gemm(isa, dtype, src, n, x), expected)


def _filled(dtype: DType, n: int, k: int, fill: int, scale: float) -> bytes:
    block_len, block_bytes = BLOCK_SIZES[dtype]
    blocks = np.full((n * k // block_len, block_bytes), fill, np.uint8)
    for column in gemm_model.HALF_COLUMNS[dtype]:
        blocks[:, column : column + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return blocks.tobytes()


@every_isa
@pytest.mark.parametrize("dtype", list(gemm_model.HALF_COLUMNS), ids=lambda d: d.name)
@pytest.mark.parametrize("fill", [0x00, 0x7F, 0x80, 0xFF])
def test_integer_sums_hold_the_extremes(isa: str, dtype: DType, fill: int) -> None:
    """Largest codes and multipliers against the largest activations of either sign, in int64."""
    n, k = 9, 512
    src = _filled(dtype, n, k, fill, 1.0)
    x = np.stack([np.full(k, 3.0), np.full(k, -3.0), np.tile([3.0, -3.0], k // 2)])
    expected = gemm_model.product(dtype, src, n, k, x.astype(np.float32))
    assert_same(gemm(isa, dtype, src, n, x.astype(np.float32)), expected)


@every_isa
@every_dtype
def test_zero_rows_and_zero_weights_give_zero(isa: str, dtype: DType) -> None:
    rng = np.random.default_rng(int(dtype))
    n, k = 11, 256
    src = gemm_model.random_matrix(dtype, n, k, rng)
    assert not gemm(isa, dtype, src, n, np.zeros((3, k), np.float32)).any()
    assert not gemm(isa, dtype, bytes(len(src)), n, activations(3, k, rng)).any()


@every_isa
@every_dtype
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_spoils_itself_only(isa: str, dtype: DType, bad: float) -> None:
    rng = np.random.default_rng(int(dtype))
    n, k = 12, 256
    src = gemm_model.random_matrix(dtype, n, k, rng)
    x = activations(7, k, rng)
    clean = gemm(isa, dtype, src, n, x)
    for place in (0, 37, k - 1):
        spoiled = x.copy()
        spoiled[3, place] = bad
        out = gemm(isa, dtype, src, n, spoiled)
        assert not np.isfinite(out[3]).any()
        assert_same(np.delete(out, 3, axis=0), np.delete(clean, 3, axis=0))


@every_isa
@every_dtype
def test_tiny_scales_and_activations_are_not_flushed(isa: str, dtype: DType) -> None:
    rng = np.random.default_rng(int(dtype))
    n, k = 8, 256
    x = (activations(2, k, rng) * np.float32(2.0**-80)).astype(np.float32)
    src = bytearray(gemm_model.random_matrix(dtype, n, k, rng))
    if dtype in gemm_model.HALF_COLUMNS:
        blocks = np.frombuffer(src, np.uint8).reshape(-1, BLOCK_SIZES[dtype][1])
        for column in gemm_model.HALF_COLUMNS[dtype]:
            blocks[:, column : column + 2] = (3, 0)  # float16 subnormal 3 * 2^-24
    expected = gemm_model.product(dtype, bytes(src), n, k, x)
    assert expected.any()
    assert_same(gemm(isa, dtype, bytes(src), n, x), expected)
