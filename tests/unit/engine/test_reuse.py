"""The engine with its prefix cache: what is computed, what is told of it, and no bit changes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.backends.base import StepPlan, StepResult
from headrace.engine.base import ChoiceDelta, RequestDone, RequestFailed, RequestOptions
from headrace.engine.engine import Engine
from headrace.engine.sampling import SamplingParams
from headrace.kv.radix.base import Retention
from headrace.kv.radix.tree import MIN_TAIL_LEN
from tests.support.engine_runs import Recorder, RequestRecord, fake_engine, run_alone
from tests.support.fake_model import FakeBackend

WINDOWS = [(0,), (0, 20), (0, 20, 20, 20)]
PARAMS = SamplingParams(max_tokens=4, seed=1, ignore_eos=True, logprobs=1)


def _prompt(length: int, first: int = 2) -> list[int]:
    return [2 + (first + 7 * i) % 60 for i in range(length)]


@dataclasses.dataclass
class Ran:
    """What came of one request."""

    record: RequestRecord
    done: RequestDone
    num_rows: int


def _run(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams = PARAMS,
    options: RequestOptions | None = None,
) -> Ran:
    """One request, alone in an engine that is checked after every step."""
    backend = engine.backend
    assert isinstance(backend, FakeBackend)
    before, recorder, done = backend.num_rows, Recorder(), None
    name = f"r{before}"
    engine.add(name, prompt, params, options or RequestOptions())
    while engine.has_work():
        events = engine.step()
        engine.check()
        recorder.take(events)
        done = next((e for e in events if isinstance(e, RequestDone)), done)
    assert done is not None
    return Ran(recorder.requests[name], done, backend.num_rows - before)


def _give_back_all(engine: Engine) -> None:
    """At idle the cache alone has blocks, and gives back each of them."""
    assert not engine.has_work()
    engine.check()
    pool, cache = engine.pool, engine._reuse.cache
    assert cache is not None
    num_idle = pool.num_idle
    assert cache.clear() == num_idle > 0
    assert pool.num_free == pool.num_blocks


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 19, 20, 31, 32, 33, 48, 50])
def test_a_prompt_that_was_computed_is_not_computed_again(
    length: int, windows: tuple[int, ...]
) -> None:
    engine = fake_engine(64, windows)
    prompt = _prompt(length)
    cold, warm = _run(engine, prompt), _run(engine, prompt)
    alone = run_alone(prompt, PARAMS, windows)
    assert cold.record == warm.record == alone
    # All but the last token, in whole blocks and a tail that is worth a copy. (The first request
    # has left its output's KV behind, too: what is found ends where the limit is.)
    rest = (length - 1) % 16
    found = length - 1 - (rest if rest < MIN_TAIL_LEN else 0)
    assert (cold.done.num_cached, warm.done.num_cached) == (0, found)
    assert (cold.num_rows, warm.num_rows) == (length + 3, length + 3 - found)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("shared", [1, 3, 4, 15, 16, 17, 20, 31, 32, 33, 47, 48, 49])
@pytest.mark.parametrize("own", [1, 16, 17])
def test_prompts_that_part_anywhere_find_what_they_have_in_common(
    shared: int, own: int, windows: tuple[int, ...]
) -> None:
    engine = fake_engine(64, windows, max_step_tokens=64)
    first, second = [_prompt(shared) + [other] * own for other in (62, 63)]
    _run(engine, first)
    ran = _run(engine, second)
    assert ran.record == run_alone(second, PARAMS, windows)
    found = min(shared, len(second) - 1)
    found -= found % 16 if found % 16 < MIN_TAIL_LEN else 0
    assert (ran.done.num_cached, ran.num_rows) == (found, len(second) - found + 3)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=2, max_size=6),
    shared=st.integers(0, 50),
    windows=st.sampled_from(WINDOWS),
    chunk=st.sampled_from([1, 7, 16, 17, 32]),
    num_blocks=st.integers(7, 20),
    n=st.integers(1, 3),
)
def test_a_pool_that_forgets_some_of_it_changes_nothing(
    lengths: list[int],
    shared: int,
    windows: tuple[int, ...],
    chunk: int,
    num_blocks: int,
    n: int,
) -> None:
    """One after another, so that each finds what the pool could keep: partly evicted prefixes."""
    engine = fake_engine(
        num_blocks * len(windows), windows, max_num_seqs=3, max_step_tokens=max(chunk, 3)
    )
    params = SamplingParams(max_tokens=6, seed=5, n=n, logprobs=0)
    for index, length in enumerate(lengths * 2):
        prompt = (_prompt(shared) + _prompt(length, index % len(lengths)))[:60]
        ran = _run(engine, prompt, params)
        assert ran.record == run_alone(prompt, params, windows)
        assert ran.done.num_cached < len(prompt)


def test_answers_are_kept_for_the_next_turn() -> None:
    engine = fake_engine(64)
    first = _run(engine, _prompt(20), SamplingParams(max_tokens=30, seed=1, ignore_eos=True))
    turn = _prompt(20) + first.record.choices[0].token_ids + [5, 6, 7]
    # The KV of the last token was never written: 20 + 29 positions are there.
    assert _run(engine, turn).done.num_cached == 48


@pytest.mark.parametrize("start", [0, 1, 2, 16, 17, 18, 33, 39])
def test_rows_whose_logprobs_are_wanted_are_computed_again(start: int) -> None:
    engine = fake_engine(64)
    params = SamplingParams(
        max_tokens=2, seed=1, ignore_eos=True, prompt_logprobs=1, prompt_logprobs_from=start
    )
    prompt = _prompt(40)
    _run(engine, prompt, params)
    warm = _run(engine, prompt, params)
    assert warm.record == run_alone(prompt, params)
    assert warm.record.prompt_start == start
    limit = max(0, start - 1)
    tail = limit % 16
    assert warm.done.num_cached == limit - (tail if tail < MIN_TAIL_LEN else 0)
    # Without them nothing keeps it from finding all.
    assert _run(engine, prompt).done.num_cached == 39


def test_a_request_for_no_token_runs_one_row() -> None:
    engine = fake_engine(64)
    params = SamplingParams(max_tokens=0)
    _run(engine, _prompt(40), params)
    warm = _run(engine, _prompt(40), params)
    assert (warm.done.num_cached, warm.num_rows) == (39, 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a", "b"),
        ("", "a"),
        ("a", "a\0"),
        ("fake", ""),
        ("RootKey", "0"),
        ("a", "A"),
        ("\u00e9", "e\u0301"),
    ],
)
def test_salts_never_share(one: str, other: str) -> None:
    engine = fake_engine(64)
    for salt, found in ((one, 0), (other, 0), (one, 39), (other, 39)):
        ran = _run(engine, _prompt(40), PARAMS, RequestOptions(salt=salt))
        assert ran.done.num_cached == found
        assert ran.record == run_alone(_prompt(40), PARAMS)


def test_what_was_kept_for_a_time_goes_with_it() -> None:
    engine = fake_engine(64)
    options = RequestOptions(retention=Retention(ttl_s=3.0))
    _run(engine, _prompt(40), PARAMS, options)
    assert _run(engine, _prompt(40), PARAMS, options).done.num_cached == 39
    for number in range(40):  # each takes some ticks of the clock
        _run(engine, _prompt(2, number))
    assert _run(engine, _prompt(40), PARAMS).done.num_cached == 0


def test_an_engine_that_nobody_steps_forgets_on_time() -> None:
    """It says when, and keeps what has longer."""
    engine = fake_engine(64)
    now = 0.0
    engine._clock = lambda: now
    assert engine.expire() == math.inf
    for number, ttl_s in enumerate((3.0, 9.0)):
        _run(
            engine, _prompt(40, 2 + number), PARAMS, RequestOptions(retention=Retention(50, ttl_s))
        )
    kept = engine.stats.num_cached_blocks
    now = 1.0
    assert (engine.expire(), engine.stats.num_cached_blocks) == (2.0, kept)
    now = 3.0
    assert (engine.expire(), engine.stats.num_cached_blocks) == (6.0, kept // 2)
    now = 9.0
    assert (engine.expire(), engine.stats.num_cached_blocks) == (math.inf, 0)


def test_choices_share_a_found_prompt() -> None:
    engine = fake_engine(64)
    _run(engine, _prompt(40))
    params = SamplingParams(n=4, max_tokens=20, seed=9, ignore_eos=True)
    ran = _run(engine, _prompt(40), params)
    assert ran.record == run_alone(_prompt(40), params)
    assert (ran.done.num_cached, ran.num_rows) == (39, 1 + 4 * 19)
    again = _run(engine, _prompt(40), params)
    assert again.record == ran.record


def test_a_preempted_sequence_finds_its_own_kv_and_does_not_call_it_a_hit() -> None:
    engine = fake_engine(12, max_num_seqs=4)
    params = SamplingParams(max_tokens=60, seed=3, ignore_eos=True, logprobs=1)
    prompts = [[10 + i] * 20 for i in range(4)]
    for i, prompt in enumerate(prompts):
        engine.add(f"r{i}", prompt, params)
    recorder, dones = Recorder(), []
    while engine.has_work():
        events = engine.step()
        engine.check()
        recorder.take(events)
        dones += [e for e in events if isinstance(e, RequestDone)]
    assert recorder.num_preemptions > 0
    assert [done.num_cached for done in dones] == [0] * 4
    for i, prompt in enumerate(prompts):
        assert recorder.requests[f"r{i}"] == run_alone(prompt, params)


def test_num_cached_is_what_was_never_computed() -> None:
    """Found at first, lost while it was preempted, computed then: not cached."""
    engine = fake_engine(64)
    _run(engine, _prompt(40))
    engine.add("r", _prompt(40), PARAMS)
    engine.step()
    (seq,) = engine._running.values()
    assert seq.request.num_cached == 39
    del engine._running[seq.key]
    engine._preempt(seq)
    assert engine._reuse.cache is not None
    engine._reuse.cache.evict(2)
    done = None
    while engine.has_work():
        done = next((e for e in engine.step() if isinstance(e, RequestDone)), done)
    assert done is not None
    assert done.num_cached == 16


def test_an_abandoned_tail_goes_before_what_is_older() -> None:
    engine = fake_engine(9)
    one = SamplingParams(max_tokens=1, seed=1)
    _run(engine, _prompt(32, 1), one)
    _run(engine, _prompt(48, 2), one)
    engine.abandon(_prompt(16, 2), [_prompt(48, 2)[16:]])
    _run(engine, _prompt(80, 3), one)  # makes room for six of nine blocks: four are free
    assert _run(engine, _prompt(32, 1), one).done.num_cached == 31
    engine = fake_engine(9)
    _run(engine, _prompt(32, 1), one)
    _run(engine, _prompt(48, 2), one)
    _run(engine, _prompt(80, 3), one)
    assert _run(engine, _prompt(32, 1), one).done.num_cached < 31


class _Counted(Sequence[int]):
    """Ids that count how often they are read."""

    def __init__(self, ids: list[int]) -> None:
        self.ids, self.num_reads = ids, 0

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        self.num_reads += 1
        return self.ids[index]


def test_a_hint_costs_its_length_and_not_more() -> None:
    """The tails may be a thousand, and no engine runs meanwhile."""
    engine = fake_engine(64)
    prefix = _Counted([5] * 40)
    engine.abandon(prefix, [[i] for i in range(9)])
    assert prefix.num_reads <= len(prefix) + 1
    prefix = _Counted([5] * engine.max_model_len)
    engine.abandon(prefix, [[i] for i in range(9)])
    assert prefix.num_reads == 0


def test_a_failed_step_leaves_no_block_that_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that continues a tail copies it in its first step. If that fails, it is copied in
    the next; if the request ends instead, its copy is not kept."""
    engine = fake_engine(64)
    prompt = _prompt(22)
    _run(engine, prompt, SamplingParams(max_tokens=0))

    def fail(plan: StepPlan) -> StepPlan:
        assert plan.copies
        raise OSError

    for name in ("ends", "goes on"):
        engine.add(name, prompt, PARAMS)
        with monkeypatch.context() as patch:
            patch.setattr(engine.backend, "submit", fail)
            with pytest.raises(OSError):
                engine.step()
        engine.check()
        if name == "ends":
            engine.abort(name)
            engine.check()
    recorder = Recorder()
    while engine.has_work():
        recorder.take(engine.step())
        engine.check()
    assert recorder.requests["goes on"] == run_alone(prompt, PARAMS)
    assert _run(engine, prompt).record == run_alone(prompt, PARAMS)


