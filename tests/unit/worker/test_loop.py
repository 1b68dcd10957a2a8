"""The worker's loop over a fake engine and a channel of lists."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.sampling import SamplingParams
from headrace.worker.frames import (
    Abandon,
    Cancel,
    Delta,
    Drain,
    Failed,
    Finished,
    Progress,
    PromptLogprobs,
    Submit,
    ToGateway,
    ToWorker,
)
from headrace.worker.loop import IDLE_S, LEAST_IDLE_S, EngineLoop
from tests.support.fake_engine import NUM_BLOCKS, FakeEngine, output_ids
from tests.support.fake_text import FakeTokenizer


class ListChannel:
    """Gives the n-th list of frames to the n-th turn of the loop; drains when there are no more."""

    def __init__(self, script: Sequence[Sequence[ToWorker]]) -> None:
        self._script = list(script)
        self.sent: list[list[ToGateway]] = []
        self.waits: list[float] = []

    def receive(self, timeout_s: float) -> list[ToWorker]:
        self.waits.append(timeout_s)
        return list(self._script.pop(0)) if self._script else [Drain()]

    def send(self, batch: Sequence[ToGateway]) -> None:
        self.sent.append(list(batch))

    def of(self, request_id: str) -> list[ToGateway]:
        """Everything about one request, in order."""
        sent = [frame for batch in self.sent for frame in batch]
        return [frame for frame in sent if getattr(frame, "request_id", None) == request_id]


def submit(
    request_id: str, prompt: str = "abc", deadline_s: float | None = None, **fields: object
) -> Submit:
    params = SamplingParams(**{"seed": 1, **fields})  # type: ignore[arg-type]  # any field
    ids = list(prompt.encode())
    return Submit(request_id=request_id, prompt_ids=ids, params=params, deadline_s=deadline_s)


def run(
    script: Sequence[Sequence[ToWorker]], clock: Callable[[], float] = lambda: 0.0
) -> tuple[ListChannel, FakeEngine]:
    channel, engine = ListChannel(script), FakeEngine()
    EngineLoop(engine, FakeTokenizer(), channel, clock=clock).run()
    assert not engine.has_work()
    engine.check()
    return channel, engine


def text_of(frames: Sequence[ToGateway], choice: int = 0) -> str:
    deltas = [f for f in frames if isinstance(f, Delta) and f.choice == choice]
    return "".join(frame.text for frame in deltas)


def test_a_request_from_submit_to_finished() -> None:
    channel, _ = run([[submit("r")]])
    news = channel.of("r")
    assert text_of(news) == FakeTokenizer().decode(output_ids(b"abc", 1, 0))
    *deltas, last = news
    assert isinstance(last, Finished)
    assert (last.num_prompt, last.num_output, last.seeds) == (3, 25, [1])
    assert [d.finish_reason for d in deltas if isinstance(d, Delta)] == [None] * 24 + ["stop"]


def test_progress_comes_with_every_step() -> None:
    channel, _ = run([[submit("r")]])
    assert all(isinstance(batch[-1], Progress) for batch in channel.sent)
    last = channel.sent[-1][-1]
    assert isinstance(last, Progress)
    assert last.num_steps == 25
    assert (last.num_running, last.num_free_blocks) == (0, NUM_BLOCKS)


def test_the_loop_waits_only_when_idle() -> None:
    channel, _ = run([[], [submit("r", max_tokens=3)]])
    assert channel.waits[:2] == [1.0, 1.0]
    assert channel.waits[2:4] == [0.0, 0.0]


def test_choices_and_logprobs() -> None:
    channel, _ = run([[submit("r", n=2, logprobs=1, prompt_logprobs=0, max_tokens=2)]])
    news = channel.of("r")
    assert isinstance(news[0], PromptLogprobs)
    assert news[0].entries[0] is None
    assert news[0].entries[1] is not None
    assert (news[0].entries[1].token_id, news[0].entries[1].raw) == (98, b"b")
    for choice in (0, 1):
        deltas = [f for f in news if isinstance(f, Delta) and f.choice == choice]
        for delta in deltas:
            assert delta.logprobs is not None
            assert [entry.token_id for entry in delta.logprobs] == delta.token_ids
            assert len(delta.logprobs[0].top) == 1


def test_a_cancelled_request_says_nothing_more() -> None:
    channel, _ = run([[submit("r"), submit("s")], [], [Cancel(request_id="r")], []])
    assert 0 < len(channel.of("r")) < 25
    assert not any(isinstance(frame, Finished) for frame in channel.of("r"))
    assert isinstance(channel.of("s")[-1], Finished)


def test_what_is_abandoned_reaches_the_engine() -> None:
    channel, engine = run([[submit("r"), Abandon(prefix=[1, 2], tails=[[3], [4, 5]], salt="s")]])
    assert engine.abandoned == [([1, 2], [[3], [4, 5]], "s")]
    assert isinstance(channel.of("r")[-1], Finished)


def test_cancel_before_the_first_step_and_of_unknown_ids() -> None:
    script: list[list[ToWorker]] = [[submit("r"), Cancel(request_id="r"), Cancel(request_id="x")]]
    channel, _ = run(script)
    assert channel.of("r") == []


def test_what_the_engine_refuses_is_failed() -> None:
    channel, _ = run([[submit("r", "!refuse"), submit("s", "x" * 5000), submit("t")]])
    (refused,) = channel.of("r")
    assert isinstance(refused, Failed)
    assert (refused.status, refused.retry_after_s) == (429, 3.0)
    (long,) = channel.of("s")
    assert isinstance(long, Failed)
    assert (long.status, long.code) == (400, "context_length_exceeded")
    assert isinstance(channel.of("t")[-1], Finished)


def test_a_failed_request_harms_no_other() -> None:
    channel, _ = run([[submit("r", "!fail"), submit("s")]])
    (failed,) = channel.of("r")
    assert isinstance(failed, Failed)
    assert failed.status == 500
    assert isinstance(channel.of("s")[-1], Finished)


def test_a_step_that_raises_fails_what_ran_and_goes_on() -> None:
    channel, _ = run([[submit("r", "!raise"), submit("s")], [submit("t")]])
    for name in ("r", "s"):
        last = channel.of(name)[-1]
        assert isinstance(last, Failed)
        assert "raised" not in last.message
    assert isinstance(channel.of("t")[-1], Finished)


def test_an_engine_that_stays_dirty_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEngine, "abort", lambda self, request_id: None)
    with pytest.raises(RuntimeError, match="still has work"):
        run([[submit("r", "!raise")]])


def test_deadlines() -> None:
    """The clock of the test ticks once a call."""
    ticks = iter(range(10_000))
    channel, _ = run(
        [[submit("r", deadline_s=5.0), submit("s", deadline_s=1e6), submit("t")]],
        clock=lambda: float(next(ticks)),
    )
    last = channel.of("r")[-1]
    assert isinstance(last, Failed)
    assert (last.status, last.code) == (504, "deadline_exceeded")
    assert isinstance(channel.of("s")[-1], Finished)
    assert isinstance(channel.of("t")[-1], Finished)


@pytest.mark.parametrize(
    ("expires_in_s", "wait_s"), [(math.inf, IDLE_S), (0.3, 0.3), (0.0, LEAST_IDLE_S)]
)
def test_an_idle_engine_forgets_on_time(expires_in_s: float, wait_s: float) -> None:
    """Without work the loop asks the engine, and waits no longer than it says; with work a step
    does it."""
    channel, engine = ListChannel([[], [submit("r")]]), FakeEngine()
    engine.expires_in_s = expires_in_s
    EngineLoop(engine, FakeTokenizer(), channel).run()
    idle = [wait for wait in channel.waits if wait > 0.0]
    assert idle[:2] == [wait_s, wait_s]
    assert engine.num_expired == len(idle)
    assert 0.0 in channel.waits


def test_a_second_submission_of_an_id_is_dropped() -> None:
    channel, _ = run([[submit("r", "abc"), submit("r", "xyz")]])
    assert text_of(channel.of("r")) == FakeTokenizer().decode(output_ids(b"abc", 1, 0))
    assert sum(isinstance(frame, Finished) for frame in channel.of("r")) == 1


def test_drain_finishes_what_runs() -> None:
    channel, _ = run([[submit("r"), Drain()], []])
    assert isinstance(channel.of("r")[-1], Finished)


def test_drain_by_signal() -> None:
    channel, engine = ListChannel([[submit("r")], [], []]), FakeEngine()
    flag = [False]
    loop = EngineLoop(engine, FakeTokenizer(), channel, should_drain=lambda: flag[0])
    flag[0] = len(channel.sent) == 0
    # Told to end before anything came: the loop ends at once.
    loop.run()
    assert channel.sent == []


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_random_histories_end_every_request_once(data: st.DataObject) -> None:
    """Whatever the order of submissions and cancels, each request has one end or a cancel."""
    words = ["abc", "!fail", "!refuse", "!raise", "x" * 600]
    ids = [f"r{i}" for i in range(data.draw(st.integers(1, 8)))]
    script: list[list[ToWorker]] = [[] for _ in range(30)]
    cancelled = set()
    for name in ids:
        at = data.draw(st.integers(0, 20))
        prompt = data.draw(st.sampled_from(words))
        n = data.draw(st.integers(1, 3))
        script[at].append(submit(name, prompt, n=n, max_tokens=data.draw(st.integers(0, 9))))
        if data.draw(st.booleans()):
            cancelled.add(name)
            script[data.draw(st.integers(at, 29))].append(Cancel(request_id=name))
    channel, _ = run(script)
    for name in ids:
        news = channel.of(name)
        ends = [frame for frame in news if isinstance(frame, Finished | Failed)]
        assert len(ends) <= 1
        assert len(ends) == 1 or name in cancelled
        if ends:
            assert news[-1] is ends[0]
