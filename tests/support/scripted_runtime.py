"""A runtime of scripts: a test says what is generated, what is likely, and what takes forever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.engine.sampling import SamplingParams
from headrace.program.base import Counts, Generated, Message, Scored
from tests.support.fake_text import EOS, FakeTemplate, FakeTokenizer

T = TypeVar("T")

# The text of a prompt -> its continuation, an error, or None for an answer that never comes.
Script = Callable[[str], str | Exception | None]


def echo(prompt: str) -> str:
    """The default script: a digit that says how long the prompt was."""
    return str(len(prompt) % 10)


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future


@dataclass
class ScriptedRuntime:
    """Implements program.base.Runtime. Tokens are bytes; `logprob(text, byte)` scores a byte."""

    script: Script = echo
    logprob: Callable[[str, str], float] = lambda before, char: -1.0
    prompts: list[str] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    scored: list[tuple[str, list[str]]] = field(default_factory=list)
    abandoned: list[tuple[str, list[str]]] = field(default_factory=list)
    pending: list[Future[Generated]] = field(default_factory=list)
    num_closed: int = 0

    def __post_init__(self) -> None:
        self._tokenizer = FakeTokenizer()
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str], *, add_special: bool) -> Future[list[list[int]]]:
        return _done([self._tokenizer.encode(t, add_special=add_special) for t in texts])

    def decode(self, ids: Sequence[int]) -> Future[str]:
        return _done(self._text(ids))

    def render(self, messages: Sequence[Message]) -> Future[list[int]]:
        return _done(self._tokenizer.encode(FakeTemplate().render(messages)))

    def generate(self, ids: Sequence[int], params: SamplingParams) -> Future[Generated]:
        prompt = self._tokenizer.decode(ids, skip_special=False)
        with self._lock:
            self.prompts.append(prompt)
            self.params.append(params)
        answer = self.script(prompt)
        future: Future[Generated] = Future()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is None:
            with self._lock:
                self.pending.append(future)
        else:
            tokens = (*answer.encode(), EOS)
            counts = Counts(len(ids), 0, len(tokens))
            logprobs = (-0.5,) * len(tokens) if params.logprobs is not None else None
            future.set_result(Generated(answer, tokens, "stop", None, logprobs, counts))
        return future

    def score(self, prefix: Sequence[int], tails: Sequence[Sequence[int]]) -> list[Future[Scored]]:
        before = self._text(prefix)
        texts = [self._text(tail) for tail in tails]
        with self._lock:
            self.scored.append((before, texts))
        return [
            _done(
                Scored(
                    (tuple(self.logprob(before + t[:i], char) for i, char in enumerate(t)),),
                    Counts(len(before) + len(t)),
                )
            )
            for t in texts
        ]

    def abandon(self, prefix: Sequence[int], tails: Sequence[Sequence[int]]) -> None:
        with self._lock:
            self.abandoned.append((self._text(prefix), [self._text(tail) for tail in tails]))

    def close(self) -> None:
        self.num_closed += 1

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)
