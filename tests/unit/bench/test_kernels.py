"""Every kernel of every table can be timed; sizes that it cannot have are refused."""

from __future__ import annotations

import pytest

from headrace import _native
from headrace.backends.layout import KV_DTYPES
from headrace.bench.kernels import HEAD_DIM, KV_HEADS, LAYERS, ROW_KERNELS, kv_bytes
from headrace.weights.base import DType


@pytest.mark.parametrize("isa", _native.isas())
def test_every_kernel_has_a_time(isa: str) -> None:
    bench = _native.KernelBench(_native.ThreadPool(2), isa)
    for dtype in DType:
        for rows in (1, 5):
            assert bench.gemm(dtype, 20, 256, rows, 1) > 0
            assert bench.gemm(dtype, 20, 256, rows, 1, float_activations=True) > 0
        assert bench.pack(dtype, 20, 256, 1) > 0
    for kernel in ROW_KERNELS:
        assert bench.rows(kernel, 3, 128, 1) > 0
    for kv_type in KV_DTYPES.values():
        for context, rows in ((1, 1), (700, 1), (300, 300), (9000, 3)):  # 9000: many merges
            assert attention(bench, kv_type=kv_type, context=context, rows=rows) > 0


def attention(bench: _native.KernelBench, **sizes: int) -> float:
    usual = {
        "kv_type": 0, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "layers": 2,
        "context": 20, "rows": 1, "repeat": 1,
    }  # fmt: skip
    return bench.attention(**(usual | sizes))


def test_attention_reads_keys_and_values_with_their_scales() -> None:
    values = 2 * KV_HEADS * HEAD_DIM * LAYERS
    assert kv_bytes("fp16", 100) == 100 * 2 * values
    assert kv_bytes("int8", 100) == 100 * (values + 4 * 2 * KV_HEADS * LAYERS)


def test_what_no_kernel_takes_is_refused() -> None:
    bench = _native.KernelBench(_native.ThreadPool(1), "scalar")
    for dtype, n, k, rows, repeat in [
        (99, 8, 256, 1, 1), (0, 0, 256, 1, 1), (0, 8, 100, 1, 1), (0, 8, 256, 0, 1),
        (0, 8, 256, 1, 0),
    ]:  # fmt: skip
        with pytest.raises(ValueError):
            bench.gemm(dtype, n, k, rows, repeat)
    for sizes in [
        {"kv_type": 2}, {"num_heads": 3}, {"num_heads": 0}, {"head_dim": 12}, {"layers": 0},
        {"context": 0}, {"rows": 21}, {"rows": 0}, {"repeat": 0}, {"num_kv_heads": 0},
    ]:  # fmt: skip
        with pytest.raises(ValueError):
            attention(bench, **sizes)
    with pytest.raises(ValueError, match="no kernel table"):
        _native.KernelBench(_native.ThreadPool(1), "sse9")
    with pytest.raises(ValueError, match="no kernel x"):
        bench.rows("x", 1, 64, 1)
