"""Which requests are remembered for having been in dead workers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.sampling import SamplingParams
from headrace.gateway.poison import MAX_DEATHS, PoisonList, digest_of


def test_two_deaths_and_a_success() -> None:
    poison = PoisonList()
    assert poison.is_empty
    assert poison.note_death(b"a", 0.0) == 1
    assert poison.note_death(b"a", 1.0) == 2 == MAX_DEATHS
    assert poison.num_deaths(b"a", 2.0) == 2
    assert poison.num_deaths(b"b", 2.0) == 0
    poison.note_success(b"a")
    assert poison.num_deaths(b"a", 2.0) == 0
    assert poison.is_empty


def test_deaths_are_forgotten_in_time() -> None:
    poison = PoisonList()
    poison.note_death(b"a", 0.0)
    assert poison.num_deaths(b"a", 599.0) == 1
    assert poison.num_deaths(b"a", 601.0) == 0
    assert poison.note_death(b"a", 601.0) == 1


def test_the_list_is_bounded() -> None:
    poison = PoisonList()
    for i in range(5000):
        poison.note_death(i.to_bytes(8), float(i) / 100)
    assert poison.num_deaths((4999).to_bytes(8), 50.0) == 1
    assert poison.num_deaths((0).to_bytes(8), 50.0) == 0


@given(st.lists(st.integers(0, 1 << 31), min_size=1, max_size=9), st.integers(0, (1 << 64) - 1))
def test_a_digest_ignores_only_the_seed(prompt: list[int], seed: int) -> None:
    digest = digest_of(prompt, SamplingParams(seed=seed))
    assert digest == digest_of(prompt, SamplingParams())
    assert digest != digest_of([*prompt, 1], SamplingParams())
    assert digest != digest_of(prompt, SamplingParams(temperature=0.5))
