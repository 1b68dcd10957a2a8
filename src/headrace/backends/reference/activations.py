"""How the CPU backend rounds activations before a product with quantized weights (emulation)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.weights.base import DType

Floats = npt.NDArray[np.float32]

GROUP_LEN = 32
SMALLEST = np.float32(2.0**-100)  # a group below it is zero
# Largest quant of an activation by weight type: 8-bit integers against 4 to 6 bit weights, 16-bit
# against 8 bits; 16-bit and float weights take the activation as it is.
_PEAKS = {
    DType.Q4_0: 127,
    DType.Q4_1: 127,
    DType.Q4_K: 127,
    DType.Q5_0: 127,
    DType.Q5_1: 127,
    DType.Q5_K: 127,
    DType.Q6_K: 127,
    DType.Q8_0: 32767,
}


def round_activations(x: Floats, dtype: DType) -> Floats:
    """`x` [rows, k] as the kernel for weights of `dtype` sees it: scale * quant per group of 32."""
    peak = _PEAKS.get(dtype)
    if peak is None:
        return x
    groups = x.astype(np.float32).reshape(len(x), x.shape[1] // GROUP_LEN, GROUP_LEN)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    is_zero = largest < SMALLEST
    inverse = np.float32(peak) / np.where(is_zero, np.float32(1), largest)
    quants = np.where(is_zero, np.float32(0), np.rint(groups * inverse))
    rounded: Floats = quants * (largest / np.float32(peak))
    return rounded.reshape(x.shape)
