"""Tokenizer and chat template of a model in the gateway, run in threads, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from headrace.errors import OverloadedError
from headrace.gateway.config import ModelSpec
from headrace.text.base import ChatTemplate, Tokenizer

T = TypeVar("T")

_MAX_PENDING = 512


@dataclass(frozen=True, slots=True)
class ModelText:
    """`has_chat`: the model itself carries a chat template, so it was trained to answer."""

    tokenizer: Tokenizer
    template: ChatTemplate
    has_chat: bool


TextLoader: TypeAlias = Callable[[ModelSpec], ModelText]


def load_text(spec: ModelSpec) -> ModelText:
    """Read tokenizer and chat template of a model. Raises ModelFormatError."""
    from headrace.text.chat_template import load_chat_template
    from headrace.text.tokenizer import load_tokenizer
    from headrace.weights.open import open_source

    source = open_source(spec.path)
    try:
        tokenizer = load_tokenizer(source.tokenizer, source.config.vocab_size)
        template = load_chat_template(source.chat_template, tokenizer)
        return ModelText(tokenizer, template, source.chat_template is not None)
    finally:
        source.close()


class TextPool:
    """Runs functions that read clients' text in two threads; bounds how many wait.

    Large inputs share one thread: behind them no small one waits, and the event loop never has more
    than two rivals for the interpreter.
    """

    def __init__(self) -> None:
        self._small = ThreadPoolExecutor(1, thread_name_prefix="text")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="large-text")
        self._num_pending = 0

    async def run(self, function: Callable[[], T], *, is_large: bool = False) -> T:
        """The function's result. Raises OverloadedError when too many wait already."""
        if self._num_pending >= _MAX_PENDING:
            raise OverloadedError("Too many prompts wait to be tokenized.", retry_after_s=1.0)
        self._num_pending += 1
        executor = self._large if is_large else self._small
        future = asyncio.get_running_loop().run_in_executor(executor, function)
        future.add_done_callback(self._done)
        return await future

    def _done(self, _: object) -> None:
        self._num_pending -= 1

    def close(self) -> None:
        """Do not wait for what runs."""
        for executor in (self._small, self._large):
            executor.shutdown(wait=False, cancel_futures=True)
