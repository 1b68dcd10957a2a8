"""The exactness suite on the larger test models: windows, qk-norm, biases, mixed packings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exactness.exact import (
    FACTORS,
    FASTEST,
    FLOAT_ACTIVATIONS,
    ExactModel,
    check_row,
    check_scalar,
    whole_product,
)
from tests.support.cover import Row, pairwise_cover, row_name

# The largest batch takes minutes a row on these models: it is in the whole product.
FAST = {**FACTORS, "kernels": (FASTEST, FLOAT_ACTIVATIONS), "batch": ("alone", "crowd")}
COVER = pairwise_cover(FAST, seed=7)
PRODUCT = [row for row in whole_product(FACTORS) if row not in COVER]


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Iterator[ExactModel]:
    # Crosses the window of 512 while it decodes, so that window blocks are freed and recomputed.
    model = ExactModel(gemma3_path, prompt_len=500, num_output=32)
    yield model
    model.close()


@pytest.fixture(scope="module")
def qwen25(qwen25_path: Path) -> Iterator[ExactModel]:
    model = ExactModel(qwen25_path, prompt_len=24, num_output=24)
    yield model
    model.close()


@pytest.mark.parametrize("row", COVER, ids=row_name)
def test_gemma3_pairwise_cover(gemma3: ExactModel, row: Row) -> None:
    check_row(gemma3, row)


@pytest.mark.parametrize("row", COVER, ids=row_name)
def test_qwen25_pairwise_cover(qwen25: ExactModel, row: Row) -> None:
    check_row(qwen25, row)


def test_gemma3_scalar_table(gemma3_path: Path) -> None:
    check_scalar(gemma3_path)


def test_qwen25_scalar_table(qwen25_path: Path) -> None:
    check_scalar(qwen25_path)


@pytest.mark.full
@pytest.mark.parametrize("row", PRODUCT, ids=row_name)
def test_gemma3_whole_product(gemma3: ExactModel, row: Row) -> None:
    check_row(gemma3, row)


@pytest.mark.full
@pytest.mark.parametrize("row", PRODUCT, ids=row_name)
def test_qwen25_whole_product(qwen25: ExactModel, row: Row) -> None:
    check_row(qwen25, row)
