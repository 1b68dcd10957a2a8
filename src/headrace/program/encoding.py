"""Token ids of a prompt's content, through the runtime's tokenizer."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headrace.program.base import Generated, Runtime
from headrace.program.content import Content, Run

T = TypeVar("T")


class Wait(Protocol):
    """How an operation waits for a future of the runtime."""

    def __call__(self, future: Future[T]) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class Encoded:
    """Ids of a content with each of some endings: `fixed` of the messages and runs that have ids,
    `open` (one for each ending) of the open text and the ending."""

    head: tuple[int, ...]
    fixed: tuple[int, ...]
    open: tuple[tuple[int, ...], ...]

    def ids(self, index: int) -> tuple[int, ...]:
        """Everything up to ending `index`."""
        return self.fixed + self.open[index]


class Encoder:
    """Encodes for one runtime. Holds what it learned of the tokenizer."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # Ids of a line break, and whether the tokenizer puts a space before every text.
        self._line: list[int] | None = None
        self._adds_space = False

    async def encode(self, content: Content, endings: Sequence[str], wait: Wait) -> Encoded:
        """The ids of a content and each ending, tokenized as one text from the last id on."""
        head = content.head
        if content.messages and head is None:
            rendered = await wait(self._runtime.render(content.messages))
            head = tuple(rendered)
        head = head or ()
        fixed = head + tuple(token for run in content.fixed for token in run.ids or ())
        texts = [content.open_text + ending for ending in endings]
        if not content.messages and not content.fixed:
            encoded = await wait(self._runtime.encode(texts, add_special=True))
        else:
            encoded = await self._continuations(texts, wait)
        return Encoded(head, fixed, tuple(tuple(ids) for ids in encoded))

    async def _continuations(self, texts: list[str], wait: Wait) -> list[list[int]]:
        """Ids of texts that do not begin a prompt.

        Some vocabularies encode every text as if a space came before it, which here would be a
        space in the middle. A line break is a token of its own there: encoded with one before it,
        a text has the ids that it has after something.
        """
        if not any(texts):
            return [[] for _ in texts]
        if self._line is None:
            runtime = self._runtime
            (probe, line) = await wait(runtime.encode(["a", "\n"], add_special=False))
            self._adds_space = (await wait(runtime.decode(probe))).startswith(" ")
            self._line = line
        if not self._adds_space:
            return await wait(self._runtime.encode(texts, add_special=False))
        line = self._line
        broken = await wait(self._runtime.encode(["\n" + t for t in texts], add_special=False))
        return [ids[len(line) :] if ids[: len(line)] == line else ids for ids in broken]

    async def run_of(self, generated: Generated, wait: Wait) -> tuple[Run, str]:
        """An answer as a run with the ids that the model wrote, and what is left of its text.

        A token that ended the answer is no part of it. A stop string may end inside of a token:
        then the text of that token that came before it is left, and has no ids of its own yet.
        """
        ids, text = generated.token_ids, generated.text
        if generated.finish_reason == "length":
            return Run(text, ids), ""
        if not isinstance(generated.stop_reason, str):
            return Run(text, ids[:-1]), ""
        for length in range(len(ids), 0, -1):
            written = await wait(self._runtime.decode(ids[:length]))
            if text.startswith(written):
                return Run(written, ids[:length]), text[len(written) :]
        return Run("", ()), text
