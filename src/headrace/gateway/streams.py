"""The token stream of one HTTP request: events wait here until the task that owns it takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from headrace.engine.base import DEFAULT_OPTIONS, RequestOptions
from headrace.engine.sampling import SamplingParams
from headrace.worker.frames import Delta, Failed, Finished, PromptLogprobs, TokenLogprob

StreamEvent: TypeAlias = Delta | PromptLogprobs | Finished | Failed

_EVENT_BYTES = 200
_LOGPROB_BYTES = 150


class Part:
    """One prompt of an HTTP request: a request for the worker. Written by ModelService."""

    __slots__ = (
        "arrived_s",
        "deadline_s",
        "digest",
        "first_s",
        "index",
        "is_sent",
        "last_s",
        "options",
        "params",
        "prompt_ids",
        "request_id",
        "stream",
    )

    def __init__(
        self,
        request_id: str,
        index: int,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        stream: RequestStream,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.request_id = request_id
        self.index = index
        self.prompt_ids = prompt_ids
        self.params = params
        self.options = options
        self.stream = stream
        self.digest = b""
        self.is_sent = False
        self.deadline_s: float | None = None
        # Monotonic seconds: admitted, first output (0: none yet), latest output of each choice.
        self.arrived_s = 0.0
        self.first_s = 0.0
        self.last_s: dict[int, float] = {}


class RequestStream:
    """Events of all parts of one HTTP request, in order: one service puts, one task takes.

    A stream ends with a Finished for every part or with one Failed. `close` (idempotent) gives up
    what still runs. What waits is bounded: when the reader falls `pending_limit` bytes behind, the
    service ends the stream.
    """

    __slots__ = (
        "_close",
        "_events",
        "_num_open",
        "_pending_bytes",
        "_pending_limit",
        "_waiter",
        "has_output",
        "is_failed",
        "num_output",
        "parts",
    )

    def __init__(self, pending_limit: int, close: Callable[[RequestStream], None]) -> None:
        self.parts: list[Part] = []
        self.has_output = False
        # Tokens of all choices so far.
        self.num_output = 0
        self.is_failed = False
        self._events: list[tuple[int, StreamEvent]] = []
        self._pending_bytes = 0
        self._pending_limit = pending_limit
        self._num_open = 0
        self._waiter: asyncio.Future[None] | None = None
        self._close = close

    def open(self, parts: list[Part]) -> None:
        """Called once, when all parts were admitted."""
        self.parts = parts
        self._num_open = len(parts)

    @property
    def is_done(self) -> bool:
        """True when no event will come after those that wait."""
        return self.is_failed or self._num_open == 0

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    @property
    def is_behind(self) -> bool:
        return self._pending_bytes > self._pending_limit

    def push(self, index: int, event: StreamEvent) -> None:
        """Add an event of part `index`; events after a Failed are dropped."""
        if self.is_failed:
            return
        if isinstance(event, Delta):
            self.num_output += len(event.token_ids)
            self.has_output = True
            self._pending_bytes += _size(event)
        elif isinstance(event, PromptLogprobs):
            # Output, too: run once more, the request would give it a second time.
            self.has_output = True
            self._pending_bytes += _logprob_bytes(event.entries)
        elif isinstance(event, Finished):
            self._num_open -= 1
        elif isinstance(event, Failed):
            self.is_failed = True
        self._events.append((index, event))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self, timeout_s: float) -> list[tuple[int, StreamEvent]]:
        """All events that wait; the empty list after `timeout_s` without any, or at the end."""
        if not self._events and not self.is_done:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout_s, _wake, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        events, self._events = self._events, []
        self._pending_bytes = 0
        return events

    def close(self) -> None:
        """Give up what still runs. Safe to call at any time and more than once."""
        self._close(self)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _size(event: Delta) -> int:
    size = _EVENT_BYTES + len(event.text) + 8 * len(event.token_ids)
    return size if event.logprobs is None else size + _logprob_bytes(event.logprobs)


def _logprob_bytes(entries: Sequence[TokenLogprob | None]) -> int:
    return _LOGPROB_BYTES * sum(1 if entry is None else 1 + len(entry.top) for entry in entries)
