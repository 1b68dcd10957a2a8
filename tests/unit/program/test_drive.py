"""Operations driven by a thread and by an event loop: results, errors, time, cancelling."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.program.drive import Operation, Scope, run_async, run_sync, settled

Run = Callable[[Operation[Any], float], Awaitable[Any]]


async def _in_thread(operation: Operation[Any], timeout_s: float) -> Any:
    return await asyncio.to_thread(run_sync, operation, timeout_s)


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    return _in_thread if request.param == "sync" else run_async


def done(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(value, BaseException):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


async def test_results_go_in_and_come_out(run: Run) -> None:
    async def body() -> int:
        total = 0
        for value in (1, 2, 3):
            total += await settled(done(value))
        return total

    assert await run(body(), 1) == 6


async def test_a_result_that_comes_later(run: Run) -> None:
    future: Future[int] = Future()

    async def body() -> int:
        return await settled(future)

    threading.Timer(0.05, future.set_result, (7,)).start()
    assert await run(body(), 20) == 7


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError("its own"), HeadraceError("y")])
async def test_errors_are_raised_where_they_are_waited_for(run: Run, error: Exception) -> None:
    async def body() -> str:
        with pytest.raises(type(error)) as caught:
            await settled(done(error))
        assert caught.value is error
        await settled(done(error))
        return "never"

    with pytest.raises(type(error), match=str(error)):
        await run(body(), 1)


async def test_a_wait_ends_and_cancels_what_it_waited_for(run: Run) -> None:
    future: Future[int] = Future()

    async def body() -> int:
        return await settled(future)

    with pytest.raises(HeadraceError, match=r"no answer within 0\.05 s"):
        await run(body(), 0.05)
    assert future.cancelled()


async def test_a_cancelled_future_is_no_cancelled_task(run: Run) -> None:
    scope = Scope("over")
    future: Future[int] = Future()
    scope.watch(future)

    async def body() -> str:
        try:
            await settled(future)
        except CancelledError:
            return "told"
        return "never"

    threading.Timer(0.05, scope.cancel).start()
    assert await run(body(), 20) == "told"


async def test_a_cancelled_task_cancels_what_it_waits_for() -> None:
    future: Future[int] = Future()
    ended = []

    async def body() -> int:
        try:
            return await settled(future)
        finally:
            ended.append(True)

    task = asyncio.ensure_future(run_async(body(), 20))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert future.cancelled()
    assert ended == [True]


def test_an_interrupt_cancels_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    future: Future[int] = Future()
    monkeypatch.setattr(future, "result", interrupted)

    async def body() -> int:
        return await settled(future)

    with pytest.raises(KeyboardInterrupt):
        run_sync(body(), 20)
    assert future.cancelled()


def test_a_scope_cancels_once_and_what_comes_late() -> None:
    scope = Scope("first")
    before, finished, after = Future[int](), Future[int](), Future[int]()
    scope.watch(before)
    scope.watch(finished)
    finished.set_result(1)
    assert scope.num_watched == 1
    scope.cancel("second")
    scope.cancel("third")
    scope.watch(after)
    assert (scope.reason, scope.num_watched) == ("second", 0)
    assert before.cancelled()
    assert after.cancelled()
    assert finished.result() == 1


def test_scopes_and_futures_meet_from_many_threads() -> None:
    """Whoever comes first, no future is left that nobody cancels."""
    for _ in range(50):
        scope = Scope("over")
        futures = [Future[int]() for _ in range(20)]
        threads = [threading.Thread(target=scope.watch, args=(f,)) for f in futures]
        threads.append(threading.Thread(target=scope.cancel))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(0)
        assert all(future.cancelled() for future in futures)
        assert scope.num_watched == 0
