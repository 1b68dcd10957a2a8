"""The arithmetic of select, against the plainest way to say it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headrace.program import scoring

IDS = st.lists(st.integers(0, 3), max_size=8)
SCORES = st.lists(st.sampled_from([-3.0, -2.0, -1.5, 0.0, -math.inf]), min_size=1, max_size=6)
LOGPROBS = st.lists(st.floats(-20, 0), min_size=1, max_size=6)


@given(IDS, IDS)
def test_common_len(first: list[int], second: list[int]) -> None:
    n = scoring.common_len(first, second)
    assert first[:n] == second[:n]
    assert n in (len(first), len(second)) or first[n] != second[n]


@given(SCORES)
def test_the_first_of_the_best_wins(scores: list[float]) -> None:
    assert scoring.best(scores) == scores.index(max(scores))


@given(st.lists(LOGPROBS, min_size=1, max_size=4))
def test_totals_add_from_the_first_to_the_last(logprobs: list[list[float]]) -> None:
    sums = []
    for each in logprobs:
        total = 0.0
        for value in each:
            total += value
        sums.append(total)
    assert scoring.totals(logprobs, normalize=False) == tuple(sums)
    means = tuple(total / len(each) for total, each in zip(sums, logprobs, strict=True))
    assert scoring.totals(logprobs, normalize=True) == means


@given(IDS, st.lists(IDS, max_size=5))
def test_what_is_abandoned_is_all_that_the_kept_does_not_share(
    kept: list[int], others: list[list[int]]
) -> None:
    told = [[*prefix, *tail] for prefix, tails in scoring.abandoned(kept, others) for tail in tails]
    assert sorted(told) == sorted(ids for ids in others if kept[: len(ids)] != ids)
    for prefix, tails in scoring.abandoned(kept, others):
        assert kept[: len(prefix)] == prefix
        for tail in tails:
            assert tail
            assert kept[len(prefix) : len(prefix) + 1] != tail[:1]
