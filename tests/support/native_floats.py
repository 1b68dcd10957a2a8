"""Float kernels of the native tables on NumPy arrays, and how exact a float is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace._native import testing

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

ISAS = tuple(_native.isas())


def floats(data: bytes) -> Floats:
    return np.frombuffer(data, np.float32)


def raw(values: npt.ArrayLike) -> bytes:
    """float32 bytes of any array."""
    return np.asarray(values, np.float32).tobytes()


def exp(isa: str, x: Floats) -> Floats:
    """The tables' exp: a softmax weight at maximum 0 and temperature 1."""
    return floats(testing.softmax_weights(isa, raw(x), 0.0, 1.0)).reshape(x.shape)


def tanh(isa: str, x: Floats) -> Floats:
    """The tables' tanh: a soft cap of 1."""
    return floats(testing.softcap(isa, raw(x), 1.0)).reshape(x.shape)


def same_bits(a: Floats, b: Floats) -> bool:
    """Equal bit for bit; any NaN equals any other (processors differ in payloads)."""
    if a.shape != b.shape:
        return False
    nan = np.isnan(a)
    differs = (a.view(np.uint32) != b.view(np.uint32)) & ~nan
    return bool(np.array_equal(nan, np.isnan(b)) and not differs.any())


def worst_ulps(got: Floats, exact: Doubles) -> float:
    """Largest error in units of the last place of the rounded exact value."""
    rounded = np.abs(exact).astype(np.float32)
    unit = np.spacing(rounded).astype(np.float64)
    return float(np.max(np.abs(got.astype(np.float64) - exact) / unit))


def tree8(lanes: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """((0+4)+(2+6))+((1+5)+(3+7)) over the last axis, in the array's precision."""
    four = lanes[..., :4] + lanes[..., 4:]
    two = four[..., :2] + four[..., 2:]
    total: npt.NDArray[np.floating] = two[..., 0] + two[..., 1]
    return total


# Every kind of float32: zeros, subnormals, ones, the edges of exp, extremes, infinities, NaN.
SPECIALS = np.array(
    [
        0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, 1.1754944e-38, -1.1754944e-38, 1.0, -1.0,
        0.5, 0.625, -0.625, 0.6249999, 16777216.0, -16777217.0, 87.0, -87.0, -87.00001,
        88.72283, 88.72284, -103.97, -104.0, 3.4028235e38, -3.4028235e38, np.inf, -np.inf, np.nan,
    ],
    np.float32,
)  # fmt: skip
