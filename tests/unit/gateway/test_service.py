"""ModelService over a supervisor that only records: admission, routing, what deaths mean."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.sampling import SamplingParams
from headrace.errors import OverloadedError
from headrace.gateway.config import HttpLimits, ModelSpec, ServeConfig
from headrace.gateway.errors import UnavailableError
from headrace.gateway.service import ModelService
from headrace.gateway.streams import RequestStream
from headrace.gateway.supervisor import State, Supervisor
from headrace.observe.metrics import Metrics, ModelMetrics
from headrace.worker.frames import (
    Abandon,
    Cancel,
    Delta,
    Failed,
    Finished,
    PromptLogprobs,
    Submit,
    ToGateway,
    ToWorker,
)
from tests.support.fake_text import load_fake_text
from tests.support.scripted_worker import READY, delta, finished, progress


class RecordingSupervisor:
    """The part of a Supervisor that a service uses."""

    def __init__(self) -> None:
        self.state = State.LOADING
        self.load_error: str | None = None
        self.last_reason: str | None = None
        self.sent: list[ToWorker] = []

    def send(self, batch: Sequence[ToWorker]) -> None:
        self.sent.extend(batch)

    @property
    def submitted(self) -> list[str]:
        return [frame.request_id for frame in self.sent if isinstance(frame, Submit)]

    @property
    def cancelled(self) -> list[str]:
        return [frame.request_id for frame in self.sent if isinstance(frame, Cancel)]


PARAMS = SamplingParams(seed=1, max_tokens=5)


class Rig:
    """A service with its recording supervisor."""

    def __init__(self, **options: int) -> None:
        limits = HttpLimits(pending_bytes=options.pop("pending_bytes", 1 << 20))
        spec = ModelSpec("m", Path("m"))
        config = ServeConfig(models=(spec,), limits=limits, **options)  # type: ignore[arg-type]  # ints only
        self.metrics = Metrics()
        self.service = ModelService(spec, config, ModelMetrics(self.metrics, "m"))
        self.supervisor = RecordingSupervisor()
        self.service.supervisor = cast("Supervisor", self.supervisor)

    def come_up(self) -> None:
        """A worker (the next one) is ready."""
        self.service.set_text(load_fake_text(self.service.spec))
        self.supervisor.state = State.READY
        self.supervisor.sent.clear()
        self.service.on_ready(READY)

    def die(self, state: State = State.RESTARTING) -> None:
        self.supervisor.state = state
        self.service.on_down("it was killed")

    def submit(self, *prompts: list[int], params: SamplingParams = PARAMS) -> RequestStream:
        return self.service.submit(prompts, params)

    def gauge(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"model_name": "m"})

    def check_idle(self) -> None:
        assert self.service.num_open == 0
        assert self.gauge("headrace:open_requests") == 0
        assert self.gauge("headrace:open_prompt_tokens") == 0


@pytest.fixture
async def rig() -> Rig:
    made = Rig()
    made.come_up()
    return made


async def failure_of(stream: RequestStream) -> Failed:
    assert stream.is_failed
    event = (await stream.take(0))[-1][1]
    assert isinstance(event, Failed)
    return event


async def test_hints_go_to_a_worker_that_is_there(rig: Rig) -> None:
    hint = Abandon(prefix=[1], tails=[[2], [3]], salt="s")
    rig.service.abandon(hint.prefix, hint.tails, "s")
    assert rig.supervisor.sent == [hint]
    rig.die()
    rig.service.abandon(hint.prefix, hint.tails)
    assert rig.supervisor.sent == [hint]


async def test_events_go_to_their_stream(rig: Rig) -> None:
    first, second = rig.submit([1]), rig.submit([2], [3])
    a, b, c = rig.supervisor.submitted
    rig.service.on_frames([delta(c, "C"), delta(a, "A"), delta("nobody", "x"), progress()])
    rig.service.on_frames([delta(b, "B"), finished(a), finished(b), finished("nobody")])
    assert [(i, e.text) for i, e in await first.take(0) if isinstance(e, Delta)] == [(0, "A")]
    events = await second.take(0)
    assert [(i, e.text) for i, e in events if isinstance(e, Delta)] == [(1, "C"), (0, "B")]
    assert [stream.is_done for stream in (first, second)] == [True, False]
    rig.service.on_frames([finished(c)])
    assert second.is_done
    rig.check_idle()


async def test_close_cancels_what_runs_once(rig: Rig) -> None:
    stream = rig.submit([1], [2])
    a, b = rig.supervisor.submitted
    rig.service.on_frames([finished(a)])
    stream.close()
    stream.close()
    assert rig.supervisor.cancelled == [b]
    rig.service.on_frames([delta(b, "late"), finished(b)])
    rig.check_idle()


async def test_a_failed_part_ends_its_whole_stream(rig: Rig) -> None:
    stream = rig.submit([1], [2])
    a, b = rig.supervisor.submitted
    rig.service.on_frames([Failed(request_id=a, message="no", status=500)])
    assert (await failure_of(stream)).message == "no"
    assert rig.supervisor.cancelled == [b]
    rig.check_idle()


async def test_requests_are_bounded() -> None:
    rig = Rig(max_num_seqs=2, max_waiting=3)
    rig.come_up()
    streams = [rig.submit([1]) for _ in range(4)]
    with pytest.raises(OverloadedError):
        rig.submit([1], [2])
    streams.append(rig.submit([1]))
    with pytest.raises(OverloadedError) as caught:
        rig.submit([1])
    assert caught.value.status == 429
    assert caught.value.retry_after_s >= 1
    streams[0].close()
    rig.submit([1])


async def test_prompt_tokens_are_bounded() -> None:
    """By the queue's limit and what the pool holds; a single request is always let in."""
    rig = Rig(max_waiting_tokens=100)
    rig.come_up()
    large = rig.submit([1] * 5000)
    with pytest.raises(OverloadedError):
        rig.submit([1])
    large.close()
    rig.submit([1] * (100 + READY.kv_tokens))
    with pytest.raises(OverloadedError):
        rig.submit([1])


