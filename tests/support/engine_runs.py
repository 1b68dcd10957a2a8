"""Runs requests through an engine and gathers what each of them got, in a form to compare."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.engine.base import (
    THROUGHPUT,
    ChoiceDelta,
    EngineConfig,
    Event,
    PromptDelta,
    RequestDone,
    RequestFailed,
    Scheduling,
    TokenLogprob,
)
from headrace.engine.engine import Engine
from headrace.engine.sampling import SamplingParams
from headrace.kv.lookahead.base import Allocation
from tests.support.fake_model import FakeBackend, FakeTokenizer


@dataclass
class ChoiceRecord:
    """Everything a client can see of one choice."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass
class RequestRecord:
    """Everything a client can see of one request."""

    choices: dict[int, ChoiceRecord] = field(default_factory=dict)
    prompt_start: int = 0  # position of the first of the prompt's logprobs
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    num_output: int = 0
    ended: bool = False
    failed: bool = False


class Recorder:
    """Collects events; asserts that their order makes sense."""

    def __init__(self) -> None:
        self.requests: dict[str, RequestRecord] = {}
        self.num_preemptions = 0
        self.num_cached: dict[str, int] = {}

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            record = self.requests.setdefault(event.request_id, RequestRecord())
            assert not record.ended, "an event came after the end"
            if isinstance(event, ChoiceDelta):
                self._take_delta(record, event)
                # What is computed again after a preemption was not found.
                before = self.num_cached.get(event.request_id, event.num_cached)
                assert event.num_cached <= before
                self.num_cached[event.request_id] = event.num_cached
            elif isinstance(event, PromptDelta):
                if not record.prompt_logprobs:
                    record.prompt_start = event.start
                assert event.start == record.prompt_start + len(record.prompt_logprobs)
                record.prompt_logprobs += event.entries
            elif isinstance(event, RequestFailed):
                record.ended = record.failed = True
            else:
                self._take_done(record, event)

    @staticmethod
    def _take_delta(record: RequestRecord, event: ChoiceDelta) -> None:
        choice = record.choices.setdefault(event.choice, ChoiceRecord())
        assert choice.finish_reason is None, "a delta came after the choice's end"
        choice.text += event.text
        choice.token_ids += event.token_ids
        choice.logprobs += event.logprobs or []
        choice.finish_reason = event.finish_reason
        choice.stop_reason = event.stop_reason
        assert event.num_output == len(choice.token_ids)

    def _take_done(self, record: RequestRecord, event: RequestDone) -> None:
        record.ended = True
        record.seeds = event.seeds
        record.num_output = event.num_output
        self.num_preemptions += event.num_preemptions
        self.num_cached[event.request_id] = event.num_cached
        assert all(c.finish_reason for c in record.choices.values())
        assert event.num_output == sum(len(c.token_ids) for c in record.choices.values())


def fake_engine(
    num_blocks: int,
    windows: tuple[int, ...] = (0,),
    *,
    max_num_seqs: int = 8,
    max_step_tokens: int = 32,
    context_len: int = 100,
    scheduling: Scheduling = THROUGHPUT,
    prefix_cache: bool = True,
) -> Engine:
    """An engine over the fake model that notices writes to shared or cached blocks. Its clock tells
    the same times in every run."""
    backend = FakeBackend(num_blocks, windows, max_step_rows=max_step_tokens)
    config = EngineConfig(
        max_num_seqs=max_num_seqs,
        max_step_tokens=max_step_tokens,
        scheduling=scheduling,
        prefix_cache=prefix_cache,
    )
    ticks = itertools.count()
    engine = Engine(backend, FakeTokenizer(), context_len, config, clock=lambda: next(ticks) / 64)

    def owners(block: int) -> int:
        live = [*engine._running.values(), *engine._waiting.values()]
        named = sum(block in table for seq in live for table in seq.tables.tables)
        return named + engine.pool.is_cached(block)

    backend.owners = owners
    return engine


def run_alone(
    prompt: list[int], params: SamplingParams, windows: tuple[int, ...] = (0,)
) -> RequestRecord:
    """The reference: one request, a large pool, one chunk."""
    engine = fake_engine(256, windows, max_num_seqs=16, max_step_tokens=128, prefix_cache=False)
    engine.add("alone", prompt, params)
    recorder = Recorder()
    while engine.has_work():
        recorder.take(engine.step())
    engine.check()
    return recorder.requests["alone"]


def check_preempted(params: SamplingParams) -> None:
    """Four requests in too small a pool are preempted, and each gets what it gets alone."""
    scheduling = Scheduling(allocation=Allocation.ON_DEMAND)
    engine = fake_engine(10, max_num_seqs=4, scheduling=scheduling)
    prompts = [[10 + i] * 20 for i in range(4)]
    for i, prompt in enumerate(prompts):
        engine.add(f"r{i}", prompt, params)
    recorder = Recorder()
    while engine.has_work():
        recorder.take(engine.step())
        engine.check()
    assert recorder.num_preemptions > 0
    for i, prompt in enumerate(prompts):
        assert recorder.requests[f"r{i}"] == run_alone(prompt, params)
