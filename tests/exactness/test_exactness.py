"""Every mechanism is invisible in the output: ids and logprobs, bit for bit, on the default model.

`make test` runs a pairwise cover of the mechanisms, `make test-full` their whole product.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.backends.layout import KV_DTYPES
from headrace.engine.sampling import mix64
from tests.exactness.exact import (
    APART,
    FACTORS,
    FASTEST,
    MAX_STEP_ROWS,
    ExactModel,
    check_row,
    run_together,
    whole_product,
)
from tests.support.cover import Row, pairwise_cover, row_name
from tests.support.engine_runs import Recorder

COVER = pairwise_cover(FACTORS, seed=4, apart=APART)
PRODUCT = [row for row in whole_product(FACTORS) if row not in COVER]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[ExactModel]:
    model = ExactModel(smollm2_path, prompt_len=24, num_output=24)
    yield model
    model.close()


@pytest.mark.parametrize("row", COVER, ids=row_name)
def test_pairwise_cover(model: ExactModel, row: Row) -> None:
    check_row(model, row)


@pytest.mark.full
@pytest.mark.parametrize("row", PRODUCT, ids=row_name)
def test_whole_product(model: ExactModel, row: Row) -> None:
    check_row(model, row)


def test_choices_equal_their_seeds_alone(model: ExactModel) -> None:
    engine = model.engine(model.backend(FASTEST, 2), chunk=MAX_STEP_ROWS)
    prompt, params = model.prompt(0), model.params("sampled", 0, n=3)
    recorder = Recorder()
    engine.add("n", prompt, params)
    for i in range(3):
        engine.add(f"alone{i}", prompt, model.params("sampled", 0, seed=mix64(1000, i)))
    while engine.has_work():
        recorder.take(engine.step())
    for i in range(3):
        assert recorder.requests[f"alone{i}"].choices[0] == recorder.requests["n"].choices[i]
    texts = {tuple(c.token_ids) for c in recorder.requests["n"].choices.values()}
    assert len(texts) == 3, "three seeds that draw the same text prove nothing"


@pytest.mark.parametrize("kv", KV_DTYPES)
def test_choices_that_share_whole_splits_equal_themselves_alone(model: ExactModel, kv: str) -> None:
    """Their rows read the blocks of the prompt together, here two splits of it."""
    engine = model.engine(model.backend(FASTEST, 2, kv), chunk=MAX_STEP_ROWS)
    prompt = [500 + (i * 7919) % 20000 for i in range(530)]
    recorder = Recorder()
    engine.add("n", prompt, model.params("sampled", 0, n=3, max_tokens=4))
    while engine.has_work():
        recorder.take(engine.step())
    for i in range(3):
        params = model.params("sampled", 0, seed=mix64(1000, i), max_tokens=4)
        engine.add(f"alone{i}", prompt, params)
        while engine.has_work():
            recorder.take(engine.step())
        assert recorder.requests[f"alone{i}"].choices[0] == recorder.requests["n"].choices[i]


def test_a_long_prompt_crosses_splits(model: ExactModel) -> None:
    """Prompts around the attention split size, cut at odd places and beside others."""
    prompts = {n: [500 + (i * 7919) % 20000 for i in range(n)] for n in (255, 256, 257, 530)}
    params = model.params("greedy", 0, max_tokens=4, prompt_logprobs=1)
    alone = {}
    backend = model.backend(FASTEST, 2)
    for n, prompt in prompts.items():
        engine = model.engine(backend, chunk=MAX_STEP_ROWS)
        engine.add("r", prompt, params)
        recorder = Recorder()
        while engine.has_work():
            recorder.take(engine.step())
        alone[n] = recorder.requests["r"]
    engine = model.engine(backend, chunk=101)
    recorder = Recorder()
    for n, prompt in prompts.items():
        engine.add(str(n), prompt, params)
    while engine.has_work():
        recorder.take(engine.step())
    for n in prompts:
        assert recorder.requests[str(n)] == alone[n]


def test_requests_of_all_kinds_share_a_batch(model: ExactModel) -> None:
    """Greedy, sampled, filtered and penalized requests beside each other equal themselves alone."""
    engine = model.engine(model.backend(FASTEST, 2), chunk=64)
    recorder = Recorder()
    kinds = ("greedy", "sampled", "filtered", "penalized")
    for index, kind in enumerate(kinds):
        engine.add(kind, model.prompt(index), model.params(kind, index))
    while engine.has_work():
        recorder.take(engine.step())
    for index, kind in enumerate(kinds):
        assert (
            recorder.requests[kind]
            == run_together(
                model.engine(model.backend(FASTEST, 2), chunk=512), model, kind, [index]
            )[index]
        )
