"""Forecasts of output lengths against a plain estimate, and what must hold for any history."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kv.lookahead.forecast import (
    EDGES,
    MAX_KEYS,
    PRIOR,
    SCORED,
    Features,
    ForecastScore,
    LengthForecaster,
    bin_of,
    keys_of,
    pinball_loss,
)

LIMIT = 400
HISTORY = st.lists(
    st.tuples(st.integers(1, 300), st.booleans(), st.sampled_from([3, 40])), max_size=40
)


def _learn(
    forecaster: LengthForecaster, history: list[tuple[int, bool, int]], limit: int = LIMIT
) -> None:
    """Outputs of (length, ended by itself, prompt length), one after the other."""
    for length, by_itself, prompt_len in history:
        forecast = forecaster.begin(Features(limit, prompt_len))
        for n in range(0, length, 16):
            forecast.reach(n)
        forecast.end(length, by_itself=by_itself)


def _twin(history: list[tuple[int, bool, int]], features: Features, limit: int) -> list[float]:
    """Kaplan-Meier with shrinkage along the chain, counted from scratch."""
    alive = [1.0]
    for j in range(32):
        share = [(length - 1) * 32 // limit for length, _, _ in history]
        reached = sum(s >= j for s in share)
        ended = sum(e and s == j for s, (_, e, _) in zip(share, history, strict=True))
        alive.append(alive[-1] * (1 - (ended / (reached + 1) if reached else 0.0)))
    edges = [edge for edge in EDGES if edge < limit]
    at = [
        alive[int(x)] + (alive[int(x) + 1] - alive[int(x)]) * (x - int(x))
        for x in (edge * 32 / limit for edge in edges)
    ]
    hazards = [1 - now / before for now, before in zip(at, [1.0, *at], strict=False)]
    for key in keys_of(features):
        seen = [
            (bin_of(length), e)
            for length, e, prompt_len in history
            if key in keys_of(Features(limit, prompt_len))
        ]
        for b, prior in enumerate(hazards):
            reached = sum(s >= b for s, _ in seen)
            ended = sum(s == b and e for s, e in seen)
            hazards[b] = (ended + PRIOR * prior) / (reached + PRIOR)
    survival, left = [], 1.0
    for hazard in hazards:
        left *= 1 - hazard
        survival.append(left)
    return survival


@settings(max_examples=150, deadline=None)
@given(history=HISTORY)
def test_survival_equals_the_plain_estimate(history: list[tuple[int, bool, int]]) -> None:
    forecaster = LengthForecaster()
    _learn(forecaster, history)
    for prompt_len in (3, 40, 1000):
        features = Features(LIMIT, prompt_len)
        forecast = forecaster.begin(features)
        expected = _twin(history, features, LIMIT)
        edges = [edge for edge in EDGES if edge < LIMIT]
        assert [forecast.alive(edge) for edge in edges] == pytest.approx(expected, abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(history=HISTORY, limit=st.sampled_from([1, 2, 16, 17, 300, 5000]), data=st.data())
def test_survival_falls_and_quantiles_rise(
    history: list[tuple[int, bool, int]], limit: int, data: st.DataObject
) -> None:
    forecaster = LengthForecaster()
    _learn(forecaster, history)
    forecast = forecaster.begin(Features(limit))
    alive = [forecast.alive(n) for n in range(min(limit, 700) + 2)]
    assert alive[0] == 1.0
    assert all(0.0 <= b <= a for a, b in pairwise(alive))
    assert forecast.alive(limit) == forecast.alive(limit + 9) == 0.0
    n = data.draw(st.integers(0, limit - 1))
    quantiles = [forecast.quantile(q / 20, n) for q in range(1, 20)]
    assert quantiles == sorted(quantiles)
    assert all(n < x <= limit for x in quantiles)
    for q, x in zip(range(1, 20), quantiles, strict=True):
        if x < limit:
            assert forecast.alive_after(n, x - n) <= 1 - q / 20 + 1e-9
        if x - 1 > n:
            assert forecast.alive_after(n, x - 1 - n) >= 1 - q / 20 - 1e-9


def test_outputs_that_run_while_half_is_forgotten_end_once_each() -> None:
    """They had counted as reaching their bin, and end in it after that counts for half."""
    forecaster, features = LengthForecaster(), Features(LIMIT)
    running = [forecaster.begin(features) for _ in range(8)]
    for forecast in running:
        forecast.reach(200)
    _learn(forecaster, [(5, True, 1)] * 512)
    for forecast in running:
        forecast.end(205, by_itself=True)
    # One that outlives all that were ever seen.
    forecast = forecaster.begin(features)
    alive = [forecast.alive(n) for n in range(LIMIT)]
    assert all(0.0 < b <= a * (1.0 + 1e-9) for a, b in pairwise(alive))
    for n in range(LIMIT):
        forecast.reach(n)
        assert n < forecast.quantile(0.75, n) <= LIMIT


def test_nothing_seen_means_the_limit() -> None:
    forecast = LengthForecaster().begin(Features(1024, 50))
    assert forecast.quantile(0.01) == forecast.quantile(0.99) == 1024
    assert forecast.alive(1023) == 1.0


def test_the_share_of_the_limit_carries_over_to_other_limits() -> None:
    forecaster = LengthForecaster()
    _learn(forecaster, [(100, True, 3)] * 40)
    # Nobody had this limit or prompt before; a quarter of it is what everybody needed.
    forecast = forecaster.begin(Features(4 * LIMIT, 7, kind="tools"))
    assert forecast.quantile(0.5) < LIMIT
    assert forecast.quantile(0.05) > 50


def test_each_kind_of_request_has_lengths_of_its_own() -> None:
    forecaster = LengthForecaster()
    rng = random.Random(3)
    short, long = (Features(1024, n, tenant="t") for n in (20, 700))
    for _ in range(200):
        for features, mean in ((short, 30), (long, 500)):
            length = rng.randrange(mean * 9 // 10, mean * 11 // 10)
            forecast = forecaster.begin(features)
            forecast.reach(0)
            forecast.end(length, by_itself=True)
    assert forecaster.begin(short).quantile(0.9) < 60
    assert 400 < forecaster.begin(long).quantile(0.5) < 600
    # A running output knows that it is not short any more.
    assert forecaster.begin(long).quantile(0.5, 540) > 540


def test_a_prefix_and_a_prompt_seen_before_decide() -> None:
    forecaster = LengthForecaster()
    known = Features(1024, 100, prefix=b"system", prompt=b"again")
    for _ in range(60):
        for features, length in ((known, 200), (Features(1024, 100, prefix=b"other"), 20)):
            forecaster.begin(features).end(length, by_itself=True)
    assert 150 < forecaster.begin(known).quantile(0.5) <= 208
    assert forecaster.begin(Features(1024, 100, prefix=b"other")).quantile(0.5) <= 32


def test_running_outputs_count_before_they_end() -> None:
    """The short ones end first: without those that still run, all would look short."""
    forecaster = LengthForecaster()
    forecasts = [forecaster.begin(Features(1024, 30)) for _ in range(40)]
    for forecast in forecasts[:10]:
        forecast.end(20, by_itself=True)
    for forecast in forecasts[10:]:
        for n in range(0, 320, 16):
            forecast.reach(n)
    median = forecaster.begin(Features(1024, 30)).quantile(0.5)
    assert median > 320


def test_a_renewed_forecast_is_that_of_one_that_begins_now() -> None:
    forecaster, features = LengthForecaster(), Features(LIMIT, 3)
    early = forecaster.begin(features)
    early.reach(0)
    scored = early.quantiles
    _learn(forecaster, [(30 + n, True, 3) for n in range(40)])
    fresh = forecaster.begin(features)
    before = [early.alive(n) for n in range(LIMIT)]
    early.renew()
    after = [early.alive(n) for n in range(LIMIT)]
    assert after == [fresh.alive(n) for n in range(LIMIT)] != before
    assert early.quantiles == scored == (LIMIT, LIMIT)


def test_an_output_that_was_cut_off_says_nothing_about_longer_ones() -> None:
    forecaster = LengthForecaster()
    for _ in range(50):
        forecaster.begin(Features(64, 30)).end(64, by_itself=False)
    assert forecaster.begin(Features(64, 30)).quantile(0.1) == 64
    assert forecaster.begin(Features(1024, 30)).quantile(0.1) == 1024


def test_fixed_lengths_are_known_and_teach_nothing() -> None:
    forecaster = LengthForecaster()
    _learn(forecaster, [(20, True, 3)] * 20)
    before = forecaster.begin(Features(LIMIT, 3)).quantile(0.5)
    fixed = forecaster.begin(Features(200, 3, is_fixed=True))
    assert fixed.quantile(0.01) == fixed.quantile(0.99) == 200
    fixed.end(200, by_itself=False)
    assert forecaster.begin(Features(LIMIT, 3)).quantile(0.5) == before


def test_nobody_ends_before_the_least_length() -> None:
    forecaster = LengthForecaster()
    _learn(forecaster, [(20, True, 3)] * 20)
    assert forecaster.begin(Features(LIMIT, 3, min_tokens=100)).quantile(0.01) > 96


def test_keys_are_bounded_and_the_last_used_stay() -> None:
    forecaster = LengthForecaster()
    often = Features(100, 5, prompt=b"often")
    for i in range(2 * MAX_KEYS):
        forecaster.begin(Features(100, 5, prompt=i))
        if i % 1000 == 0:
            forecaster.begin(often).end(40, by_itself=True)
    assert forecaster.num_keys() <= MAX_KEYS
    assert forecaster.begin(often).quantile(0.5) <= 48


def test_old_outputs_are_forgotten() -> None:
    forecaster = LengthForecaster()
    _learn(forecaster, [(300, True, 3)] * 2000)
    _learn(forecaster, [(50, True, 3)] * 1500)
    assert forecaster.begin(Features(LIMIT, 3)).quantile(0.5) < 100


def test_scores_are_means_of_pinball_loss_and_coverage() -> None:
    forecaster, score = LengthForecaster(), ForecastScore()
    rng = random.Random(5)
    lengths = [rng.randrange(100, 200) for _ in range(1500)]
    for length in lengths:
        forecast = forecaster.begin(Features(1024, 30))
        forecast.end(length, by_itself=True)
        score.add(forecast, length)
    assert score.num_outputs == 1500
    assert score.num_tokens == sum(lengths)
    for q, covered in zip(SCORED, score.covered, strict=True):
        assert abs(covered / 1500 - q) < 0.06
    # A uniform distribution of width 100 has a mean loss of 100 q (1 - q) / 2 at its q-quantile.
    for q, loss in zip(SCORED, score.losses, strict=True):
        assert loss / 1500 == pytest.approx(50 * q * (1 - q), rel=0.35)


def test_pinball_loss() -> None:
    assert pinball_loss(10, 14, 0.9) == pytest.approx(3.6)
    assert pinball_loss(14, 10, 0.9) == pytest.approx(0.4)
