"""Every kernel of every table can be timed; sizes that it cannot have are refused."""

from __future__ import annotations

import pytest

from headrace import _native
from headrace.bench.kernels import ROW_KERNELS
from headrace.weights.base import DType


@pytest.mark.parametrize("isa", _native.isas())
def test_every_kernel_has_a_time(isa: str) -> None:
    bench = _native.KernelBench(_native.ThreadPool(2), isa)
    for dtype in DType:
        for rows in (1, 5):
            assert bench.gemm(dtype, 20, 256, rows, 1) > 0
        assert bench.pack(dtype, 20, 256, 1) > 0
    for kernel in ROW_KERNELS:
        assert bench.rows(kernel, 3, 128, 1) > 0


def test_what_no_kernel_takes_is_refused() -> None:
    bench = _native.KernelBench(_native.ThreadPool(1), "scalar")
    for dtype, n, k, rows, repeat in [
        (99, 8, 256, 1, 1), (0, 0, 256, 1, 1), (0, 8, 100, 1, 1), (0, 8, 256, 0, 1),
        (0, 8, 256, 1, 0),
    ]:  # fmt: skip
        with pytest.raises(ValueError):
            bench.gemm(dtype, n, k, rows, repeat)
    with pytest.raises(ValueError, match="no kernel table"):
        _native.KernelBench(_native.ThreadPool(1), "sse9")
    with pytest.raises(ValueError, match="no kernel x"):
        bench.rows("x", 1, 64, 1)
