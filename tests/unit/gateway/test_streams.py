"""RequestStream: order, waiting, ends, bounds."""

from __future__ import annotations

import asyncio

from headrace.engine.sampling import SamplingParams
from headrace.gateway.streams import Part, RequestStream
from headrace.worker.frames import Failed, PromptLogprobs, TokenLogprob
from tests.support.scripted_worker import delta, finished

FAILED = Failed(request_id="r", message="no", status=500)


def make(num_parts: int = 1, limit: int = 10_000) -> tuple[RequestStream, list[RequestStream]]:
    closed: list[RequestStream] = []
    stream = RequestStream(limit, closed.append)
    stream.open([Part(f"r{i}", i, [1], SamplingParams(), stream) for i in range(num_parts)])
    return stream, closed


def done(stream: RequestStream) -> bool:
    return stream.is_done


def behind(stream: RequestStream) -> bool:
    return stream.is_behind


async def test_events_come_in_order_and_at_once() -> None:
    stream, _ = make()
    stream.push(0, delta("r0", "a"))
    stream.push(0, delta("r0", "b"))
    assert [event for _, event in await stream.take(9)] == [delta("r0", "a"), delta("r0", "b")]


async def test_take_waits_for_the_next_event() -> None:
    stream, _ = make()
    asyncio.get_running_loop().call_later(0.01, stream.push, 0, delta("r0", "a"))
    assert await stream.take(9) == [(0, delta("r0", "a"))]


async def test_silence_gives_nothing() -> None:
    stream, _ = make()
    assert await stream.take(0.01) == []
    assert not done(stream)


async def test_all_parts_must_finish() -> None:
    stream, _ = make(2)
    stream.push(1, finished("r1"))
    assert not done(stream)
    stream.push(0, finished("r0"))
    assert done(stream)
    assert [part for part, _ in await stream.take(9)] == [1, 0]
    assert not stream.has_events
    assert await stream.take(9) == []


async def test_nothing_follows_a_failure() -> None:
    stream, _ = make(2)
    stream.push(0, FAILED)
    stream.push(1, delta("r1", "late"))
    stream.push(1, FAILED)
    assert done(stream)
    assert await stream.take(9) == [(0, FAILED)]


async def test_a_cancelled_taker_leaves_the_stream_usable() -> None:
    stream, _ = make()
    task = asyncio.create_task(stream.take(9))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    stream.push(0, delta("r0", "a"))
    assert await stream.take(9) == [(0, delta("r0", "a"))]


async def test_bytes_that_wait_are_counted() -> None:
    stream, _ = make(limit=1000)
    entry = TokenLogprob(1, "a", b"a", -1.0, [(1, "a", b"a", -1.0)] * 5)
    stream.push(0, delta("r0", "a"))
    assert not behind(stream)
    stream.push(0, delta("r0", "a", logprobs=[entry]))
    assert behind(stream)
    await stream.take(9)
    assert not behind(stream)
    stream.push(0, PromptLogprobs(request_id="r0", start=0, entries=[None, entry, entry]))
    assert behind(stream)


def test_close_goes_to_the_owner() -> None:
    stream, closed = make()
    stream.close()
    stream.close()
    assert closed == [stream, stream]
