"""The risk of an overflow against the exact distribution of a sum, and its bookkeeping."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.backends.layout import make_layout
from headrace.kv.lookahead.forecast import Features, LengthForecaster
from headrace.kv.lookahead.risk import (
    HORIZONS,
    NOTHING,
    Demand,
    Outlook,
    Sum,
    break_even,
    outlook,
    tail,
)
from headrace.kv.tables import blocks_to_hold

LAYOUTS = [make_layout((0,), 1, 8), make_layout((0, 20), 1, 8), make_layout((0, 9, 9, 9), 1, 8)]


def _forecaster(seed: int) -> LengthForecaster:
    rng, forecaster = random.Random(seed), LengthForecaster()
    for _ in range(rng.randrange(60)):
        forecast = forecaster.begin(Features(600, 10))
        forecast.end(rng.randrange(1, 500), by_itself=rng.random() < 0.9)
    return forecaster


@st.composite
def outlooks(draw: st.DrawFn) -> list[Outlook]:
    forecaster = _forecaster(draw(st.integers(0, 5)))
    demand = Demand(LAYOUTS[draw(st.integers(0, 2))], 32)
    found = []
    for _ in range(draw(st.integers(0, 12))):
        limit = draw(st.integers(1, 700))
        forecast = forecaster.begin(Features(limit, 10))
        length = draw(st.integers(0, limit - 1))
        found.append(outlook(forecast, demand, prompt_len=10, length=length))
    return found


@settings(max_examples=150, deadline=None)
@given(parts=outlooks(), data=st.data())
def test_a_sum_is_the_sum_of_what_is_in_it(parts: list[Outlook], data: st.DataObject) -> None:
    total = Sum(parts)
    order = data.draw(st.permutations(range(len(parts))))
    removed = order[: data.draw(st.integers(0, len(parts)))]
    for i in removed:
        total.remove(parts[i])
    rest = [p for i, p in enumerate(parts) if i not in removed]
    for name in ("alive", "mean", "variance", "third"):
        expected = [sum(getattr(p, name)[h] for p in rest) for h in range(len(HORIZONS))]
        assert getattr(total, name) == expected
        assert getattr(Sum(rest), name) == expected
        assert getattr(total.copy(), name) == expected


@settings(max_examples=200, deadline=None)
@given(parts=outlooks(), num_blocks=st.integers(0, 600), steps=st.floats(0, 3000))
def test_risk_is_a_probability_and_falls_with_the_pool(
    parts: list[Outlook], num_blocks: int, steps: float
) -> None:
    total = Sum(parts)
    risk = total.overflow(NOTHING, num_blocks, steps)
    assert 0.0 <= risk <= 1.0
    assert total.overflow(NOTHING, num_blocks + 1, steps) <= risk
    assert risk <= total.overflow(NOTHING, num_blocks)
    if all(a <= num_blocks for a in total.alive):
        assert risk == 0.0
    if parts:
        assert Sum(parts[1:]).overflow(parts[0], num_blocks, steps) == risk


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 5),
    which=st.integers(0, 2),
    prompt_len=st.integers(1, 100),
    limit=st.integers(1, 700),
    data=st.data(),
)
def test_an_outlook_is_what_its_forecast_says(
    seed: int, which: int, prompt_len: int, limit: int, data: st.DataObject
) -> None:
    forecast = _forecaster(seed).begin(Features(limit, prompt_len))
    layout, length = LAYOUTS[which], data.draw(st.integers(0, limit - 1))
    seen = outlook(forecast, Demand(layout, 32), prompt_len=prompt_len, length=length)
    assert seen.most == blocks_to_hold(layout, prompt_len + limit, 32)
    for i, steps in enumerate(HORIZONS):
        blocks = blocks_to_hold(layout, min(prompt_len + length + steps, prompt_len + limit), 1)
        p = forecast.alive_after(length, steps)
        assert seen.alive[i] == (blocks if length + steps < limit else 0)
        assert seen.mean[i] / 1024 == pytest.approx(p * blocks, abs=blocks / 1024)
        spread = p * (1 - p) * blocks**2
        assert seen.variance[i] / 1024**2 == pytest.approx(spread, abs=blocks**2 / 1000)
        third = spread * (1 - 2 * p) * blocks
        assert seen.third[i] / 1024**3 == pytest.approx(third, abs=blocks**3 / 1000)


def test_shared_blocks_are_not_held_twice_and_choices_are_held_each() -> None:
    forecast = LengthForecaster().begin(Features(100, 64))
    demand = Demand(LAYOUTS[0], 32)
    plain = outlook(forecast, demand, prompt_len=64, length=0)
    shared = outlook(forecast, demand, prompt_len=64, length=0, num_shared=3)
    assert [a - b for a, b in zip(plain.alive, shared.alive, strict=True) if a] == [3] * 4
    assert shared.most == plain.most
    threefold = outlook(forecast, demand, prompt_len=64, length=0, num_choices=3)
    expected = Sum([plain] * 3)
    assert list(threefold.mean) == expected.mean
    assert list(threefold.alive) == expected.alive
    assert threefold.most == 3 * plain.most


def _exact(parts: list[tuple[float, int]], above: int) -> float:
    """P(sum > above) of independent X_i = b with probability p, else 0, by convolution."""
    chances = [1.0]
    for p, b in parts:
        longer = [0.0] * (len(chances) + b)
        for value, chance in enumerate(chances):
            longer[value] += (1 - p) * chance
            longer[value + b] += p * chance
        chances = longer
    return sum(chances[above + 1 :])


@pytest.mark.parametrize("num", [30, 60])
def test_the_tail_is_that_of_the_exact_distribution(num: int) -> None:
    rng = random.Random(num)
    for _ in range(60):
        late = rng.random() < 0.5
        parts = [
            (1 - rng.random() * 0.2 if late else rng.random(), rng.randrange(3, 30))
            for _ in range(num)
        ]
        mean = sum(p * b for p, b in parts)
        variance = sum(p * (1 - p) * b**2 for p, b in parts)
        third = sum(p * (1 - p) * (1 - 2 * p) * b**3 for p, b in parts)
        for z in (-1.0, 0.0, 1.0, 2.0, 2.5):
            above = int(mean + z * math.sqrt(variance))
            found = tail(above + 0.5 - mean, variance, third)
            assert found == pytest.approx(_exact(parts, above), abs=0.03)


def test_the_tail_without_spread_is_a_step() -> None:
    assert tail(0.0, 0.0, 0.0) == 0.0
    assert tail(-1.0, 0.0, 0.0) == 1.0
    assert tail(0.0, 4.0, 0.0) == 0.5
    # Skewed to the left: there is an end that nothing exceeds; to the right, one below.
    assert tail(10.0, 1.0, -1.0) == 0.0
    assert tail(-10.0, 1.0, 1.0) == 1.0


def test_the_horizon_bounds_what_is_looked_at() -> None:
    late = replace(NOTHING, alive=(0, 0, 0, 9, *[0] * 5), mean=(0, 0, 0, 9 << 10, *[0] * 5))
    assert Sum([late]).overflow(NOTHING, 5) == 1.0
    assert Sum([late]).overflow(NOTHING, 5, HORIZONS[3]) == 1.0
    assert Sum([late]).overflow(NOTHING, 5, HORIZONS[3] - 1) == 0.0


def test_break_even_is_where_gain_and_loss_meet() -> None:
    for base_s, row_s, beside, known in ((0.01, 1e-5, 30, 80), (0.02, 2e-4, 50, 1000)):
        steps = break_even(base_s, row_s, beside, known)
        assert steps * base_s / (beside + 1) == pytest.approx(row_s * (known + steps))
    # Rows that cost more than a sequence's share of the base never pay.
    assert break_even(0.002, 0.0005, 30, 80) == math.inf
    assert break_even(0.0, 0.0, 30, 80) == math.inf
