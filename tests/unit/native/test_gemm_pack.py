"""Packing loses nothing, takes little more than the source, and activations round as written."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from hypothesis import given
from hypothesis import strategies as st

from headrace import _native
from headrace._native import testing
from headrace.backends.reference.dequant import dequantize
from headrace.weights.base import BLOCK_SIZES, DType
from tests.support import gemm_model
from tests.support.gemm_model import Floats

ISAS = _native.isas()
A8, A16, PLAIN = 0, 1, 2
every_dtype = pytest.mark.parametrize("dtype", list(DType), ids=lambda d: d.name)
every_isa = pytest.mark.parametrize("isa", ISAS)


def _pack(isa: str, dtype: DType, src: bytes, n: int, k: int) -> bytes:
    return testing.pack(isa, int(dtype), src, n, k, 0, -(-n // 8))


def _unpack(isa: str, dtype: DType, packed: bytes, n: int, k: int) -> Floats:
    rows = [testing.unpack(isa, int(dtype), packed, n, k, row) for row in range(n)]
    return np.frombuffer(b"".join(rows), np.float32).reshape(n, k)


@every_isa
@every_dtype
@given(n=st.integers(1, 17), num_blocks=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_unpacking_is_dequantizing(
    isa: str, dtype: DType, n: int, num_blocks: int, seed: int
) -> None:
    k = BLOCK_SIZES[dtype][0] * num_blocks
    src = gemm_model.random_matrix(dtype, n, k, np.random.default_rng(seed))
    got = _unpack(isa, dtype, _pack(isa, dtype, src, n, k), n, k)
    assert np.array_equal(got, dequantize(dtype, src, (n, k)))


@every_dtype
def test_unpacking_equals_the_gguf_package(dtype: DType) -> None:
    n, k = 5, 512
    src = gemm_model.random_matrix(dtype, n, k, np.random.default_rng(3))
    rows = np.frombuffer(src, np.uint8).reshape(n, -1)
    expected = np.asarray(quants.dequantize(rows, GGMLQuantizationType(int(dtype))))
    for isa in ISAS:
        got = _unpack(isa, dtype, _pack(isa, dtype, src, n, k), n, k)
        assert np.array_equal(got, expected.reshape(n, k))


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=lambda d: d.name)
def test_every_half_keeps_its_value(dtype: DType) -> None:
    """All 65,536 values as weights, subnormals, infinities and NaN included."""
    src = np.arange(1 << 16, dtype="<u2").tobytes()
    n, k = 256, 256
    expected = dequantize(dtype, src, (n, k))
    for isa in ISAS:
        got = _unpack(isa, dtype, _pack(isa, dtype, src, n, k), n, k)
        assert np.array_equal(got, expected, equal_nan=True)


@every_dtype
def test_packed_bytes_are_at_most_three_percent_more(dtype: DType) -> None:
    n, k = 16, 512
    src = gemm_model.random_matrix(dtype, n, k, np.random.default_rng(0))
    assert len(_pack("scalar", dtype, src, n, k)) <= 1.03 * len(src)


@every_dtype
def test_tables_pack_the_same_bytes_for_any_range(dtype: DType) -> None:
    n, k = 41, 512
    src = gemm_model.random_matrix(dtype, n, k, np.random.default_rng(1))
    whole = np.frombuffer(_pack("scalar", dtype, src, n, k), np.uint8).reshape(6, -1)
    for isa in ISAS:
        for begin, end in ((0, 6), (0, 1), (2, 5), (5, 6), (3, 3)):
            raw = testing.pack(isa, int(dtype), src, n, k, begin, end)
            part = np.frombuffer(raw, np.uint8).reshape(6, -1)
            assert np.array_equal(part[begin:end], whole[begin:end])
            assert (np.delete(part, slice(begin, end), axis=0) == 0xFF).all()


def _quantize(isa: str, kind: int, x: Floats) -> bytes:
    return testing.quantize(isa, kind, x.tobytes(), *x.shape)


def _expected_rows(kind: int, x: Floats) -> list[bytes]:
    """Groups as in native/gemm/layout.h, rows padded with zeros to a multiple of 32 bytes."""
    act = gemm_model.quantize(x, 127 if kind == A8 else 32767)
    rows = []
    for codes, scales in zip(act.codes, act.scales, strict=True):
        row = b""
        for group, scale in zip(codes, scales, strict=True):
            row += group.astype("<i1" if kind == A8 else "<i2").tobytes() + scale.tobytes()
            if kind == A8:
                with np.errstate(over="ignore"):  # groups near the largest float
                    row += (scale * np.float32(group.sum())).tobytes()
                row += group.reshape(2, 16).sum(axis=1).astype("<i2").tobytes()
        rows.append(row + bytes(-len(row) % 32))
    return rows


@every_isa
@pytest.mark.parametrize("kind", [A8, A16])
@given(
    seed=st.integers(0, 2**32 - 1),
    num_groups=st.integers(1, 5),
    rows=st.integers(1, 3),
    exponent=st.integers(-140, 120),
)
def test_quantization_rounds_as_defined(
    isa: str, kind: int, seed: int, num_groups: int, rows: int, exponent: int
) -> None:
    rng = np.random.default_rng(seed)
    x = np.ldexp(rng.standard_normal((rows, 32 * num_groups)), exponent).astype(np.float32)
    assert _quantize(isa, kind, x) == b"".join(_expected_rows(kind, x))


@every_isa
@pytest.mark.parametrize("kind", [A8, A16])
def test_ties_round_to_even_and_codes_reach_the_limit(isa: str, kind: int) -> None:
    limit = 127 if kind == A8 else 32767
    x = np.zeros((1, 64), np.float32)
    x[0, :32] = np.arange(32) - 15.5
    x[0, 31] = limit
    x[0, 32:34] = (-limit, 2.5)
    codes = np.frombuffer(_quantize(isa, kind, x), np.int8 if kind == A8 else "<i2")
    assert codes[:32].tolist() == [*np.rint(np.arange(31) - 15.5).astype(int).tolist(), limit]
    second = 44 if kind == A8 else 34
    assert codes[second : second + 3].tolist() == [-limit, 2, 0]


@given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=32, max_size=32))
def test_tables_quantize_any_group_alike(values: list[float]) -> None:
    x = np.array([values], np.float32)
    for kind in (A8, A16):
        for raw in (_quantize(isa, kind, x) for isa in ISAS):
            if np.isfinite(x).all():
                assert raw == b"".join(_expected_rows(kind, x))
                continue
            # Codes are zero and the scale is a NaN, so that the row's outputs are.
            num_codes = 32 * (kind + 1)
            assert raw[:num_codes] == bytes(num_codes)
            assert np.isnan(np.frombuffer(raw[num_codes : num_codes + 4], np.float32)[0])


@every_isa
def test_plain_activations_are_copied_and_padded(isa: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 37)).astype(np.float32)
    rows = np.frombuffer(_quantize(isa, PLAIN, x), np.float32).reshape(3, -1)
    assert rows.shape == (3, 40)
    assert np.array_equal(rows[:, :37], x)
    assert not rows[:, 37:].any()
