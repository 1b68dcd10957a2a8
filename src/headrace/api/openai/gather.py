"""Collects a whole stream for a response that is not streamed."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal, cast

from headrace.api.openai.compact import CompactLogprobs, EntryBudget
from headrace.gateway.errors import FailedError
from headrace.gateway.streams import RequestStream
from headrace.text.base import Tokenizer
from headrace.worker.frames import Delta, Failed, Finished, PromptLogprobs

_WAIT_S = 3600.0
_MANY_TOKENS = 256


@dataclass(slots=True)
class Choice:
    """Everything of one choice."""

    logprobs: CompactLogprobs
    texts: list[str] = field(default_factory=list)
    token_ids: array[int] = field(default_factory=lambda: array("i"))
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Gathered:
    """All choices of a request by (part, choice), log-probabilities of each part's prompt, and what
    each part ended with."""

    def __init__(
        self,
        num_parts: int,
        num_choices: int,
        tokenizer: Tokenizer,
        budget: EntryBudget | None = None,
    ) -> None:
        kept = budget or EntryBudget()
        pairs = [(p, c) for p in range(num_parts) for c in range(num_choices)]
        self.choices = {pair: Choice(CompactLogprobs(tokenizer, kept)) for pair in pairs}
        self.prompts = [CompactLogprobs(tokenizer, kept) for _ in range(num_parts)]
        self.done: dict[int, Finished] = {}

    @property
    def is_large(self) -> bool:
        """Making a response of it takes long."""
        kept = [*self.prompts, *(choice.logprobs for choice in self.choices.values())]
        return sum(map(len, kept)) > _MANY_TOKENS

    async def collect(self, stream: RequestStream) -> None:
        """Read to the end. Raises FailedError when the stream fails, and RequestError when the
        answer gets too large."""
        while not stream.is_done or stream.has_events:
            for part, event in await stream.take(_WAIT_S):
                if isinstance(event, Delta):
                    self._add(part, event)
                elif isinstance(event, PromptLogprobs):
                    for entry in event.entries:
                        self.prompts[part].add(entry)
                elif isinstance(event, Finished):
                    self.done[part] = event
                elif isinstance(event, Failed):
                    raise FailedError(event)

    def _add(self, part: int, event: Delta) -> None:
        choice = self.choices[part, event.choice]
        choice.texts.append(event.text)
        choice.token_ids.extend(event.token_ids)
        for entry in event.logprobs or ():
            choice.logprobs.add(entry)
        if event.finish_reason is not None:
            choice.finish_reason = cast(Literal["stop", "length"], event.finish_reason)
            choice.stop_reason = event.stop_reason
