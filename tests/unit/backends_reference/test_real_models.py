"""The reference backend equals transformers in float32 on the real models, layer by layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from headrace.backends.base import SamplingSpec, WantedRow
from headrace.backends.layout import BLOCK_LEN
from headrace.backends.reference import EXACT, LOGITS, ReferenceBackend
from headrace.models.program import Add
from headrace.weights.open import open_source
from tests.support.plans import PlanMaker

GOLDEN_FILE = Path(__file__).parents[2] / "golden" / "real_models.npz"
Floats = npt.NDArray[np.float32]


def _check(path: Path, name: str) -> None:
    with np.load(GOLDEN_FILE, allow_pickle=False) as file:
        golden = {
            key.partition("/")[2]: file[key] for key in file.files if key.startswith(f"{name}/")
        }
    prompt = [int(token) for token in golden["prompt"]]
    source = open_source(path)
    num_blocks = source.config.num_layers * (len(prompt) // BLOCK_LEN + 1)
    backend = ReferenceBackend(source, num_blocks=num_blocks, numerics=EXACT)
    maker = PlanMaker(backend.layout, num_blocks)
    wanted = [WantedRow(len(prompt) - 1, SamplingSpec())]
    logits: Floats = np.zeros(0, np.float32)
    states: dict[int, Floats] = {}
    for op, buffers in backend.trace(maker.plan([(maker.sequence(), prompt)], wanted)):
        if isinstance(op, Add):
            states[op.layer] = buffers["x"][-1].copy()
        if LOGITS in buffers:
            logits = buffers[LOGITS][0]
    for layer, state in states.items():
        expected = golden[f"x.{layer}"]
        _assert_close(state[: len(expected)], expected, np.abs(state).max(), f"layer {layer}")
    order = np.argsort(-logits, kind="stable")[: len(golden["top_ids"])]
    assert order.tolist() == golden["top_ids"].tolist()
    _assert_close(logits[order], golden["top_logits"], np.abs(logits).max(), "logits")
    backend.close()
    source.close()


def _assert_close(got: Floats, expected: Floats, largest: float, what: str) -> None:
    assert np.abs(got - expected).max() < 2e-5 * largest, what


@pytest.mark.slow
def test_smollm2(smollm2_path: Path) -> None:
    _check(smollm2_path, "smollm2")


def test_gemma3_past_its_window(gemma3_path: Path) -> None:
    _check(gemma3_path, "gemma3")


def test_qwen25(qwen25_path: Path) -> None:
    _check(qwen25_path, "qwen25")
