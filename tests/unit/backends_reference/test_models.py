"""The reference backend equals transformers in float32, layer by layer, on tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from headrace.backends.base import SamplingSpec, StepPlan, WantedRow
from headrace.backends.reference import EXACT, EXACT64, LOGITS, Numerics, ReferenceBackend
from headrace.models.program import Add, Linear
from headrace.weights.base import DType, WeightSource
from headrace.weights.open import open_source
from tests.golden.cases import CASES, GOLDEN_FILE, PROMPT_LEN, Case
from tests.support.make_model import make_gguf, make_hf
from tests.support.plans import PlanMaker
from tests.support.sources import memory_source

Floats = npt.NDArray[np.float32]
BY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


@pytest.fixture(scope="module")
def golden() -> dict[str, Floats]:
    with np.load(GOLDEN_FILE, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _hf_source(case: Case, folder: Path) -> WeightSource:
    return open_source(make_hf(folder, dtype=DType.F32, **case.arguments).path)


def _gguf_source(case: Case, folder: Path) -> WeightSource:
    return open_source(make_gguf(folder / "m.gguf", dtype=DType.F32, **case.arguments).path)


def _backend(source: WeightSource, numerics: Numerics = EXACT) -> ReferenceBackend:
    return ReferenceBackend(source, num_blocks=64, numerics=numerics)


def _whole_prompt(backend: ReferenceBackend, case: Case) -> StepPlan:
    maker = PlanMaker(backend.layout, backend.num_blocks)
    wanted = [WantedRow(row, SamplingSpec()) for row in range(PROMPT_LEN)]
    return maker.plan([(maker.sequence(), case.prompt)], wanted)


def _layer_trace(backend: ReferenceBackend, plan: StepPlan) -> dict[str, Floats]:
    """Arrays under the names of the golden file."""
    out: dict[str, Any] = {}
    for op, buffers in backend.trace(plan):
        if isinstance(op, Linear) and op.out == "y":
            branch = "att" if op.src == "att" else "mlp"
            out[f"{branch}.{op.layer}"] = buffers["y"].copy()
        if isinstance(op, Add):
            out[f"x.{op.layer}"] = buffers["x"].copy()
        if LOGITS in buffers:
            out["final"], out["logits"] = buffers["wh"], buffers[LOGITS]
    return out


def _worst(got: Floats, expected: Floats) -> float:
    """Largest difference of the rows that are recorded, as a share of the largest value."""
    rows = got[-len(expected) :]
    assert rows.shape == expected.shape
    return float(np.abs(rows - expected).max() / np.abs(expected).max())


@BY_CASE
def test_equals_transformers_layer_by_layer(
    case: Case, golden: dict[str, Floats], tmp_path: Path
) -> None:
    backend = _backend(_hf_source(case, tmp_path))
    got = _layer_trace(backend, _whole_prompt(backend, case))
    assert len(got) == 3 * backend.program.num_layers + 2
    for name, values in got.items():
        assert _worst(values, golden[f"{case.name}/{name}"]) < 2e-6, name


@BY_CASE
def test_a_gguf_file_is_the_same_network(
    case: Case, golden: dict[str, Floats], tmp_path: Path
) -> None:
    backend = _backend(_gguf_source(case, tmp_path))
    logits = backend.logits(_whole_prompt(backend, case))
    assert _worst(logits, golden[f"{case.name}/logits"]) < 2e-6


@BY_CASE
def test_float64_is_nearer_still(case: Case, golden: dict[str, Floats], tmp_path: Path) -> None:
    backend = _backend(_hf_source(case, tmp_path), EXACT64)
    logits = backend.logits(_whole_prompt(backend, case))
    assert logits.dtype == np.float64
    assert _worst(logits.astype(np.float32), golden[f"{case.name}/logits"]) < 2e-6


@BY_CASE
def test_a_source_in_memory_presents_the_same_model(case: Case, tmp_path: Path) -> None:
    for made in (
        make_hf(tmp_path / "hf", dtype=DType.F32, **case.arguments),
        make_gguf(tmp_path / "m.gguf", dtype=DType.F32, **case.arguments),
    ):
        held, opened = memory_source(made), open_source(made.path)
        assert held.config == opened.config
        assert held.tensors == dict(opened.tensors)
        assert all(held.data(name) == opened.data(name) for name in opened.tensors)
        opened.close()
