"""Sessions: where prompts are made, and what they share."""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from headrace.engine.base import DEFAULT_OPTIONS, RequestOptions
from headrace.engine.sampling import mix64
from headrace.errors import CancelledBranchError, HeadraceError, ProgramError, RequestError
from headrace.program.base import Counts, Runtime
from headrace.program.content import Content
from headrace.program.drive import Scope, sections
from headrace.program.encoding import Encoder
from headrace.program.prompt import AsyncPrompt, BasePrompt, Prompt

if TYPE_CHECKING:
    from headrace.engine.llm import LLM

T = TypeVar("T")
R = TypeVar("R")

MAX_BRANCHES = 1024
MAX_THREADS = 64
DEFAULT_TIMEOUT_S = 600.0
_CLOSED = "The session is closed."
_OTHER_FAILED = "Another call of the same parallel failed."


class BaseSession:
    """What both kinds of session share.

    `target`: an LLM of this process, or the URL of a server (`http://127.0.0.1:8000`) with the name
    of one of its models (None: the only one it has) and its key. `seed` decides everything that is
    drawn; None: a new one, in `session.seed`. `timeout_s`: the longest wait for one answer.
    `options`: how all its requests are queued, and what is kept of them; RequestError if they are
    out of range.
    """

    def __init__(
        self,
        target: LLM | str | Runtime,
        *,
        model: str | None = None,
        api_key: str | None = None,
        seed: int | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> None:
        options.validate()
        if seed is not None and type(seed) is not int:
            raise RequestError("The seed is a whole number.", param="seed", code="invalid_type")
        if not timeout_s > 0:
            raise RequestError("timeout_s is above 0.", param="timeout_s", code="invalid_value")
        self.seed = secrets.randbits(53) if seed is None else seed
        self.session_id = f"session-{secrets.token_hex(12)}"
        self.timeout_s = timeout_s
        self.runtime = _runtime(target, self.session_id, model, api_key, options)
        self.encoder = Encoder(self.runtime)
        self.scope = Scope(_CLOSED)
        self._lock = threading.Lock()
        self._counts = Counts()
        self._num_prompts = 0
        self._branches: set[BasePrompt] = set()

    @property
    def counts(self) -> Counts:
        """Tokens of everything that ran so far."""
        return self._counts

    # ---- for prompts ----

    def count(self, counts: Counts) -> None:
        """Add what a request took."""
        with self._lock:
            self._counts += counts

    def check_open(self) -> None:
        """Raise ProgramError once the session is closed."""
        if self.scope.is_cancelled:
            raise ProgramError(_CLOSED)

    def add_branches(self, branches: Sequence[BasePrompt]) -> None:
        """Count branches as alive. Raises ProgramError when there are too many."""
        with self._lock:
            num_alive = len(self._branches)
            if num_alive + len(branches) <= MAX_BRANCHES:
                self._branches.update(branches)
                return
        raise ProgramError(
            f"{num_alive} branches of this session are alive, and {len(branches)} more would be "
            f"above {MAX_BRANCHES}; join or cancel those that are done."
        )

    def end_branch(self, branch: BasePrompt) -> None:
        """A branch is over; may be called again."""
        with self._lock:
            self._branches.discard(branch)

    def _next_seed(self) -> int:
        with self._lock:
            self._num_prompts += 1
            return mix64(self.seed, self._num_prompts)

    def _end(self) -> None:
        """Abort what runs and give everything back; a second call does nothing."""
        with self._lock:
            branches = list(self._branches)
        self.scope.cancel()
        for branch in branches:
            branch._finish(_CLOSED)
        self.runtime.close()


class Session(BaseSession):
    """Prompts whose operations return when they are done. Close it, or use it in a `with`."""

    def prompt(self, text: str = "") -> Prompt:
        """A new prompt that begins with a text."""
        self.check_open()
        return Prompt(self, Content(), self._next_seed()).append(text)

    def parallel(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """`function` of every item, at the same time, in up to 64 threads; results in order.

        When a call fails the others' operations are cancelled, all threads are waited for, and its
        error is raised.
        """
        self.check_open()
        values = list(items)
        if not values:
            return []
        section = Scope(_OTHER_FAILED)
        inner = (*sections.get(), section)

        def call(value: T) -> R:
            sections.set(inner)
            return function(value)

        with ThreadPoolExecutor(min(len(values), MAX_THREADS), "program") as pool:
            futures = [pool.submit(contextvars.copy_context().run, call, value) for value in values]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                if not all(future.done() and not future.exception() for future in futures):
                    section.cancel()
                    pool.shutdown(cancel_futures=True)
        return _results(futures)

    def close(self) -> None:
        """Abort what runs; prompts of this session can be used no more."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncSession(BaseSession):
    """Prompts whose operations are awaited. Close it, or use it in an `async with`."""

    def prompt(self, text: str = "") -> AsyncPrompt:
        """A new prompt that begins with a text."""
        self.check_open()
        return AsyncPrompt(self, Content(), self._next_seed()).append(text)

    async def parallel(self, function: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
        """`function` of every item as a task of its own; results in order.

        When a call fails the others are cancelled and waited for, and its error is raised.
        """
        self.check_open()
        tasks: list[asyncio.Future[R]] = []
        try:
            tasks.extend(asyncio.ensure_future(function(item)) for item in items)
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Abort what runs; prompts of this session can be used no more."""
        await asyncio.to_thread(self._end)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _runtime(
    target: LLM | str | Runtime,
    session_id: str,
    model: str | None,
    api_key: str | None,
    options: RequestOptions,
) -> Runtime:
    if isinstance(target, str):
        from headrace.program.remote import RemoteRuntime

        return RemoteRuntime(target, session_id, model=model, api_key=api_key, options=options)
    from headrace.engine.llm import LLM

    if model is not None or api_key is not None:
        raise HeadraceError("model and api_key go with the URL of a server.")
    if isinstance(target, LLM):
        from headrace.program.in_process import InProcessRuntime

        return InProcessRuntime(target, options)
    if options != DEFAULT_OPTIONS:
        raise HeadraceError("options go with an LLM or the URL of a server.")
    return target


def _results(futures: Sequence[Future[R]]) -> list[R]:
    """The results. Raises the first error, if possible one that was not made by cancelling."""
    errors = [f.exception() for f in futures if not f.cancelled() and f.exception() is not None]
    own = [error for error in errors if not isinstance(error, CancelledBranchError)]
    for error in own or errors:
        assert error is not None
        raise error
    return [future.result() for future in futures]
