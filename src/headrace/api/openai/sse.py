"""Streams a response as server-sent events: headers with the first news, comments in silence."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.api.errors import encode_error
from headrace.api.exchange import Exchange
from headrace.api.openai.chunks import COMMENT, ChunkEncoder
from headrace.gateway.errors import FailedError
from headrace.gateway.streams import RequestStream, StreamEvent
from headrace.worker.frames import Failed

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_Events = list[tuple[int, StreamEvent]]


async def stream_response(
    exchange: Exchange,
    stream: RequestStream,
    encoder: ChunkEncoder,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """Send a stream to its end. An early failure is raised, so that it keeps its HTTP status.

    A later one is sent as an event with `error`, and the response ends without `[DONE]`.
    """
    limits = exchange.gateway.config.limits
    events = await stream.take(limits.first_event_s)
    failed = _failure(events)
    if failed is not None and len(events) == 1:
        raise FailedError(failed)
    await exchange.start(200, [*SSE_HEADERS, *headers])
    encode = encoder.encode
    while True:
        failed = _failure(events)
        if failed is not None:
            events.pop()
        out = [encode(part, event) for part, event in events]
        if failed is not None:
            out.append(b"data: " + encode_error(FailedError(failed)) + b"\n\n")
            await exchange.write(b"".join(out), more=False)
            return
        if stream.is_done and not stream.has_events:
            out.append(encoder.end())
            await exchange.write(b"".join(out), more=False)
            return
        data = b"".join(out) if events else COMMENT
        if data:
            await exchange.write(data)
        events = await stream.take(limits.comment_s)


def _failure(events: _Events) -> Failed | None:
    """The Failed that ends these events, if one does: nothing ever follows it."""
    last = events[-1][1] if events else None
    return last if isinstance(last, Failed) else None