async def test_a_reader_that_falls_behind_is_cut() -> None:
    rig = Rig(pending_bytes=1000)
    rig.come_up()
    stream, other = rig.submit([1]), rig.submit([2])
    a, b = rig.supervisor.submitted
    for _ in range(20):
        rig.service.on_frames([delta(a, "x" * 100)])
    assert (await failure_of(stream)).code == "slow_reader"
    assert rig.supervisor.cancelled == [a]
    rig.service.on_frames([delta(b, "B"), finished(b)])
    assert other.is_done
    assert not other.is_failed
    rig.check_idle()


@pytest.mark.parametrize("is_prompt", [False, True])
async def test_after_a_death_streams_with_output_end(rig: Rig, is_prompt: bool) -> None:
    stream = rig.submit([1])
    (a,) = rig.supervisor.submitted
    prompt = PromptLogprobs(request_id=a, start=0, entries=[None])
    rig.service.on_frames([prompt if is_prompt else delta(a, "A")])
    rig.die()
    failure = await failure_of(stream)
    assert (failure.status, failure.code) == (503, "engine_dead")
    rig.check_idle()


async def test_after_a_death_the_others_are_tried_one_by_one(rig: Rig) -> None:
    streams = [rig.submit([i]) for i in range(3)]
    names = rig.supervisor.submitted
    rig.die()
    assert not any(stream.is_done for stream in streams)
    rig.come_up()
    assert rig.supervisor.submitted == names[:1]
    rig.service.on_frames([delta(names[0], "A")])
    assert rig.supervisor.submitted == names[:2]
    rig.service.on_frames([finished(names[1])])
    assert rig.supervisor.submitted == names
    # New requests do not wait for the trial.
    rig.submit([9])
    assert len(rig.supervisor.submitted) == 4


async def test_equal_requests_in_one_worker_die_once(rig: Rig) -> None:
    streams = [rig.submit([7]) for _ in range(3)]
    rig.die()
    assert not any(stream.is_done for stream in streams)
    rig.come_up()
    for _ in streams:
        rig.service.on_frames([finished(rig.supervisor.submitted[-1])])
    assert all(stream.is_done and not stream.is_failed for stream in streams)
    rig.check_idle()


async def test_a_second_death_refuses_only_the_one_on_trial(rig: Rig) -> None:
    streams = [rig.submit([i]) for i in range(3)]
    names = rig.supervisor.submitted
    rig.die()
    rig.come_up()
    rig.die()
    assert (await failure_of(streams[0])).code == "request_refused"
    assert not streams[1].is_done
    rig.come_up()
    assert rig.supervisor.submitted == [names[1]]
    rig.service.on_frames([finished(names[1])])
    rig.service.on_frames([finished(names[2])])
    assert streams[2].is_done
    # The same request again, with whatever seed, is refused at the door.
    with pytest.raises(UnavailableError) as caught:
        rig.submit([0], params=SamplingParams(seed=99, max_tokens=5))
    assert caught.value.code == "request_refused"
    rig.check_idle()