def test_a_choice_that_leaves_before_its_tail_was_copied_keeps_none() -> None:
    """Its block holds nothing yet, and nobody else has given the cache what it should hold."""
    engine = fake_engine(64)
    prompt, params = _prompt(24), SamplingParams(n=2, max_tokens=8, seed=3, ignore_eos=True)
    engine.add("r", prompt, params)
    recorder = Recorder()
    recorder.take(engine.step())
    _, twin = engine._running.values()
    assert twin.tables.pending_copies
    engine._preempt(engine._running.pop(twin.key))
    engine.check()
    while engine.has_work():
        recorder.take(engine.step())
        engine.check()
    assert recorder.requests["r"] == run_alone(prompt, params)


def test_nothing_is_kept_of_a_step_without_finite_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake_engine(64)
    collect = engine.backend.collect

    def failing(handle: object) -> StepResult:
        result = collect(handle)
        return StepResult([msgspec.structs.replace(row, failed=True) for row in result.rows])

    with monkeypatch.context() as patch:
        patch.setattr(engine.backend, "collect", failing)
        engine.add("r", _prompt(20), PARAMS)
        (event,) = engine.step()
    assert isinstance(event, RequestFailed)
    engine.check()
    assert _run(engine, _prompt(20)).done.num_cached == 0


