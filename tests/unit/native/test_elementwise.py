"""Norm, rope, cache writes, gates and reductions: equal to their definitions in NumPy, bit for bit
where the definition is exact, at every length, stride and kind of float."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headrace._native import testing
from headrace.backends.layout import KV_DTYPES
from headrace.backends.reference.arena import to_bytes
from tests.support.gemm_model import fma
from tests.support.native_floats import (
    ISAS,
    SPECIALS,
    Floats,
    exp,
    floats,
    raw,
    same_bits,
    tanh,
    tree8,
    worst_ulps,
)

every_isa = pytest.mark.parametrize("isa", ISAS)
any_float = st.floats(width=32) | st.sampled_from(SPECIALS.tolist())
HALVES, BYTES = KV_DTYPES["fp16"], KV_DTYPES["int8"]
seeds = st.integers(0, 2**32 - 1)
BLOCK_LEN = 16


def _lane_sum_of_squares(x: Floats) -> np.float32:
    padded = np.zeros(-(-x.size // 8) * 8, np.float32)
    padded[: x.size] = x
    lanes = np.zeros(8, np.float32)
    for eight in padded.reshape(-1, 8):
        lanes = fma(eight, eight, lanes)
    return np.float32(tree8(lanes))


def _rmsnorm(x: Floats, w: Floats, eps: float) -> Floats:
    one = np.float32(1)
    out = np.empty_like(x)
    with np.errstate(all="ignore"):
        for r, row in enumerate(x):
            mean = _lane_sum_of_squares(row) / np.float32(row.size)
            out[r] = row * (one / np.sqrt(mean + np.float32(eps))) * w
    return out


@every_isa
@given(rows=st.integers(1, 9), dim=st.integers(1, 70), pad=st.integers(0, 5), seed=seeds)
def test_rmsnorm(isa: str, rows: int, dim: int, pad: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, dim + pad)).astype(np.float32) * np.float32(3)
    w = rng.standard_normal(dim).astype(np.float32)
    expected = _rmsnorm(x[:, :dim], w, 1e-5)
    for in_place in (False, True):
        got = floats(testing.rmsnorm(isa, raw(x), dim + pad, raw(w), 1e-5, rows, dim, in_place))
        got = got.reshape(x.shape)
        assert same_bits(got[:, :dim], expected)
        if in_place:
            assert same_bits(got[:, dim:], x[:, dim:])
        else:
            assert np.isnan(got[:, dim:]).all()


@every_isa
def test_rmsnorm_rows_are_independent(isa: str) -> None:
    """A NaN in one row of the four that run side by side stays in it."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((5, 24)).astype(np.float32)
    x[1, 3] = np.nan
    w = np.ones(24, np.float32)
    got = floats(testing.rmsnorm(isa, raw(x), 24, raw(w), 1e-6, 5, 24, False)).reshape(5, 24)
    assert np.isnan(got[1]).all()
    for r in (0, 2, 3, 4):
        alone = floats(testing.rmsnorm(isa, raw(x[r]), 24, raw(w), 1e-6, 1, 24, False))
        assert same_bits(got[r], alone)