async def test_success_clears_a_suspect(rig: Rig) -> None:
    first = rig.submit([1])
    (a,) = rig.supervisor.submitted
    rig.service.on_frames([delta(a, "A")])
    rig.die()
    assert first.is_failed
    rig.come_up()
    rig.submit([1])
    (b,) = rig.supervisor.submitted
    rig.service.on_frames([finished(b)])
    rig.submit([1])
    rig.die()
    rig.come_up()
    assert len(rig.supervisor.submitted) == 1


async def test_a_suspect_that_is_closed_makes_way(rig: Rig) -> None:
    streams = [rig.submit([i]) for i in range(3)]
    names = rig.supervisor.submitted
    rig.die()
    streams[1].close()
    rig.come_up()
    streams[0].close()
    assert rig.supervisor.submitted == [names[0], names[2]]
    assert rig.supervisor.cancelled == [names[0]]


async def test_an_open_circuit_ends_everything(rig: Rig) -> None:
    stream = rig.submit([1])
    rig.die(State.FAILED)
    assert (await failure_of(stream)).status == 503
    rig.check_idle()
    with pytest.raises(UnavailableError) as caught:
        await rig.service.wait_servable()
    assert caught.value.code == "engine_dead"


async def test_requests_are_held_while_loading() -> None:
    rig = Rig(max_waiting=1)
    held = asyncio.create_task(rig.service.wait_servable())
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await rig.service.wait_servable()
    rig.supervisor.state = State.READY
    rig.service.on_ready(READY)
    await asyncio.sleep(0)
    assert not held.done()
    rig.service.set_text(load_fake_text(rig.service.spec))
    assert (await held)[1] == READY


async def test_a_tokenizer_that_does_not_load() -> None:
    rig = Rig()
    settled = asyncio.create_task(rig.service.wait_settled())
    rig.service.fail_text("No tokenizer.")
    await settled
    assert rig.service.state is State.FAILED
    assert rig.service.load_error == "No tokenizer."


async def test_fail_all(rig: Rig) -> None:
    streams = [rig.submit([i], [i + 1]) for i in range(3)]
    rig.service.fail_all("The end.", "draining")
    assert [(await failure_of(stream)).code for stream in streams] == ["draining"] * 3
    assert len(rig.supervisor.cancelled) == 6
    rig.check_idle()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_histories_leave_nothing_behind(data: st.DataObject) -> None:
    """Submissions, events, closes, deaths and restarts in any order; then everything is closed."""

    async def scenario() -> None:
        rig = Rig(max_num_seqs=4, max_waiting=4)
        rig.come_up()
        streams: list[RequestStream] = []
        for _ in range(data.draw(st.integers(1, 30))):
            _random_move(rig, streams, data)
        for stream in streams:
            if not stream.is_done:
                stream.close()
            stream.close()
        rig.check_idle()
        for stream in streams:
            events = [event for _, event in await stream.take(0)]
            failures = [event for event in events if isinstance(event, Failed)]
            assert len(failures) <= 1
            assert not failures or events[-1] is failures[0]
            done = [event for event in events if isinstance(event, Finished)]
            assert len(done) <= len(stream.parts)

    asyncio.run(scenario())


def _random_move(rig: Rig, streams: list[RequestStream], data: st.DataObject) -> None:
    move = data.draw(st.sampled_from(["submit", "delta", "finish", "fail", "close", "die", "up"]))
    submitted = rig.supervisor.submitted
    if move == "submit":
        prompts = [[data.draw(st.integers(0, 3))] for _ in range(data.draw(st.integers(1, 3)))]
        try:
            streams.append(rig.service.submit(prompts, PARAMS))
        except (OverloadedError, UnavailableError):
            return
    elif move == "close" and streams:
        data.draw(st.sampled_from(streams)).close()
    elif move == "die":
        rig.die(data.draw(st.sampled_from([State.RESTARTING, State.FAILED])))
        rig.supervisor.sent.clear()
    elif move == "up":
        rig.come_up()
    elif submitted and move in ("delta", "finish", "fail"):
        name = data.draw(st.sampled_from(submitted))
        frames: dict[str, ToGateway] = {
            "delta": delta(name, "x"),
            "finish": finished(name),
            "fail": Failed(request_id=name, message="no", status=500),
        }
        rig.service.on_frames([frames[move]])
