"""The fit of a step's time: exact where steps are exact, never negative, and invertible."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.step_time import (
    NUM_FEATURES,
    StepLoad,
    StepTime,
    StepTimeFit,
    nonnegative_solution,
)

TRUE = StepTime(2e-3, 7e-4, 2e-7, 5e-4, 1e-7)
costs = st.floats(0, 0.1)
models = st.builds(StepTime, costs, costs, costs, costs, costs)


def _random_load(rng: random.Random) -> StepLoad:
    load = StepLoad()
    for _ in range(rng.randint(0, 30)):
        load.add(rng.randint(1, 2000), 1)
    if rng.random() < 0.3 or not load.decode_rows:
        load.add(rng.randint(0, 2000), rng.randint(2, 512))
    return load


def test_a_linear_machine_is_found_whatever_interrupts_it() -> None:
    rng, fit = random.Random(1), StepTimeFit()
    for number in range(3000):
        load = _random_load(rng)
        stopped_s = 30.0 if number % 50 == 0 else 0.0
        fit.observe(load, TRUE.predict(load) + stopped_s)
    assert fit.model is not None
    for _ in range(100):
        load = _random_load(rng)
        assert fit.model.predict(load) == pytest.approx(TRUE.predict(load), rel=0.02)


def test_hours_of_decoding_do_not_forget_prompts() -> None:
    rng, fit = random.Random(2), StepTimeFit()
    for _ in range(200):
        load = _random_load(rng)
        fit.observe(load, TRUE.predict(load))
    for _ in range(20_000):
        load = StepLoad(decode_rows=4, decode_context=rng.randint(40, 4000))
        fit.observe(load, TRUE.predict(load))
    assert fit.model is not None
    assert fit.error < 0.01
    load = StepLoad(4, 1000, 300, 300 * 301 // 2)
    assert fit.model.predict(load) == pytest.approx(TRUE.predict(load), rel=0.02)


def test_the_fit_follows_a_machine_that_slows_down() -> None:
    rng, fit = random.Random(3), StepTimeFit()
    for number in range(4000):
        load = _random_load(rng)
        fit.observe(load, TRUE.predict(load) * (1 if number < 2000 else 3))
    assert fit.model is not None
    load = StepLoad(8, 4000, 128, 128 * 129 // 2)
    assert fit.model.predict(load) == pytest.approx(3 * TRUE.predict(load), rel=0.05)


def test_the_error_is_the_recent_share_that_predictions_missed_by() -> None:
    fit, load = StepTimeFit(), StepLoad(decode_rows=2, decode_context=10)
    assert fit.error == 0.0
    for _ in range(200):
        fit.observe(load, 0.5)
    assert fit.error == pytest.approx(0.0, abs=1e-4)
    fit.observe(load, 1.0)
    assert fit.error == pytest.approx(0.05 * 0.5, rel=0.01)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_times_that_cannot_be_say_nothing(seconds: float) -> None:
    fit = StepTimeFit()
    fit.observe(StepLoad(1, 1), seconds)
    assert fit.model is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(-9, 9), min_size=NUM_FEATURES + 1, max_size=NUM_FEATURES + 1),
        min_size=1,
        max_size=9,
    )
)
def test_the_solution_is_the_best_of_all_sets_of_variables(rows: list[list[int]]) -> None:
    """Against trying every set of variables that may be above zero."""
    a = np.array([row[:-1] for row in rows], dtype=np.float64)
    gram, right = a.T @ a, a.T @ np.array([row[-1] for row in rows], dtype=np.float64)
    ridge = gram + 1e-6 * np.diag(np.diag(gram))

    def cost(x: np.ndarray) -> float:
        return float(0.5 * x @ ridge @ x - right @ x)

    best = 0.0
    used = [i for i in range(NUM_FEATURES) if gram[i, i] > 0]
    for size in range(1, len(used) + 1):
        for chosen in map(list, itertools.combinations(used, size)):
            x = np.zeros(NUM_FEATURES)
            x[chosen] = np.linalg.solve(ridge[np.ix_(chosen, chosen)], right[chosen])
            if (x >= 0).all():
                best = min(best, cost(x))
    found = np.array(nonnegative_solution(gram.tolist(), right.tolist(), [1e-6] * NUM_FEATURES))
    assert (found >= 0).all()
    assert cost(found) == pytest.approx(best, rel=1e-6, abs=1e-6)


@settings(max_examples=300, deadline=None)
@given(models, st.floats(0, 50), st.integers(0, 5000), st.integers(1, 600))
def test_rows_within_a_time_are_the_most_that_fit(
    model: StepTime, seconds: float, start: int, most: int
) -> None:
    rows = model.rows_within(seconds, start, most)
    slack = 1e-9 * (1 + seconds)
    assert 0 <= rows <= most
    assert rows == 0 or model.chunk_s(start, rows) <= seconds + slack
    assert rows == most or model.chunk_s(start, rows + 1) >= seconds - slack


@settings(max_examples=200, deadline=None)
@given(models, st.lists(st.tuples(st.integers(0, 999), st.integers(1, 70)), max_size=6))
def test_rows_add_what_the_prediction_grows_by(
    model: StepTime, parts: list[tuple[int, int]]
) -> None:
    load = StepLoad(1, 5)
    for start, num_rows in parts:
        before = model.predict(load)
        load.add(start, num_rows)
        grown = model.predict(load) - before
        assert grown == pytest.approx(model.rows_s(start, num_rows), rel=1e-6, abs=1e-9)
    for start, num_rows in parts:
        load.add(start, num_rows, -1)
    assert load == StepLoad(1, 5)


def test_the_first_prompt_ever_is_taken_to_cost_what_decodes_do() -> None:
    fit = StepTimeFit()
    for rows in (4, 8, 4, 8):
        fit.observe(StepLoad(rows, 100 * rows), 0.002 * rows)
    assert fit.model is not None
    assert fit.model.prompt_row == pytest.approx(0.002)
    assert fit.model.rows_within(0.02, 0, 512) == 10
    fit.observe(StepLoad(4, 400, 64, 64 * 65 // 2), 0.008 + 64 * 1e-4)
    load = StepLoad(4, 400, 128, 128 * 129 // 2)
    assert fit.model.predict(load) == pytest.approx(0.008 + 128 * 1e-4, rel=0.5)


def test_what_was_foreseen_badly_is_learned_soon() -> None:
    rng, fit = random.Random(4), StepTimeFit()
    for _ in range(1000):
        load = _random_load(rng)
        fit.observe(load, TRUE.predict(load))
    decodes = StepLoad(16, 16 * 300)
    for number in range(400):
        fit.observe(decodes, TRUE.predict(decodes) * (1 if number < 340 else 2))
    assert fit.model is not None
    # 60 steps, where 256 that are foreseen well pass before the next look.
    assert fit.model.predict(decodes) > 1.05 * TRUE.predict(decodes)
