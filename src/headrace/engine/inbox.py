"""Shares one engine between calls of the same process: every event reaches the call it is for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.engine.base import (
    DEFAULT_OPTIONS,
    EngineAPI,
    Event,
    RequestDone,
    RequestFailed,
    RequestOptions,
)
from headrace.engine.sampling import SamplingParams
from headrace.errors import HeadraceError

CLOSED = "This LLM is closed."


@dataclass(slots=True)
class Inbox:
    """What one call waits for: its requests that are not over, and their unread events."""

    open_ids: set[str] = field(default_factory=set)
    unread: list[Event] = field(default_factory=list)


class SharedEngine:
    """An engine that several calls step, from any thread.

    Whichever call needs an event steps the engine, which computes for all of them; events of other
    calls wait in their inboxes. So a stream that is read slowly, or a call made between two of its
    chunks, loses nothing.
    """

    def __init__(self, engine: EngineAPI) -> None:
        self._engine: EngineAPI | None = engine
        self._inboxes: dict[str, Inbox] = {}
        self._lock = threading.RLock()

    def add(
        self,
        inbox: Inbox,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> None:
        """Add a request whose events go to `inbox`. Raises RequestError."""
        with self._lock:
            self._open().add(request_id, prompt_ids, params, options)
            inbox.open_ids.add(request_id)
            self._inboxes[request_id] = inbox

    def events(self, inbox: Inbox) -> Iterator[Event]:
        """The events of a call's requests until all are over.

        Raises HeadraceError if the engine is closed meanwhile.
        """
        while True:
            with self._lock:
                while not inbox.unread and inbox.open_ids:
                    self._step()
                unread, inbox.unread = inbox.unread, []
            if not unread:
                return
            yield from unread

    def poll(self, inbox: Inbox) -> list[Event]:
        """The unread events of a call; steps the engine once when there are none.

        Raises HeadraceError if the engine is closed.
        """
        with self._lock:
            if not inbox.unread and inbox.open_ids:
                self._step()
            unread, inbox.unread = inbox.unread, []
        return unread

    def abort(self, inbox: Inbox, request_id: str) -> None:
        """Abort one request of a call."""
        with self._lock:
            inbox.open_ids.discard(request_id)
            self._inboxes.pop(request_id, None)
            if self._engine is not None:
                self._engine.abort(request_id)

    def drop(self, inbox: Inbox) -> None:
        """Abort what is left of a call."""
        with self._lock:
            for request_id in list(inbox.open_ids):
                self.abort(inbox, request_id)

    def abandon(
        self, prefix: Sequence[int], tails: Sequence[Sequence[int]], salt: str = ""
    ) -> None:
        """See EngineAPI.abandon; nothing when the engine is closed."""
        with self._lock:
            if self._engine is not None:
                self._engine.abandon(prefix, tails, salt)

    def close(self) -> None:
        """No step runs any more when this returns; the engine may be freed."""
        with self._lock:
            self._engine = None

    def _open(self) -> EngineAPI:
        if self._engine is None:
            raise HeadraceError(CLOSED)
        return self._engine

    def _step(self) -> None:
        for event in self._open().step():
            inbox = self._inboxes.get(event.request_id)
            if inbox is None:
                continue
            inbox.unread.append(event)
            if isinstance(event, RequestDone | RequestFailed):
                del self._inboxes[event.request_id]
                inbox.open_ids.discard(event.request_id)
