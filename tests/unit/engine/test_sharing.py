"""Prompts that begin alike and wait together are computed once; and nobody waits for ever."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine import reuse
from headrace.engine.base import RequestDone, RequestOptions, Scheduling
from headrace.engine.engine import Engine
from headrace.engine.order import QueueOrder
from headrace.engine.request import SequenceState
from headrace.engine.sampling import SamplingParams
from headrace.kv.lookahead.base import Allocation
from tests.support.engine_runs import Recorder, fake_engine, run_alone
from tests.support.fake_model import FakeBackend

PARAMS = SamplingParams(max_tokens=3, seed=1, ignore_eos=True, logprobs=1)


def _prompt(length: int, first: int = 2) -> list[int]:
    return [2 + (first + 7 * i) % 60 for i in range(length)]


def _rows(engine: Engine) -> int:
    assert isinstance(engine.backend, FakeBackend)
    return engine.backend.num_rows


@pytest.mark.parametrize("order", QueueOrder)
@pytest.mark.parametrize("chunk", [16, 32, 128])
@pytest.mark.parametrize("windows", [(0,), (0, 20)])
def test_what_waits_together_is_computed_once(
    order: QueueOrder, chunk: int, windows: tuple[int, ...]
) -> None:
    engine = fake_engine(
        128, windows, max_num_seqs=8, max_step_tokens=chunk, scheduling=Scheduling(order=order)
    )
    prompts = {f"r{i}": _prompt(64) + [10 + i] * 16 for i in range(8)}
    for name, prompt in prompts.items():
        engine.add(name, prompt, PARAMS)
    recorder, cached = Recorder(), []
    while engine.has_work():
        events = engine.step()
        engine.check()
        recorder.take(events)
        cached += [e.num_cached for e in events if isinstance(e, RequestDone)]
    assert _rows(engine) == 64 + 8 * (16 + 2)
    assert sorted(cached) == [0] + [64] * 7
    for name, prompt in prompts.items():
        assert recorder.requests[name] == run_alone(prompt, PARAMS, windows)


def test_who_comes_while_a_prefix_is_computed_waits_for_it() -> None:
    engine = fake_engine(128, max_step_tokens=16)
    engine.add("first", _prompt(64) + [10] * 16, PARAMS)
    engine.step()
    engine.add("second", _prompt(64) + [11] * 16, PARAMS)
    engine.add("other", _prompt(20, 5), PARAMS)
    for _ in range(3):
        engine.step()
        engine.check()
        # Nobody who needs something else waits with it.
        assert {s.request.request_id for s in engine._waiting.values()} <= {"second", "other"}
    while engine.has_work():
        engine.step()
    assert _rows(engine) == (80 + 2) + (16 + 2) + (20 + 2)


def test_nobody_waits_for_another_salt_or_for_rows_that_it_must_run() -> None:
    engine = fake_engine(128, max_step_tokens=128)
    prompt = _prompt(32)
    engine.add("one", prompt, PARAMS, RequestOptions(salt="one"))
    engine.add("other", prompt, PARAMS, RequestOptions(salt="other"))
    scored = SamplingParams(max_tokens=0, prompt_logprobs=0)
    engine.add("scored", prompt, scored, RequestOptions(salt="one"))
    engine.step()
    assert not list(engine._waiting.values())
    assert _rows(engine) == 3 * 32


def test_who_waits_goes_on_when_the_other_is_aborted() -> None:
    engine = fake_engine(128, max_step_tokens=16)
    engine.add("first", _prompt(64) + [10] * 16, PARAMS)
    engine.add("second", _prompt(64) + [11] * 16, PARAMS)
    engine.step()
    engine.step()
    engine.abort("first")
    engine.check()
    recorder = Recorder()
    while engine.has_work():
        recorder.take(engine.step())
        engine.check()
    assert recorder.requests["second"] == run_alone(_prompt(64) + [11] * 16, PARAMS)
    assert _rows(engine) == 80 + 2


def _waiting_and_writing() -> tuple[SequenceState, reuse._Writer]:
    engine = fake_engine(64)
    for i in range(2):
        engine.add(f"r{i}", _prompt(48) + [10 + i] * 16, PARAMS)
    second, first = engine._waiting.values()
    return second, reuse._Writer(first, 16, is_running=True)


def test_waiting_for_what_does_not_come_ends() -> None:
    seq, writer = _waiting_and_writing()
    num_waits = 0
    while reuse._waits_for(seq, writer):
        num_waits += 1
        assert num_waits <= reuse.MAX_IDLE_WAITS


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), min_size=500, max_size=500))
def test_waiting_is_bounded_however_it_goes_on(progress: list[bool]) -> None:
    seq, writer = _waiting_and_writing()
    waits = 0
    for has_computed in progress:
        writer.seq.computed += has_computed
        waits += reuse._waits_for(seq, writer)
    assert waits <= len(seq.tokens) + reuse.MAX_IDLE_WAITS


def test_more_than_are_looked_for_in_a_step_find_all_the_same() -> None:
    """Beyond the first some are planned as if nothing had been found since they were looked for."""
    engine = fake_engine(512, max_num_seqs=48, max_step_tokens=256)
    prompts = {f"r{i}": _prompt(64) + [10 + i] * 8 for i in range(40)}
    for name, prompt in prompts.items():
        engine.add(name, prompt, PARAMS)
    recorder = Recorder()
    while engine.has_work():
        recorder.take(engine.step())
        engine.check()
    assert _rows(engine) == 64 + 40 * (8 + 2)
    for name, prompt in prompts.items():
        assert recorder.requests[name] == run_alone(prompt, PARAMS)


def test_one_that_was_not_looked_for_takes_no_more_than_was_planned() -> None:
    """It is the first that fits, as the last blocks come free, and could continue a tail in them:
    for the copy there is no block."""
    engine = fake_engine(
        15,
        max_num_seqs=40,
        max_step_tokens=64,
        context_len=400,
        scheduling=Scheduling(allocation=Allocation.ON_DEMAND),
    )
    recorder = Recorder()

    def add(name: str, prompt: list[int], max_tokens: int) -> None:
        engine.add(name, prompt, SamplingParams(max_tokens=max_tokens, seed=1, ignore_eos=True))

    add("long", _prompt(178), 14)
    for _ in range(4):
        recorder.take(engine.step())
    add("writer", _prompt(24, 5) + [3] * 20, 2)
    for i in range(reuse.LOOKS_PER_STEP):
        add(f"large{i}", _prompt(80, 20 + i), 1)
    add("small", _prompt(24, 5) + [4] * 16, 1)
    for _ in range(3):
        recorder.take(engine.step())
        engine.check()
    assert recorder.num_cached["small"] == 16
    while engine.has_work():
        recorder.take(engine.step())
    assert all(record.ended and not record.failed for record in recorder.requests.values())


class _Watched(array):  # type: ignore[type-arg]  # which it takes only in newer versions
    """Tokens that know the longest part that was taken of them."""

    longest = 0

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        if isinstance(index, slice):
            self.longest = max(self.longest, len(part))
        return part


def test_prompts_that_part_somewhere_are_not_compared_as_a_whole() -> None:
    """However many wait behind one long prefix: that would be all of it for each pair of them."""
    engine = fake_engine(64)
    for i in range(8):
        engine.add(f"r{i}", _prompt(64) + [10 + i] * 20, PARAMS)
    seqs = list(engine._waiting.values())
    writers = reuse._Writers()
    for seq in seqs:
        seq.tokens = _Watched("i", seq.tokens)
        assert writers.find(seq) is None
        writers.add(seq, 64, is_running=False)
    assert all(isinstance(s.tokens, _Watched) and s.tokens.longest <= 16 for s in seqs)
    found = [writers.find(seq) for seq in seqs]
    assert [writer and writer.seq for writer in found] == seqs


@pytest.mark.parametrize("order", [QueueOrder.LPM, QueueOrder.SHORTEST])
def test_orders_know_what_is_cached(order: QueueOrder) -> None:
    """The long prompt whose beginning is cached has less to compute than the short ones."""
    scheduling = Scheduling(order=order, patience=1e9, grace_s=1e9)
    engine = fake_engine(128, max_num_seqs=1, max_step_tokens=128, scheduling=scheduling)
    engine.add("before", _prompt(64), PARAMS)
    while engine.has_work():
        engine.step()
    for i in range(3):
        engine.add(f"short{i}", [20 + i] * 12, PARAMS)
    engine.add("long", [*_prompt(64), 5, 6, 7], PARAMS)
    ended = []
    while engine.has_work():
        ended += [e.request_id for e in engine.step() if isinstance(e, RequestDone)]
    assert ended[0] == "long"


def test_the_heavier_branch_goes_first() -> None:
    scheduling = Scheduling(order=QueueOrder.DFS_WEIGHT, patience=1e9, grace_s=1e9)
    engine = fake_engine(128, max_num_seqs=1, max_step_tokens=128, scheduling=scheduling)
    for first in (2, 3):
        engine.add(f"before{first}", _prompt(64, first), PARAMS)
    while engine.has_work():
        engine.step()
    for name, first in (("light", 2), ("heavy0", 3), ("heavy1", 3), ("heavy2", 3)):
        engine.add(name, [*_prompt(64, first), 5, 6, 7], PARAMS)
    ended = []
    while engine.has_work():
        ended += [e.request_id for e in engine.step() if isinstance(e, RequestDone)]
    assert ended[:2] == ["heavy0", "heavy1"]


def test_what_is_cached_while_they_wait_reaches_the_order() -> None:
    scheduling = Scheduling(order=QueueOrder.LPM, patience=1e9, grace_s=1e9)
    engine = fake_engine(128, max_num_seqs=1, max_step_tokens=128, scheduling=scheduling)
    engine.add("before", _prompt(64), PARAMS)
    for i in range(30):
        engine.add(f"other{i}", [20 + i] * 12, PARAMS)
    engine.add("same", [*_prompt(64), 5, 6, 7], PARAMS)
    ended = []
    while engine.has_work():
        ended += [e.request_id for e in engine.step() if isinstance(e, RequestDone)]
        assert engine._waiting._num_cached == sum(s.ticket.cached for s in engine._waiting.values())
    assert ended.index("same") < 8


def test_a_step_that_finds_more_than_it_was_planned_for_says_what_it_ran() -> None:
    """So many are admitted that the cache was not asked for all of them anew. What the step is said
    to have run is what the backend ran: predictions of its time rest on that."""
    num_cut = 0
    for seed in range(12):
        rng = random.Random(seed)
        engine = fake_engine(400, max_num_seqs=64, max_step_tokens=512, context_len=190)
        prefixes = [[rng.randrange(2, 60) for _ in range(48)] for _ in range(3)]
        for step in range(10):
            for number in range(rng.choice([0, 5, 40])):
                tail = [rng.randrange(2, 60)] * rng.randint(0, 4)
                prompt = rng.choice(prefixes)[: rng.randint(17, 48)] + tail
                engine.add(f"{step}.{number}", prompt, PARAMS)
            if not engine.has_work():
                continue
            before = _rows(engine)
            decision = engine._decide()
            engine.step()
            planned = sum(r.num_rows for r in decision.rows)
            num_cut += planned > _rows(engine) - before
            assert engine.stats.last_step_rows == _rows(engine) - before
            decodes = engine.stats.last_step_rows - sum(engine.stats.last_chunks)
            assert 0 <= decodes <= 64
    assert num_cut
