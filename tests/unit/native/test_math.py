"""Our own exp, tanh, log, sine and cosine: error bounds against float64, edges, equal tables."""

from __future__ import annotations

import numpy as np
import pytest

from headrace._native import testing
from tests.support.native_floats import (
    ISAS,
    SPECIALS,
    Doubles,
    Floats,
    exp,
    floats,
    raw,
    same_bits,
    tanh,
    worst_ulps,
)

every_isa = pytest.mark.parametrize("isa", ISAS)


def _every_float(stride: int) -> Floats:
    """Every stride-th float32 bit pattern, all signs, exponents and NaN included."""
    return np.arange(0, 1 << 32, stride, dtype=np.int64).astype(np.uint32).view(np.float32)


def _log64(x: Doubles) -> Doubles:
    return np.frombuffer(testing.log64(x.tobytes()), np.float64)


def _cos_sin(isa: str, angles: Doubles) -> tuple[Floats, Floats]:
    one = np.ones(1, np.int32).tobytes()
    pairs = floats(testing.rope_angles(isa, one, angles.tobytes())).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


@every_isa
def test_exp_is_within_one_ulp(isa: str) -> None:
    x = np.concatenate(
        [np.linspace(-87.0, 88.72, 400_001), np.linspace(-1e-3, 1e-3, 20_001)]
    ).astype(np.float32)
    assert worst_ulps(exp(isa, x), np.exp(x.astype(np.float64))) < 1.0


@every_isa
def test_exp_at_its_edges(isa: str) -> None:
    x = np.array([0.0, -0.0, -87.0, np.nextafter(np.float32(-87), np.float32(-88))], np.float32)
    assert exp(isa, x).tolist()[:2] == [1.0, 1.0]
    assert exp(isa, x)[2] >= np.finfo(np.float32).tiny
    assert raw(exp(isa, x)[3:]) == raw([0.0])
    wide = np.array([-1e30, -np.inf, 88.722832, 88.72284, 1e30, np.inf, np.nan], np.float32)
    got = exp(isa, wide)
    assert raw(got[:2]) == raw([0.0, 0.0])
    assert np.isfinite(got[2])
    assert np.all(got[3:6] == np.inf)
    assert np.isnan(got[6])


@every_isa
def test_exp_rises(isa: str) -> None:
    """Over neighbouring floats: a softmax never ranks a lower score higher by rounding alone."""
    start = np.float32(-5.0).view(np.uint32)
    x = (start + np.arange(200_000, dtype=np.uint32)).view(np.float32)  # falling from -5
    assert np.all(np.diff(exp(isa, x)) <= 0)


@every_isa
def test_exp_keeps_every_nan(isa: str) -> None:
    payloads = np.array([0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0x7F8001FF, 0xFF800001], np.uint32)
    assert np.isnan(exp(isa, payloads.view(np.float32))).all()


@every_isa
def test_tanh_is_within_three_ulps(isa: str) -> None:
    x = np.concatenate([np.linspace(-12, 12, 400_001), np.geomspace(1e-40, 1, 50_001)])
    x = x.astype(np.float32)
    assert worst_ulps(tanh(isa, x), np.tanh(x.astype(np.float64))) < 3.0
    ends = tanh(isa, np.array([-np.inf, np.inf, -100, 100, 0.0, -0.0, np.nan], np.float32))
    assert raw(ends[:6]) == raw([-1.0, 1.0, -1.0, 1.0, 0.0, -0.0])
    assert np.isnan(ends[6])


def test_tables_agree_on_every_kind_of_float() -> None:
    x = np.concatenate([_every_float(9_973), SPECIALS])
    ones = np.ones_like(x)
    gate = np.stack([x, ones]).ravel()
    for isa in ISAS:
        assert same_bits(exp("scalar", x), exp(isa, x))
        assert same_bits(tanh("scalar", x), tanh(isa, x))
        for name in ("silu", "gelu_tanh"):
            got = [floats(testing.gate(i, name, raw(gate), gate.size, 1, x.size)) for i in ISAS]
            assert all(same_bits(got[0], other) for other in got)


def test_log64_is_within_one_ulp() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [
            rng.random(200_000),
            1 + rng.uniform(-1e-3, 1e-3, 100_000),
            np.exp(rng.uniform(-700, 700, 100_000)),
            (rng.integers(0, 1 << 32, 100_000) + 0.5) * 2.0**-32,  # the u of the sampling noise
            np.array([5e-324, 2.0**-1022, 2.0**-1074 * 3, np.finfo(np.float64).max, 0.5, 2.0]),
        ]
    )
    exact = np.log(x.astype(np.longdouble))
    unit = np.spacing(np.abs(exact.astype(np.float64)))
    assert float(np.max(np.abs(_log64(x) - exact) / unit)) < 1.0


def test_log64_at_its_edges() -> None:
    got = _log64(np.array([1.0, 0.0, -0.0, np.inf, -1.0, -np.inf, np.nan, -5e-324]))
    assert got[:4].tolist() == [0.0, -np.inf, -np.inf, np.inf]
    assert not np.signbit(got[0])
    assert np.isnan(got[4:]).all()


@every_isa
def test_cos_and_sin_round_the_float64_value(isa: str) -> None:
    rng = np.random.default_rng(2)
    quarter = np.arange(0, 6_000_000, 997) * (np.pi / 2)  # the hardest: next to the zeros
    angles = np.concatenate(
        [rng.uniform(0, 1e7, 100_000), rng.integers(0, 10_000_000, 100_000).astype(np.float64),
         rng.uniform(0, 8, 50_000), quarter, np.array([0.0, 1e-300, 1e7])]
    )  # fmt: skip
    cosine, sine = _cos_sin(isa, angles)
    assert worst_ulps(cosine, np.cos(angles)) < 0.5001
    assert worst_ulps(sine, np.sin(angles)) < 0.5001


def test_tables_agree_on_cos_and_sin() -> None:
    angles = np.random.default_rng(3).uniform(-1e7, 1e7, 100_000)
    expected = _cos_sin("scalar", angles)
    for isa in ISAS:
        got = _cos_sin(isa, angles)
        assert same_bits(got[0], expected[0])
        assert same_bits(got[1], expected[1])
