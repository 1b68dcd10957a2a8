"""The queue's counts are those of what waits, whatever happens; and what an order is told."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.engine.engine import Engine
from headrace.engine.order import OrderPolicy, QueueOrder
from headrace.engine.queue import WaitQueue, WorkMeter
from headrace.engine.request import SequenceState, Status
from headrace.engine.sampling import SamplingParams
from tests.support.engine_runs import fake_engine


def _sequences(lengths: list[int]) -> list[SequenceState]:
    """As an engine makes them, out of its queue again."""
    engine: Engine = fake_engine(64)
    for number, length in enumerate(lengths):
        engine.add(f"r{number}", [2 + number % 60] * length, SamplingParams(max_tokens=4))
    made = list(engine._waiting.values())
    for seq in made:
        engine._waiting.pop(seq)
    return made


class QueueMachine(RuleBasedStateMachine):
    """Against a list of what waits."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitQueue(OrderPolicy(), lambda: 0.0)
        self.idle = _sequences([1, 5, 16, 17, 40, 90])
        self.begun: list[SequenceState] = []
        self.new: list[SequenceState] = []

    @precondition(lambda self: self.idle)
    @rule(data=st.data(), is_new=st.booleans())
    def push(self, data: st.DataObject, is_new: bool) -> None:
        seq = self.idle.pop(data.draw(st.integers(0, len(self.idle) - 1)))
        if is_new and not seq.ticket.begun:
            self.queue.push(seq)
            self.new.append(seq)
        else:
            self.queue.push_back(seq)
            self.begun.append(seq)
            assert seq.status is Status.WAITING

    @precondition(lambda self: self.begun or self.new)
    @rule(data=st.data())
    def pop(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from([*self.begun, *self.new]))
        assert self.queue.find(seq.key) is seq
        self.queue.pop(seq)
        self.queue.pop(seq)
        (self.begun if seq in self.begun else self.new).remove(seq)
        self.idle.append(seq)

    @precondition(lambda self: self.begun or self.new)
    @rule(data=st.data())
    def note(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from([*self.begun, *self.new]))
        self.queue.note_cached(seq, data.draw(st.integers(0, len(seq.tokens) - 1)))

    @precondition(lambda self: self.begun or self.new)
    @rule(data=st.data(), times=st.integers(0, 3))
    def pass_over(self, data: st.DataObject, times: int) -> None:
        seq = data.draw(st.sampled_from([*self.begun, *self.new]))
        before, total = seq.ticket.passed_over, self.queue.num_passes
        self.queue.note_passes({seq.key: times})
        assert seq.ticket.passed_over == before + times
        assert self.queue.num_passes == total + times

    @invariant()
    def counts_are_those_of_what_waits(self) -> None:
        waiting = [*self.begun, *self.new]
        assert list(self.queue.values()) == waiting
        assert len(self.queue) == len(waiting)
        assert self.queue.num_tokens == sum(len(s.tokens) for s in waiting)
        assert {s.key for s in self.queue.ordered([], True)} == {s.key for s in waiting}
        prompts = self.queue.ordered(self.idle, False)
        assert sorted(s.key for s in prompts) == sorted(s.key for s in self.idle)


TestQueue = QueueMachine.TestCase


def test_a_newcomer_is_told_the_work_that_waits() -> None:
    first, second, third = _sequences([40, 30, 5])
    queue = WaitQueue(OrderPolicy(), lambda: 0.0)
    queue.work.note(prompt_s=2.0, num_tokens=100, other_s=3.0, num_ended=2)
    queue.push(first)
    queue.note_cached(first, 16)
    queue.push(second)
    queue.push(third)
    assert first.ticket.ahead_s == 0.0
    assert second.ticket.ahead_s == pytest.approx(24 * 0.02 + 1.5)
    assert third.ticket.ahead_s == pytest.approx(54 * 0.02 + 2 * 1.5)


def test_a_path_is_the_blocks_that_are_cached() -> None:
    (seq,) = _sequences([40])
    seq.tokens = array("i", range(2, 42))
    queue = WaitQueue(OrderPolicy(QueueOrder.DFS_WEIGHT), lambda: 0.0)
    queue.push(seq)
    for cached, blocks in ((0, 0), (15, 0), (16, 1), (33, 2)):
        queue.note_cached(seq, cached)
        expected = [seq.tokens[16 * i : 16 * i + 16].tobytes() for i in range(blocks)]
        assert list(seq.ticket.path) == expected


def test_what_work_takes_follows_the_last_hundred_requests() -> None:
    meter = WorkMeter()
    for _ in range(1000):
        meter.note(prompt_s=0.5, num_tokens=100, other_s=0.25, num_ended=1)
    assert meter.token_s == pytest.approx(0.005)
    assert meter.request_s == pytest.approx(0.25)
    for _ in range(500):
        meter.note(prompt_s=1.0, num_tokens=100, other_s=0.5, num_ended=1)
    assert meter.token_s == pytest.approx(0.01, rel=0.02)
    assert meter.request_s == pytest.approx(0.5, rel=0.02)


def test_what_waits_is_counted_to_nothing_when_forks_have_to_wait() -> None:
    """The pool has no block for the tails of most choices, which wait to recompute the prompt."""
    params = SamplingParams(n=4, max_tokens=20, seed=1, ignore_eos=True)
    engine = fake_engine(4, max_num_seqs=8, max_step_tokens=64, context_len=75)
    num_waiting = 0
    for number in range(3):
        engine.add(f"r{number}", [5] * 40, params)
        while engine.has_work():
            engine.step()
            engine.check()
            waiting = list(engine._waiting.values())
            num_waiting += len(waiting)
            assert engine.stats.num_waiting_tokens == sum(len(s.tokens) for s in waiting)
        assert engine.stats.num_waiting_tokens == 0
    assert num_waiting
