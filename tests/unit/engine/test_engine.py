"""The engine over the fake model: each request gets what it gets alone, every block comes back."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.base import RequestOptions, Scheduling
from headrace.engine.order import QueueOrder
from headrace.engine.sampling import SamplingParams, mix64
from headrace.errors import OverloadedError, RequestError
from headrace.kv.lookahead.base import Allocation
from headrace.kv.radix.base import Retention
from tests.support.engine_runs import Recorder, check_preempted, fake_engine, run_alone

WINDOWS = [(0,), (0, 20), (0, 20, 20, 20)]
# Every order, and prompts cut by time as well as by tokens. The clock of these engines is fast: a
# step takes about a tenth of a second, and requests soon wait too long.
schedulings = st.builds(
    Scheduling,
    order=st.sampled_from(QueueOrder),
    patience=st.sampled_from([0.0, 1.15, math.inf]),
    grace_s=st.sampled_from([0.0, 1.0]),
    max_wait_s=st.sampled_from([0.5, 5.0, math.inf]),
    max_partial=st.sampled_from([1, 2, 8]),
    max_passes=st.sampled_from([0, 2, 64]),
    itl_target_s=st.sampled_from([None, 0.0, 0.01, 0.2]),
    allocation=st.sampled_from(Allocation),
)


def _random_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        n=rng.choice([1, 1, 1, 2, 3]),
        max_tokens=rng.choice([0, 1, 2, 5, 17, 40]),
        min_tokens=rng.choice([0, 0, 3]),
        seed=rng.randrange(1 << 40),
        stop=tuple(rng.choice([[], [], ["a"], ["bc", "q"]])),
        stop_token_ids=tuple(rng.choice([[], [], [5, 9]])),
        ignore_eos=rng.random() < 0.3,
        frequency_penalty=rng.choice([0.0, 0.5]),
        logprobs=rng.choice([None, 0, 2]),
        prompt_logprobs=rng.choice([None, None, 1]),
        include_stop_str_in_output=rng.random() < 0.3,
    )


def _random_prompt(rng: random.Random, longest: int) -> list[int]:
    """Most begin like others, with one of two system prompts, say."""
    shared = [rng.choice([7, 8])] * rng.choice([0, 5, 16, 17, 32, 40])
    own = [rng.randrange(2, 64) for _ in range(rng.choice([1, 2, 15, 16, 17, 31, longest]))]
    return (shared + own)[:longest]


def _random_options(rng: random.Random) -> RequestOptions:
    return RequestOptions(
        priority=rng.choice([0, 0, 0, -1, 2]),
        salt=rng.choice(["", "", "tenant"]),
        retention=Retention(rng.choice([0, 50, 50, 100]), rng.choice([None, None, 0.3])),
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    windows=st.sampled_from(WINDOWS),
    num_blocks=st.integers(8, 40),
    chunk=st.sampled_from([1, 5, 16, 32]),
    max_num_seqs=st.sampled_from([3, 8]),
    scheduling=schedulings,
    prefix_cache=st.sampled_from([True, True, False]),
)
def test_random_loads_change_no_output_and_lose_no_block(
    seed: int,
    windows: tuple[int, ...],
    num_blocks: int,
    chunk: int,
    max_num_seqs: int,
    scheduling: Scheduling,
    prefix_cache: bool,
) -> None:
    rng = random.Random(seed)
    engine = fake_engine(
        num_blocks * len(windows),
        windows,
        max_num_seqs=max_num_seqs,
        max_step_tokens=max(chunk, max_num_seqs),
        scheduling=scheduling,
        prefix_cache=prefix_cache,
    )
    recorder, asked = Recorder(), {}
    aborted: set[str] = set()
    for step in range(250):
        if rng.random() < 0.3 and step < 120:
            name = f"r{step}"
            prompt = _random_prompt(rng, 45)
            params = _random_params(rng)
            try:
                engine.add(name, prompt, params, _random_options(rng))
                asked[name] = (prompt, params)
            except RequestError:
                assert len(prompt) + (params.max_tokens or 0) > engine.max_model_len
        if rng.random() < 0.05 and asked:
            name = rng.choice(list(asked))
            engine.abort(name)
            aborted.add(name)
        if rng.random() < 0.05 and asked:
            prompt = asked[rng.choice(list(asked))][0]
            engine.abandon(prompt[:20], [prompt[20:]])
        if engine.has_work():
            events = [e for e in engine.step() if e.request_id not in aborted]
            recorder.take(events)
            engine.check()
    for _ in range(5000):
        if not engine.has_work():
            break
        recorder.take(e for e in engine.step() if e.request_id not in aborted)
        engine.check()
    assert not engine.has_work()
    assert engine.pool.num_available == engine.pool.num_blocks
    for name, (prompt, params) in asked.items():
        if name not in aborted:
            assert recorder.requests[name] == run_alone(prompt, params, windows), name


def test_a_small_pool_preempts_and_the_output_stays() -> None:
    check_preempted(SamplingParams(max_tokens=60, seed=3, ignore_eos=True, logprobs=1))


@pytest.mark.parametrize("prompt_len", [1, 15, 16, 17, 32])
def test_choices_equal_their_seeds_alone(prompt_len: int) -> None:
    prompt = list(range(2, 2 + prompt_len))
    params = SamplingParams(n=4, max_tokens=30, seed=77)
    together = run_alone(prompt, params)
    assert together.seeds == [mix64(77, i) for i in range(4)]
    for i, seed in enumerate(together.seeds):
        alone = run_alone(prompt, SamplingParams(max_tokens=30, seed=seed))
        assert alone.choices[0] == together.choices[i]


def test_a_shared_prompt_is_computed_once_for_all_choices() -> None:
    engine = fake_engine(64, max_num_seqs=8)
    engine.add("r", list(range(2, 34)), SamplingParams(n=4, max_tokens=3, seed=1, ignore_eos=True))
    while engine.has_work():
        engine.step()
    # 32 prompt rows once, then two decode rows for each choice (the first token needs no row).
    assert engine.backend.num_rows == 32 + 4 * 2  # type: ignore[attr-defined]  # the fake counts


def test_the_largest_step_wants_a_row_for_every_choice_too() -> None:
    """A prompt that fills a step, with the logprobs of all its tokens and many choices."""
    engine = fake_engine(64, max_num_seqs=16, max_step_tokens=16)
    params = SamplingParams(n=16, max_tokens=2, seed=1, prompt_logprobs=0, ignore_eos=True)
    prompt = list(range(2, 18))
    engine.add("r", prompt, params)
    recorder = Recorder()
    while engine.has_work():
        recorder.take(engine.step())
    engine.check()
    assert recorder.requests["r"] == run_alone(prompt, params)


def test_prompt_logprobs_have_one_entry_per_prompt_token() -> None:
    for prompt_len in (1, 2, 33):
        for max_tokens in (0, 4):
            params = SamplingParams(max_tokens=max_tokens, seed=1, prompt_logprobs=2)
            record = run_alone(list(range(2, 2 + prompt_len)), params)
            assert len(record.prompt_logprobs) == prompt_len
            assert record.prompt_logprobs[0] is None
            assert [e.token_id for e in record.prompt_logprobs[1:] if e] == list(
                range(3, 2 + prompt_len)
            )


@settings(max_examples=40, deadline=None)
@given(
    prompt_len=st.integers(1, 70),
    start=st.integers(0, 69),
    chunk=st.sampled_from([1, 7, 16, 17, 32]),
    max_tokens=st.sampled_from([0, 1, 4]),
    windows=st.sampled_from(WINDOWS),
)
def test_prompt_logprobs_from_a_position_on_are_the_last_of_all(
    prompt_len: int, start: int, chunk: int, max_tokens: int, windows: tuple[int, ...]
) -> None:
    prompt = [2 + i * 7 % 60 for i in range(prompt_len)]
    params = SamplingParams(max_tokens=max_tokens, seed=1, prompt_logprobs=1)
    whole = run_alone(prompt, params, windows)
    part = msgspec.structs.replace(params, prompt_logprobs_from=start)
    engine = fake_engine(64, windows, max_step_tokens=max(chunk, 8))
    if start >= prompt_len:
        with pytest.raises(RequestError, match="positions count from 0") as caught:
            engine.add("r", prompt, part)
        assert caught.value.param == "prompt_logprobs_from"
        return
    engine.add("r", prompt, part)
    recorder = Recorder()
    while engine.has_work():
        recorder.take(engine.step())
    record = recorder.requests["r"]
    assert record.prompt_start == start
    assert record.prompt_logprobs == whole.prompt_logprobs[start:]
    assert record.choices == whole.choices


def test_only_rows_whose_logprob_is_wanted_have_logits() -> None:
    engine = fake_engine(64)
    params = SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=38)
    engine.add("r", [5] * 40, params)
    while engine.has_work():
        engine.step()
    assert engine.backend.num_wanted == 2  # type: ignore[attr-defined]  # the fake counts


def test_where_prompt_logprobs_begin_needs_prompt_logprobs() -> None:
    with pytest.raises(RequestError, match="ask for those, too"):
        fake_engine(8).add("r", [5, 6], SamplingParams(prompt_logprobs_from=1))


def test_prompts_at_the_limit() -> None:
    engine = fake_engine(64, context_len=40)
    for length, fits in ((38, True), (39, True), (40, False), (41, False)):
        if fits:
            engine.add(f"r{length}", [5] * length, SamplingParams(seed=1, ignore_eos=True))
        else:
            with pytest.raises(RequestError, match="at most 40 tokens") as caught:
                engine.add(f"r{length}", [5] * length, SamplingParams())
            assert caught.value.code == "context_length_exceeded"
    recorder = Recorder()
    while engine.has_work():
        recorder.take(engine.step())
    for length in (38, 39):
        choice = recorder.requests[f"r{length}"].choices[0]
        assert choice.finish_reason == "length"
        assert len(choice.token_ids) == 40 - length


def test_a_prompt_longer_than_the_pool_is_refused_at_the_door() -> None:
    engine = fake_engine(3, context_len=100)
    assert engine.max_model_len == 48
    with pytest.raises(RequestError, match="at most 48 tokens"):
        engine.add("r", [5] * 48, SamplingParams())
    engine.check()


def test_the_queue_is_bounded_and_says_when_to_return() -> None:
    engine = fake_engine(8)
    for i in range(engine.config.max_waiting):
        engine.add(f"r{i}", [5], SamplingParams(max_tokens=1))
    with pytest.raises(OverloadedError, match="queue is full") as caught:
        engine.add("more", [5], SamplingParams(max_tokens=1))
    assert caught.value.status == 429
    assert 1 <= caught.value.retry_after_s <= 60


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 17),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 1.1),
        ("min_p", -1.0),
        ("top_k", -2),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
        ("prompt_logprobs_from", -1),
        ("presence_penalty", 2.5),
        ("frequency_penalty", float("inf")),
        ("repetition_penalty", 0.0),
        ("stop", ("",)),
        ("stop", tuple("abcdefghijklmnopq")),
        ("stop", ("x" * 257,)),
        ("stop_token_ids", (64,)),
        ("logit_bias", {64: 1.0}),
        ("logit_bias", {3: 101.0}),
        ("seed", 1 << 64),
        ("max_tokens", -1),
    ],
)
def test_each_field_out_of_range_is_named(field: str, value: Any) -> None:
    engine = fake_engine(8)
    with pytest.raises(RequestError) as caught:
        engine.add("r", [5], SamplingParams(**{field: value}))
    assert caught.value.param == field
    assert not engine.has_work()


def test_bad_prompts_are_refused() -> None:
    engine = fake_engine(8)
    for prompt in ([], [-1], [64], [5, 1 << 31]):
        with pytest.raises(RequestError):
            engine.add("r", prompt, SamplingParams())
    assert not engine.has_work()


def test_sequences_that_decode_begin_blocks_at_different_times() -> None:
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    engine = fake_engine(40, max_num_seqs=16, max_step_tokens=512, context_len=620)
    for number in range(4):
        engine.add(f"d{number}", [5 + number] * 4, params)
    begun: dict[int, int] = {}
    while engine.has_work():
        engine.step()
        engine.check()
        for seq in engine._running.values():
            if seq.tables.num_blocks_len > 1:
                begun.setdefault(seq.key, seq.computed)
    assert len(set(begun.values())) == len(begun) == 4


@pytest.mark.parametrize("length", range(510, 560, 7))
def test_blocks_taken_early_are_none_that_the_step_needs(length: int) -> None:
    params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    engine = fake_engine(
        44,
        max_num_seqs=16,
        max_step_tokens=640,
        context_len=620,
        scheduling=Scheduling(allocation=Allocation.ON_DEMAND),
    )
    for number in range(6):
        engine.add(f"d{number}", [5 + number] * 14, params)
    engine.step()
    engine.add("long", [9] * length, params)
    while engine.has_work():
        engine.step()
        engine.check()
