"""One body for sync and async: an operation is a coroutine that awaits futures of a runtime, and is
driven either by the thread that called it or by an event loop."""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Coroutine, Generator
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Generic, TypeAlias, TypeVar

from headrace.errors import HeadraceError

T = TypeVar("T")

Operation: TypeAlias = Coroutine["Future[Any]", Any, T]


@types.coroutine
def settled(future: Future[T]) -> Generator[Future[T], T, T]:
    """The result of a future, awaited in an operation."""
    return (yield future)


def run_sync(operation: Operation[T], timeout_s: float) -> T:
    """Drive an operation in this thread. Raises what it raises, HeadraceError when one of its
    futures takes longer than `timeout_s`; a future that is waited for no more is cancelled."""
    turn = _Turn(operation)
    while (future := turn.next()) is not None:
        try:
            turn.value = future.result(timeout_s)
        except TimeoutError as error:
            is_its_own = future.done() and not future.cancelled() and future.exception() is error
            turn.error = error if is_its_own else _too_late(timeout_s)
        except BaseException as error:  # an interrupt of the user's, too
            turn.error = error
        if turn.error is not None:
            future.cancel()
    return turn.result


async def run_async(operation: Operation[T], timeout_s: float) -> T:
    """Drive an operation in this event loop: like run_sync; cancelling the task cancels it."""
    turn = _Turn(operation)
    while (future := turn.next()) is not None:
        wrapped = asyncio.wrap_future(future)
        wrapped.add_done_callback(_retrieve)
        try:
            if not (await asyncio.wait((wrapped,), timeout=timeout_s))[0]:
                turn.error = _too_late(timeout_s)
            else:
                turn.value = future.result()  # its CancelledError is no task's
        except BaseException as error:
            turn.error = error
        if turn.error is not None:
            future.cancel()
    return turn.result


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Nobody may be left to see how it ended: that is no reason for a warning."""
    if not future.cancelled():
        future.exception()


class _Turn(Generic[T]):
    """An operation from one future to the next. `value` or `error` is what became of the last."""

    def __init__(self, operation: Operation[T]) -> None:
        self._operation = operation
        self.value: Any = None
        self.error: BaseException | None = None
        self.result: T

    def next(self) -> Future[Any] | None:
        """The next future to wait for; None at the end, with `result`."""
        value, error = self.value, self.error
        self.value = self.error = None
        try:
            if error is None:
                return self._operation.send(value)
            return self._operation.throw(error)
        except StopIteration as stop:
            self.result = stop.value
            return None


def _too_late(timeout_s: float) -> HeadraceError:
    return HeadraceError(
        f"There was no answer within {timeout_s:g} s; give the session a longer timeout_s."
    )


class Scope:
    """Futures that end together. `reason` is what their operations are told then."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.is_cancelled = False
        self._futures: set[Future[Any]] = set()
        self._lock = threading.Lock()

    def watch(self, future: Future[Any]) -> None:
        """Cancel the future with the scope; at once, if the scope is cancelled already."""
        with self._lock:
            is_late = self.is_cancelled
            if not is_late:
                self._futures.add(future)
        if is_late:
            future.cancel()
        else:
            future.add_done_callback(self._forget)

    def cancel(self, reason: str | None = None) -> None:
        """Cancel all futures, those to come as well. Only the first reason counts."""
        with self._lock:
            if not self.is_cancelled:
                self.is_cancelled = True
                self.reason = reason or self.reason
            futures = list(self._futures)
        for future in futures:
            future.cancel()

    @property
    def num_watched(self) -> int:
        return len(self._futures)

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.discard(future)


# The parallel sections that a thread works for, the outermost first.
sections: ContextVar[tuple[Scope, ...]] = ContextVar("sections", default=())
