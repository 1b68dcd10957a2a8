"""The generator's packers against an independent dequantizer, so that tests can stand on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, quants

from headrace.weights.base import BLOCK_SIZES, DType
from tests.support.make_model import make_gguf
from tests.support.packers import pack

# Worst error of a row of 256 normal deviates, as a share of its largest magnitude.
TOLERANCE = {
    DType.F32: 0.0, DType.F16: 6e-4, DType.BF16: 5e-3, DType.Q4_0: 0.14, DType.Q4_1: 0.09,
    DType.Q5_0: 0.07, DType.Q5_1: 0.05, DType.Q8_0: 6e-3, DType.Q4_K: 0.09, DType.Q5_K: 0.05,
    DType.Q6_K: 0.04,
}  # fmt: skip


@pytest.mark.parametrize("dtype", list(DType))
def test_packed_values_come_back(dtype: DType) -> None:
    rng = np.random.default_rng(int(dtype))
    values = rng.standard_normal((64, 256)).astype(np.float32)
    values[0] = 0.0
    packed = np.frombuffer(pack(dtype, values), np.uint8)
    block_len, block_bytes = BLOCK_SIZES[dtype]
    assert packed.size == values.size // block_len * block_bytes
    rows = packed.reshape(64, -1)
    back = quants.dequantize(rows, GGMLQuantizationType(int(dtype))).reshape(values.shape)
    error = np.abs(back - values).max(axis=1)
    assert (error <= TOLERANCE[dtype] * np.abs(values).max(axis=1)).all()


def test_a_row_must_be_whole_blocks() -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        pack(DType.Q4_K, np.zeros((2, 128), np.float32))


def test_one_seed_one_model(tmp_path: Path) -> None:
    first = make_gguf(tmp_path / "a.gguf", seed=7).path.read_bytes()
    assert make_gguf(tmp_path / "b.gguf", seed=7).path.read_bytes() == first
    assert make_gguf(tmp_path / "c.gguf", seed=8).path.read_bytes() != first


def test_generated_files_read_elsewhere(tmp_path: Path) -> None:
    made = make_gguf(tmp_path / "a.gguf", family="gemma3", dtype=DType.Q6_K, alignment=64)
    reader = GGUFReader(made.path)
    assert {tensor.name for tensor in reader.tensors} == set(made.tensors)
    for tensor in reader.tensors:
        assert bytes(tensor.data) == made.tensors[tensor.name].data
