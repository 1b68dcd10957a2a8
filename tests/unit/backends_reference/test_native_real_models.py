"""The native backend on the real models: near float32 on the dequantized weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy import BackendSystem, ReferenceSystem, compare, windows_of
from benchmarks.text import made_text
from headrace.backends.cpu import CpuBackend
from headrace.backends.reference import EXACT, ReferenceBackend
from headrace.bench.accuracy import num_blocks
from headrace.engine.load import freq_factors
from headrace.models.registry import build_program
from headrace.models.views import with_logits
from headrace.weights.open import open_source

NUM_TOKENS = 96


def _check(path: Path, max_mean_kl: float) -> None:
    """Rounding activations to 8 bits costs this much; llama.cpp's cost on SmolLM2 is 0.0026."""
    source = open_source(path)
    (window,) = windows_of(source, made_text(50), NUM_TOKENS, NUM_TOKENS)
    blocks = num_blocks(source, NUM_TOKENS)
    layout = ReferenceBackend(source, num_blocks=0).layout
    program = with_logits(build_program(source.config, freq_factors(source)))
    native = BackendSystem(
        "native",
        CpuBackend.load(
            source, program, kv_bytes=blocks * layout.block_bytes, max_step_rows=NUM_TOKENS
        ),
    )
    got = native.logits(window)
    native.close()
    truth = ReferenceSystem("truth", source, NUM_TOKENS, EXACT)
    row = compare(0, "native", truth.logits(window), got, 0.0)
    truth.close()
    source.close()
    assert np.isfinite(got).all()
    assert row.mean_kl < max_mean_kl
    assert row.agreements >= 0.94 * NUM_TOKENS


@pytest.mark.slow
def test_smollm2(smollm2_path: Path) -> None:
    _check(smollm2_path, 0.003)


def test_gemma3(gemma3_path: Path) -> None:
    _check(gemma3_path, 0.003)


def test_qwen25(qwen25_path: Path) -> None:
    _check(qwen25_path, 0.001)
