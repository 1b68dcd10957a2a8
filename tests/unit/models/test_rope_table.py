"""Rope tables against transformers' own (recorded) and against the formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.models.build import rope_table
from headrace.models.config import RopeConfig
from headrace.models.registry import build_program
from tests.golden.cases import CASES, GOLDEN_FILE, Case
from tests.support.make_model import Shape
from tests.support.sources import model_config

LLAMA3 = RopeConfig(
    500000.0,
    128,
    False,
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_len=8192,
)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_equals_transformers(case: Case) -> None:
    arguments = {k: v for k, v in case.arguments.items() if k not in ("seed", "tokenizer")}
    program = build_program(model_config(Shape(**arguments), gguf=False))
    with np.load(GOLDEN_FILE, allow_pickle=False) as golden:
        for index, rope in enumerate(program.ropes):
            expected = golden[f"{case.name}/inv_freq.{index}"]
            np.testing.assert_allclose(np.array(rope.inv_freq), expected, rtol=2e-6)
        assert f"{case.name}/inv_freq.{len(program.ropes)}" not in golden.files


def test_llama3_scaling_has_three_bands() -> None:
    plain = rope_table(RopeConfig(500000.0, 128, False)).inv_freq
    scaled = rope_table(LLAMA3).inv_freq
    assert len(scaled) == 64
    for before, after in zip(plain, scaled, strict=True):
        wavelength = 2 * math.pi / before
        if wavelength < 8192 / 4:
            assert after == before
        elif wavelength > 8192:
            assert after == before / 8
        else:
            assert before / 8 < after < before
    # The bands are all there, and frequencies still fall.
    assert scaled[0] == plain[0]
    assert scaled[-1] == plain[-1] / 8
    assert list(scaled) == sorted(scaled, reverse=True)


def test_factors_of_a_file_divide() -> None:
    plain = RopeConfig(10000.0, 8, True)
    table = rope_table(plain, (1.0, 2.0, 4.0, 8.0))
    assert table.interleaved
    assert table.inv_freq == tuple(
        f / d for f, d in zip(rope_table(plain).inv_freq, (1.0, 2.0, 4.0, 8.0), strict=True)
    )


def test_factors_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="one entry per rotated pair"):
        rope_table(RopeConfig(10000.0, 8, True), (1.0, 2.0))


def test_linear_scaling_divides_every_frequency() -> None:
    plain = rope_table(RopeConfig(10000.0, 64, False)).inv_freq
    scaled = rope_table(RopeConfig(10000.0, 64, False, "linear", factor=8.0)).inv_freq
    assert scaled == tuple(f / 8 for f in plain)