@every_isa
@pytest.mark.parametrize("interleaved", [False, True])
@given(
    rows=st.integers(1, 3), heads=st.integers(1, 3), pairs=st.integers(1, 21),
    rest=st.integers(0, 5), pad=st.integers(0, 3), seed=seeds,
)  # fmt: skip
def test_rope(
    isa: str, interleaved: bool, rows: int, heads: int, pairs: int, rest: int, pad: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    dim = 2 * pairs + rest
    x = rng.standard_normal((rows, heads * dim + pad)).astype(np.float32)
    angles = rng.uniform(-4, 4, (rows, pairs))
    cos_sin = np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
    got = floats(
        testing.rope(isa, raw(x), x.shape[1], rows, heads, dim, raw(cos_sin), interleaved)
    ).reshape(x.shape)
    expected = x.copy()
    view = expected[:, : heads * dim].reshape(rows, heads, dim).copy()
    first = np.s_[..., 0 : 2 * pairs : 2] if interleaved else np.s_[..., :pairs]
    second = np.s_[..., 1 : 2 * pairs : 2] if interleaved else np.s_[..., pairs : 2 * pairs]
    a, b = view[first].copy(), view[second].copy()
    cosine, sine = cos_sin[:, None, :, 0], cos_sin[:, None, :, 1]
    view[first] = fma(a, np.broadcast_to(cosine, a.shape), -(b * sine))
    view[second] = fma(b, np.broadcast_to(cosine, a.shape), a * sine)
    expected[:, : heads * dim] = view.reshape(rows, -1)
    assert same_bits(got, expected)


@every_isa
def test_rope_angles_are_positions_times_frequencies(isa: str) -> None:
    positions = np.array([0, 1, 5, 4095, 131071], np.int32)
    inv_freq = 10000.0 ** -(np.arange(32) / 32)
    got = floats(testing.rope_angles(isa, positions.tobytes(), inv_freq.tobytes()))
    angles = positions[:, None].astype(np.float64) * inv_freq
    got = got.reshape(5, 32, 2)
    assert worst_ulps(got[..., 0], np.cos(angles)) < 0.5001
    assert worst_ulps(got[..., 1], np.sin(angles)) < 0.5001


@every_isa
@given(heads=st.integers(1, 3), eighths=st.integers(1, 6), slot=st.integers(0, 15), seed=seeds)
def test_kv_store(isa: str, heads: int, eighths: int, slot: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dim = 8 * eighths
    k, v = rng.standard_normal((2, heads, dim)).astype(np.float32)
    block = rng.integers(0, 1 << 16, heads * 2 * dim * BLOCK_LEN, np.uint16)
    stored = testing.kv_store(isa, raw(k), raw(v), heads, dim, block.tobytes(), slot, HALVES)
    got = np.frombuffer(stored, np.uint16).reshape(heads, 2, dim * BLOCK_LEN)
    expected = block.reshape(heads, 2, dim * BLOCK_LEN).copy()
    keys = expected[:, 0].reshape(heads, dim, BLOCK_LEN)
    values = expected[:, 1].reshape(heads, BLOCK_LEN, dim)
    keys[:, :, slot] = k.astype(np.float16).view(np.uint16)
    values[:, slot] = v.astype(np.float16).view(np.uint16)
    assert np.array_equal(got, expected)


def _stored_bytes(isa: str, x: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Codes and scales of rows x [16, dim], stored as K and as V."""
    dim = x.shape[1]
    block = bytes(2 * BLOCK_LEN * (dim + 4))
    for slot, row in enumerate(x):
        block = testing.kv_store(isa, raw(row), raw(row), 1, dim, block, slot, BYTES)
    codes = np.frombuffer(block[: 2 * dim * BLOCK_LEN], np.int8).reshape(2, -1)
    scales = floats(block[2 * dim * BLOCK_LEN :]).reshape(2, BLOCK_LEN)
    values = codes[1].reshape(BLOCK_LEN, dim)
    assert np.array_equal(codes[0].reshape(dim, BLOCK_LEN).T, values)
    assert same_bits(scales[0], scales[1])
    return values, scales[0]


@every_isa
@given(eighths=st.integers(1, 6), magnitude=st.integers(-45, 38), seed=seeds)
def test_bytes_equal_the_reference(isa: str, eighths: int, magnitude: int, seed: int) -> None:
    """Rows of any magnitude, zero rows, and rows that are not finite."""
    rng = np.random.default_rng(seed)
    wide = rng.standard_normal((BLOCK_LEN, 8 * eighths)) * 10.0**magnitude
    with np.errstate(over="ignore", under="ignore"):
        x = wide.astype(np.float32)
    x[2] = 0
    x[3, rng.integers(x.shape[1])] = np.nan
    x[4, rng.integers(x.shape[1])] = -np.inf
    unit = x[5, 0] or np.float32(1)
    with np.errstate(over="ignore", under="ignore"):
        x[5] = np.round(x[5] / unit) * 0.5 * unit  # codes halfway between two
    with np.errstate(all="ignore"):
        codes, scales = to_bytes(x)
    got_codes, got_scales = _stored_bytes(isa, x)
    assert np.array_equal(got_codes, codes)
    assert same_bits(got_scales, scales)
    assert not got_codes[2:5].any()
    assert got_scales[2] == 0
    assert np.isnan(got_scales[3:5]).all()


def _stored_halves(isa: str, x: Floats) -> npt.NDArray[np.uint16]:
    dim = x.size
    block = bytes(2 * dim * BLOCK_LEN * 2)
    stored = np.frombuffer(
        testing.kv_store(isa, raw(x), raw(x), 1, dim, block, 3, HALVES), np.uint16
    )
    keys, values = stored.reshape(2, dim * BLOCK_LEN)
    row: npt.NDArray[np.uint16] = values.reshape(BLOCK_LEN, dim)[3]
    assert np.array_equal(keys.reshape(dim, BLOCK_LEN)[:, 3], row)
    return row


@every_isa
def test_halves_round_to_nearest_even(isa: str) -> None:
    """Every half, every midpoint between two of them, and the floats beside each."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (halves[:-1] + halves[1:]) / 2
    around = [np.nextafter(middle, np.float32(s * np.inf), dtype=np.float32) for s in (-1, 1)]
    top = np.array([65504, 65519.996, 65520, 65536, 3e38, np.inf, 1e-45, 2.98e-8], np.float32)
    x = np.concatenate([halves, middle, *around, top])
    x = np.concatenate([x, -x])
    x = np.resize(x, -(-x.size // 8) * 8)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).view(np.uint16)
    assert np.array_equal(_stored_halves(isa, x), expected)


@every_isa
def test_half_of_nan_is_quiet_and_keeps_its_high_bits(isa: str) -> None:
    nans = np.array([0x7F800001, 0x7FC00000, 0xFF802000, 0xFFFFFFFF] * 2, np.uint32)
    expected = [0x7E00, 0x7E00, 0xFE01, 0xFFFF] * 2
    assert _stored_halves(isa, nans.view(np.float32)).tolist() == expected


@every_isa
@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_gates_follow_float64(isa: str, name: str) -> None:
    gate = np.concatenate([np.linspace(-80, 80, 40_001), np.linspace(-1, 1, 20_002)])
    gate = gate.astype(np.float32)
    up = np.random.default_rng(5).standard_normal(gate.size).astype(np.float32)
    x = np.concatenate([gate, up])
    got = floats(testing.gate(isa, name, raw(x), x.size, 1, gate.size))
    g = gate.astype(np.float64)
    twice = 2 * np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)
    with np.errstate(over="ignore"):
        exact = g / (1 + np.exp(-g if name == "silu" else -twice)) * up
    allowed = 3e-7 + 3e-7 * np.minimum(np.abs(g if name == "silu" else twice), 90)
    assert np.all(np.abs(got - exact) <= allowed * np.abs(exact) + 1e-37)


@every_isa
def test_gelu_is_the_tanh_form(isa: str) -> None:
    """x / (1 + exp(-2u)) against 0.5 x (1 + tanh u), where that form is accurate."""
    g = np.linspace(-1, 6, 5_000).astype(np.float32)
    x = np.concatenate([g, np.ones_like(g)])
    got = floats(testing.gate(isa, "gelu_tanh", raw(x), x.size, 1, g.size))
    wide = g.astype(np.float64)
    expected = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    assert np.allclose(got, expected, rtol=1e-6, atol=1e-9)


@given(
    rows=st.integers(1, 3), dim=st.integers(1, 19), pad=st.integers(0, 3),
    name=st.sampled_from(["silu", "gelu_tanh"]), data=st.data(),
)  # fmt: skip
def test_gate_tails_and_strides(
    rows: int, dim: int, pad: int, name: str, data: st.DataObject
) -> None:
    ldx = 2 * dim + pad
    x = data.draw(arrays(np.float32, (rows, ldx), elements=any_float))
    got = [floats(testing.gate(i, name, raw(x), ldx, rows, dim)).reshape(rows, dim) for i in ISAS]
    assert all(same_bits(got[0], other) for other in got)
    for r in range(rows):
        for c in range(dim):
            pair = raw([x[r, c], x[r, dim + c]])
            assert same_bits(
                got[0][r, c : c + 1], floats(testing.gate("scalar", name, pair, 2, 1, 1))
            )


@every_isa
@given(rows=st.integers(1, 3), dim=st.integers(1, 19), data=st.data())
def test_add(isa: str, rows: int, dim: int, data: st.DataObject) -> None:
    x = data.draw(arrays(np.float32, (rows, dim + 2), elements=any_float))
    y = data.draw(arrays(np.float32, (rows, dim + 1), elements=any_float))
    got = floats(testing.add(isa, raw(x), dim + 2, raw(y), dim + 1, rows, dim)).reshape(x.shape)
    expected = x.copy()
    with np.errstate(all="ignore"):
        expected[:, :dim] += y[:, :dim]
    assert same_bits(got, expected)


@every_isa
@given(x=arrays(np.float32, st.integers(1, 40), elements=any_float), factor=any_float)
def test_scale(isa: str, x: Floats, factor: float) -> None:
    with np.errstate(all="ignore"):
        assert same_bits(floats(testing.scale(isa, raw(x), factor)), x * np.float32(factor))


@every_isa
@given(
    x=arrays(np.float32, st.integers(1, 40), elements=any_float),
    cap=st.sampled_from([1.0, 30.0, 50.0]),
)
def test_softcap(isa: str, x: Floats, cap: float) -> None:
    with np.errstate(all="ignore"):
        expected = np.float32(cap) * tanh("scalar", x / np.float32(cap))
    assert same_bits(floats(testing.softcap(isa, raw(x), cap)), expected)


@every_isa
@given(x=arrays(np.float32, st.integers(1, 50), elements=any_float))
def test_argmax(isa: str, x: Floats) -> None:
    index, value = testing.argmax(isa, raw(x))
    if np.isnan(x).any():
        assert index == -1
    else:
        assert index == int(np.argmax(x))
        assert raw([value]) == raw([x[index]])


@every_isa
def test_argmax_takes_the_lowest_of_equals(isa: str) -> None:
    x = np.full(1000, -np.inf, np.float32)
    assert testing.argmax(isa, raw(x))[0] == 0
    x[[417, 900, 999]] = 7
    assert testing.argmax(isa, raw(x)) == (417, 7.0)
    assert testing.argmax(isa, raw(np.array([-1, -0.0, 0.0], np.float32)))[0] == 1


def _logsumexp(x: Floats, top: np.float32) -> float:
    """The definition, rounding for rounding: blocks of 4,096, eight float64 lanes, fixed tree."""
    e = exp("scalar", x - top).astype(np.float64)
    total = 0.0
    for begin in range(0, e.size, 4096):
        block = e[begin : begin + 4096]
        lanes = np.zeros(-(-block.size // 8) * 8)
        lanes[: block.size] = block
        total += float(tree8(np.add.accumulate(lanes.reshape(-1, 8), axis=0)[-1]))
    log = np.frombuffer(testing.log64(np.float64(total).tobytes()), np.float64)[0]
    return float(log) + float(top)


@every_isa
@pytest.mark.parametrize("n", [1, 7, 8, 9, 4095, 4096, 4097, 49_152, 151_936])
def test_logsumexp(isa: str, n: int) -> None:
    x = (np.random.default_rng(n).standard_normal(n) * 4).astype(np.float32)
    x[n // 2] = -np.inf
    x[0] = 1.0
    got = testing.logsumexp(isa, raw(x), float(x.max()))
    assert got == _logsumexp(x, x.max())
    wide = x.astype(np.float64)
    assert got == pytest.approx(np.log(np.sum(np.exp(wide - wide.max()))) + wide.max(), rel=1e-7)


@every_isa
@given(
    x=arrays(np.float32, st.integers(1, 40), elements=st.floats(-100, 100, width=32)),
    temperature=st.floats(0.01, 4),
)
def test_softmax_weights(isa: str, x: Floats, temperature: float) -> None:
    top = np.float64(x.max())
    scaled = (x.astype(np.float64) / temperature - top / temperature).astype(np.float32)
    got = floats(testing.softmax_weights(isa, raw(x), float(top), temperature))
    assert same_bits(got, exp("scalar", scaled))
    assert got[np.argmax(x)] == 1.0
