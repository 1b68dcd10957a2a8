"""Products with float activations: unpacked weights, one accumulator, equal in every table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import _native
from headrace._native import testing
from headrace.backends.reference.dequant import dequantize
from headrace.weights.base import BLOCK_SIZES, DType
from tests.support import gemm_model
from tests.support.gemm_model import FLOAT_TYPES, Floats, activations, assert_same

ISAS = _native.isas()
QUANTIZED = [dtype for dtype in DType if dtype not in FLOAT_TYPES]
every_dtype = pytest.mark.parametrize("dtype", QUANTIZED, ids=lambda d: d.name)
every_isa = pytest.mark.parametrize("isa", ISAS)


def gemm(
    isa: str,
    dtype: DType,
    src: bytes,
    n: int,
    x: Floats,
    bias: Floats | None = None,
    tiles: tuple[int, int] | None = None,
) -> Floats:
    rows, k = x.shape
    offsets = None if bias is None else bias.tobytes()
    begin, end = tiles or (0, -(-n // gemm_model.TILE_N))
    out = testing.gemm(isa, int(dtype), src, n, k, x.tobytes(), rows, offsets, begin, end, True)
    return np.frombuffer(out, np.float32).reshape(rows, n)


@every_isa
@every_dtype
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_the_definition(isa: str, dtype: DType, with_bias: bool) -> None:
    """Odd numbers of outputs, blocks and rows; more than one buffer of inputs."""
    rng = np.random.default_rng(int(dtype))
    block_len = BLOCK_SIZES[dtype][0]
    for n, num_blocks, rows in ((1, 1, 1), (8, 2, 2), (13, 3, 5), (24, 9, 4), (17, 1, 7)):
        k = block_len * (min(num_blocks, 3) if block_len > 32 else num_blocks)
        src = gemm_model.random_matrix(dtype, n, k, rng)
        x = activations(rows, k, rng)
        bias = rng.standard_normal(n).astype(np.float32) if with_bias else None
        expected = gemm_model.float_product(dtype, src, n, k, x, bias)
        assert_same(gemm(isa, dtype, src, n, x, bias), expected)


@every_isa
@pytest.mark.parametrize("dtype", FLOAT_TYPES, ids=lambda d: d.name)
def test_float_weights_are_multiplied_as_ever(isa: str, dtype: DType) -> None:
    rng = np.random.default_rng(int(dtype))
    src = gemm_model.random_matrix(dtype, 9, 40, rng)
    x = activations(5, 40, rng)
    assert_same(gemm(isa, dtype, src, 9, x), gemm_model.product(dtype, src, 9, 40, x))


@every_isa
@every_dtype
def test_a_row_is_the_same_in_every_batch(isa: str, dtype: DType) -> None:
    """Every number of rows up to two register tiles, and more rows than share an unpacking."""
    rng = np.random.default_rng(int(dtype))
    n, k = 21, 512
    src = gemm_model.random_matrix(dtype, n, k, rng)
    x = activations(100 if isa != "scalar" else 98, k, rng)
    whole = gemm(isa, dtype, src, n, x)
    for r in (0, 1, 25, 47, 95, 96, 97):
        assert_same(gemm(isa, dtype, src, n, x[r : r + 1]), whole[r : r + 1])
    for rows in range(2, 25 if isa != "scalar" else 8):
        assert_same(gemm(isa, dtype, src, n, x[:rows]), whole[:rows])


@every_isa
@every_dtype
def test_tile_ranges_write_their_outputs_and_no_other(isa: str, dtype: DType) -> None:
    rng = np.random.default_rng(int(dtype))
    n, k = 50, 256
    src = gemm_model.random_matrix(dtype, n, k, rng)
    x = activations(3, k, rng)
    whole = gemm(isa, dtype, src, n, x)
    for begin, end in ((0, 1), (1, 4), (2, 2), (3, 7), (6, 7)):
        part = gemm(isa, dtype, src, n, x, tiles=(begin, end))
        expected = np.full(part.shape, 0xFFFFFFFF, np.uint32)
        columns = slice(8 * begin, min(8 * end, n))
        expected[:, columns] = whole.view(np.uint32)[:, columns]
        assert np.array_equal(part.view(np.uint32), expected)


@every_dtype
@given(
    n=st.integers(1, 17),
    num_blocks=st.integers(1, 3),
    rows=st.integers(1, 9),
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
        assert_same(out, gemm_model.float_product(dtype, src, n, k, spoiled))
        assert not np.isfinite(out[3]).any()
        assert_same(np.delete(out, 3, axis=0), np.delete(clean, 3, axis=0))


@every_isa
@every_dtype
def test_one_input_shows_the_unpacked_weight(isa: str, dtype: DType) -> None:
    """A row with a single 1 gives a column of the matrix, as dequantized."""
    rng = np.random.default_rng(int(dtype))
    n, k = 9, 256
    src = gemm_model.random_matrix(dtype, n, k, rng)
    weights = dequantize(dtype, src, (n, k))
    out = gemm(isa, dtype, src, n, np.eye(k, dtype=np.float32))
    assert np.array_equal(out, weights.T)