def test_preempted_sequences_that_share_all_blocks_do_not_stop_the_engine() -> None:
    """None of them would free a block alone, so preempting all of them seems to free nothing."""
    engine = fake_engine(4, max_num_seqs=4, context_len=64)
    params = SamplingParams(n=3, max_tokens=30, seed=4, ignore_eos=True)
    prompt = _prompt(32)
    engine.add("r", prompt, params)
    recorder = Recorder()
    for _ in range(1000):
        if not engine.has_work():
            break
        recorder.take(engine.step())
        engine.check()
    assert recorder.requests["r"] == run_alone(prompt, params)


def test_without_a_cache_nothing_is_kept() -> None:
    engine = fake_engine(64, prefix_cache=False)
    assert [_run(engine, _prompt(40)).done.num_cached for _ in range(2)] == [0, 0]
    assert engine.pool.num_free == 64
    engine.abandon(_prompt(3), [[1]])


def test_first_tokens_come_from_a_hit_in_one_step() -> None:
    engine = fake_engine(64, max_step_tokens=16)
    _run(engine, _prompt(80), SamplingParams(max_tokens=0))
    engine.add("r", _prompt(80), PARAMS)
    assert any(isinstance(event, ChoiceDelta) for event in engine.step())
    engine.abort("r")
    _give_back_all(engine)
