"""The engine, its scheduler, pool and prefix cache under every interleaving that hypothesis finds:
nothing is lost, nothing is computed wrongly, nobody starves."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.engine.base import RequestOptions, Scheduling
from headrace.engine.engine import Engine
from headrace.engine.order import QueueOrder
from headrace.engine.sampling import SamplingParams
from headrace.kv.radix.base import Retention
from tests.support.engine_runs import Recorder, fake_engine, run_alone

# Prompts are made of these: few, so that they begin alike, part within blocks, and meet again.
PIECES = ([7] * 16, [8] * 16, [7] * 5, [9] * 11, [7, 8] * 8, [9])
WINDOWS = ((0,), (0, 20), (20,))

prompts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map(
    lambda pieces: list(itertools.chain(*pieces))[:50]
)
params = st.builds(
    SamplingParams,
    n=st.sampled_from([1, 1, 1, 2, 3]),
    max_tokens=st.sampled_from([0, 1, 3, 20]),
    seed=st.integers(0, 3),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, 1]),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
)
options = st.builds(
    RequestOptions,
    priority=st.sampled_from([0, 0, 1]),
    salt=st.sampled_from(["", "", "a"]),
    retention=st.builds(
        Retention, st.sampled_from([0, 50, 50, 100]), st.sampled_from([None, None, 0.5])
    ),
)


class ReuseMachine(RuleBasedStateMachine):
    """A pool that holds the longest request, and little more."""

    @initialize(
        windows=st.sampled_from(WINDOWS),
        num_blocks=st.integers(5, 12),
        chunk=st.sampled_from([3, 7, 16, 17, 40]),
        order=st.sampled_from(QueueOrder),
        max_partial=st.integers(1, 3),
    )
    def begin(
        self,
        windows: tuple[int, ...],
        num_blocks: int,
        chunk: int,
        order: QueueOrder,
        max_partial: int,
    ) -> None:
        self.windows = windows
        self.engine: Engine = fake_engine(
            num_blocks * len(windows),
            windows,
            max_num_seqs=3,
            max_step_tokens=chunk,
            context_len=75,
            scheduling=Scheduling(order=order, max_partial=max_partial),
        )
        self.recorder = Recorder()
        self.asked: dict[str, tuple[list[int], SamplingParams]] = {}
        self.aborted: set[str] = set()

    @precondition(lambda self: len(self.engine._requests) < 6)
    @rule(prompt=prompts, params=params, options=options)
    def add(self, prompt: list[int], params: SamplingParams, options: RequestOptions) -> None:
        if len(prompt) + (params.max_tokens or 0) > self.engine.max_model_len:
            return
        name = f"r{len(self.asked)}"
        self.engine.add(name, prompt, params, options)
        self.asked[name] = (prompt, params)

    @precondition(lambda self: self.engine.has_work())
    @rule(times=st.sampled_from([1, 1, 1, 2, 5, 12]))
    def step(self, times: int) -> None:
        for _ in range(times):
            if self.engine.has_work():
                events = self.engine.step()
                self.recorder.take(e for e in events if e.request_id not in self.aborted)
                self.engine.check()

    @precondition(lambda self: self.engine._requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.engine._requests)))
        self.engine.abort(name)
        self.aborted.add(name)

    @precondition(lambda self: len(self.engine._running) > 1)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """As the scheduler may, but without need."""
        key = data.draw(st.sampled_from(sorted(self.engine._running)))
        self.engine._preempt(self.engine._running.pop(key))

    @rule(prompt=prompts, kept=st.integers(0, 40))
    def abandon(self, prompt: list[int], kept: int) -> None:
        self.engine.abandon(prompt[:kept], [prompt[kept:]])

    @rule(num_blocks=st.integers(1, 4))
    def evict(self, num_blocks: int) -> None:
        assert self.engine._reuse.cache is not None
        self.engine._reuse.cache.evict(num_blocks)

    @rule(seconds=st.floats(0, 1))
    def wait(self, seconds: float) -> None:
        self.engine._reuse.advance(self.engine._clock() + seconds)

    @invariant()
    def all_is_counted(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        for _ in range(3000):
            if not engine.has_work():
                break
            events = engine.step()
            self.recorder.take(e for e in events if e.request_id not in self.aborted)
        assert not engine.has_work(), "somebody starves"
        engine.check()
        for name in self.asked.keys() - self.aborted:
            prompt, params = self.asked[name]
            assert self.recorder.requests[name] == run_alone(prompt, params, self.windows)
        cache = engine._reuse.cache
        assert cache is not None
        cache.clear()
        assert engine.pool.num_free == engine.pool.num_blocks


TestReuseMachine = ReuseMachine.TestCase
TestReuseMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
