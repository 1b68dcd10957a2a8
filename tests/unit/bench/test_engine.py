"""The roofs of `bench engine`: bytes and rates by the types that are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.bench.engine import Limits, Model
from headrace.bench.workload import Workload
from headrace.models.registry import build_program
from headrace.weights.open import open_source
from tests.support.make_model import make_gguf


@pytest.mark.parametrize(("kv_dtype", "value", "scale"), [("fp16", 2, 0), ("int8", 1, 4)])
def test_keys_and_values_count_in_their_type(
    tmp_path: Path, kv_dtype: str, value: int, scale: int
) -> None:
    path = make_gguf(tmp_path / "m.gguf", family="llama").path
    source = open_source(path)
    program = build_program(source.config)
    source.close()
    sides = 2 * program.num_kv_heads * len(program.kv_windows)
    found = Model.open(path, kv_dtype)
    assert found.workload.kv_bytes(3) == 3 * sides * (program.head_dim * value + scale)
    assert found.layout.kv_dtype == kv_dtype


def test_float_activations_multiply_at_the_rate_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.bench.engine.MAX_READ_BYTES", 1 << 20)
    monkeypatch.setattr("headrace.bench.engine.MIN_READ_BYTES", 1 << 20)
    monkeypatch.setattr("headrace.bench.engine.ROOF_REPEAT", 1)
    monkeypatch.setattr("headrace.bench.engine.COMPUTE_REPEAT", 1)
    work = Workload(0, 10**9, 0, 10**9, True, ())
    for float_activations in (False, True):
        limits = Limits(work, 1, float_activations=float_activations)
        rate = limits.float if float_activations else limits.integer
        assert limits.prefill_s(3) == pytest.approx(4 / rate.together)
