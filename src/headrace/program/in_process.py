"""Programs on an LLM of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from headrace.engine.base import DEFAULT_OPTIONS, RequestOptions
from headrace.engine.sampling import SamplingParams
from headrace.errors import HeadraceError
from headrace.program.base import Counts, Generated, Message, Scored

if TYPE_CHECKING:
    from headrace.engine.llm import LLM
    from headrace.engine.output import Output

T = TypeVar("T")


class InProcessRuntime:
    """Implements base.Runtime over an LLM, which it does not own. `options`: of all requests."""

    def __init__(self, llm: LLM, options: RequestOptions = DEFAULT_OPTIONS) -> None:
        self._llm = llm
        self._options = options

    def encode(self, texts: Sequence[str], *, add_special: bool) -> Future[list[list[int]]]:
        return _done(
            lambda: [self._llm.tokenizer.encode(t, add_special=add_special) for t in texts]
        )

    def decode(self, ids: Sequence[int]) -> Future[str]:
        return _done(lambda: self._llm.tokenizer.decode(ids))

    def render(self, messages: Sequence[Message]) -> Future[list[int]]:
        return _done(lambda: self._llm.render(messages))

    def generate(self, ids: Sequence[int], params: SamplingParams) -> Future[Generated]:
        return _read(lambda: self._submit(ids, params), _generated)

    def score(self, prefix: Sequence[int], tails: Sequence[Sequence[int]]) -> list[Future[Scored]]:
        params = SamplingParams(
            max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=len(prefix), seed=0
        )
        prompts = [[*prefix, *tail] for tail in tails]
        return [_read(partial(self._submit, prompt, params), _scored) for prompt in prompts]

    def abandon(self, prefix: Sequence[int], tails: Sequence[Sequence[int]]) -> None:
        self._llm.abandon(prefix, tails, self._options.salt)

    def _submit(self, ids: Sequence[int], params: SamplingParams) -> Future[Output]:
        return self._llm.submit(ids, params, options=self._options)

    def close(self) -> None:
        """What runs was cancelled by the session; the LLM is its owner's."""


def _generated(output: Output) -> Generated:
    choice = output.choices[0]
    logprobs = None if choice.logprobs is None else tuple(e.logprob for e in choice.logprobs)
    return Generated(
        choice.text,
        tuple(choice.token_ids),
        choice.finish_reason,
        choice.stop_reason,
        logprobs,
        _counts(output),
    )


def _scored(output: Output) -> Scored:
    entries = output.prompt_logprobs or []
    return Scored((tuple(e.logprob for e in entries if e is not None),), _counts(output))


def _counts(output: Output) -> Counts:
    usage = output.usage
    return Counts(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)


def _done(make: Callable[[], T]) -> Future[T]:
    """A future of what is made at once."""
    future: Future[T] = Future()
    try:
        future.set_result(make())
    except Exception as error:  # the caller sees it where it waits
        future.set_exception(error)
    return future


def _read(submit: Callable[[], Future[Output]], read: Callable[[Output], T]) -> Future[T]:
    """A future of what is read of an output. Cancelling it cancels the request."""
    outer: Future[T] = Future()
    try:
        inner = submit()
    except HeadraceError as error:
        outer.set_exception(error)
        return outer

    def settle(done: Future[Output]) -> None:
        with contextlib.suppress(InvalidStateError):  # the outer one was cancelled just now
            if done.cancelled():
                outer.cancel()
            elif (error := done.exception()) is not None:
                outer.set_exception(error)
            else:
                outer.set_result(read(done.result()))

    def cancel(made: Future[T]) -> None:
        if made.cancelled():
            made.set_running_or_notify_cancel()
            inner.cancel()

    inner.add_done_callback(settle)
    outer.add_done_callback(cancel)
    return outer
