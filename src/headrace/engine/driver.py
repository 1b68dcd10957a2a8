"""Requests whose callers wait on futures: a thread steps the engine while there are any."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass

from headrace.engine.base import DEFAULT_OPTIONS, Event, RequestDone, RequestOptions
from headrace.engine.inbox import Inbox, SharedEngine
from headrace.engine.output import Output, collect, empty_output
from headrace.engine.sampling import SamplingParams
from headrace.errors import HeadraceError


@dataclass(slots=True)
class _Call:
    output: Output
    future: Future[Output]


class EngineDriver:
    """Owns one call of a SharedEngine and the thread that makes it.

    Whatever touches the engine is a command for that thread, in order: a caller never waits for a
    step, and what it abandons was aborted before. The thread ends when nothing is left to do.
    Futures stay pending until they are done, so that they can be cancelled at any time.
    """

    def __init__(self, shared: SharedEngine) -> None:
        self._shared = shared
        self._inbox = Inbox()
        self._lock = threading.Lock()
        self._commands: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._calls: dict[str, _Call] = {}  # of the thread alone

    def submit(
        self,
        request_id: str,
        prompt_ids: list[int],
        params: SamplingParams,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Future[Output]:
        """The output of a request, once it has ended; cancelling the future aborts it."""
        future: Future[Output] = Future()
        self._do(lambda: self._add(request_id, prompt_ids, params, options, future))
        future.add_done_callback(lambda _: self._abort_cancelled(request_id, future))
        return future

    def abandon(
        self, prefix: Sequence[int], tails: Sequence[Sequence[int]], salt: str = ""
    ) -> None:
        """See EngineAPI.abandon."""
        self._do(lambda: self._shared.abandon(prefix, tails, salt))

    def close(self) -> None:
        """Return when the thread has ended; the engine was closed before, so that it does."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # ---- the thread ----

    def _do(self, command: Callable[[], None]) -> None:
        with self._lock:
            self._commands.append(command)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="engine")
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                commands, self._commands = self._commands, []
                if not commands and not self._calls:
                    self._thread = None
                    return
            left = iter(commands)
            try:
                for command in left:
                    command()
                for event in self._shared.poll(self._inbox):
                    self._take(event)
            except Exception as error:  # a command or a step broke, or the engine was closed
                self._shared.drop(self._inbox)
                calls, self._calls = self._calls, {}
                for call in calls.values():
                    _set_exception(call.future, error)
                with self._lock:
                    self._commands[:0] = left  # somebody waits for each of them

    def _add(
        self,
        request_id: str,
        prompt_ids: list[int],
        params: SamplingParams,
        options: RequestOptions,
        future: Future[Output],
    ) -> None:
        if future.cancelled():
            return
        try:
            self._shared.add(self._inbox, request_id, prompt_ids, params, options)
        except Exception as error:  # whatever it is, its caller waits for it
            _set_exception(future, error)
        else:
            self._calls[request_id] = _Call(empty_output(prompt_ids, params), future)

    def _abort_cancelled(self, request_id: str, future: Future[Output]) -> None:
        if future.cancelled():
            future.set_running_or_notify_cancel()  # whoever waits for several is told, too
            self._do(lambda: self._abort(request_id))

    def _abort(self, request_id: str) -> None:
        if self._calls.pop(request_id, None) is not None:
            self._shared.abort(self._inbox, request_id)

    def _take(self, event: Event) -> None:
        call = self._calls.get(event.request_id)
        if call is None:
            return
        try:
            collect(call.output, event)
        except HeadraceError as error:
            del self._calls[event.request_id]
            _set_exception(call.future, error)
            return
        if isinstance(event, RequestDone):
            del self._calls[event.request_id]
            with contextlib.suppress(InvalidStateError):  # it was cancelled just now
                call.future.set_result(call.output)


def _set_exception(future: Future[Output], error: Exception) -> None:
    with contextlib.suppress(InvalidStateError):  # it was cancelled just now
        future.set_exception(error)
