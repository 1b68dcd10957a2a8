"""Collects a whole stream for a response that is not streamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, cast

from headrace.gateway.errors import FailedError
from headrace.gateway.streams import RequestStream
from headrace.worker.frames import Delta, Failed, Finished, PromptLogprobs, TokenLogprob

_WAIT_S = 3600.0


@dataclass(slots=True)
class Choice:
    """Everything of one choice."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Gathered:
    """All choices of a request by (part, choice), and what each part ended with.

    Log-probabilities go to `on_logprobs(part, choice, entry)` and `on_prompt(part, entry)` one by
    one, so that they are kept in the caller's compact form.
    """

    def __init__(
        self,
        num_parts: int,
        num_choices: int,
        *,
        on_logprobs: Callable[[int, int, TokenLogprob], None] | None = None,
        on_prompt: Callable[[int, TokenLogprob | None], None] | None = None,
    ) -> None:
        self.choices = {(p, c): Choice() for p in range(num_parts) for c in range(num_choices)}
        self.done: dict[int, Finished] = {}
        self._on_logprobs = on_logprobs
        self._on_prompt = on_prompt

    async def collect(self, stream: RequestStream) -> None:
        """Read to the end. Raises FailedError when the stream fails."""
        while not stream.is_done or stream.has_events:
            for part, event in await stream.take(_WAIT_S):
                if isinstance(event, Delta):
                    self._add(part, event)
                elif isinstance(event, PromptLogprobs):
                    if self._on_prompt is not None:
                        for entry in event.entries:
                            self._on_prompt(part, entry)
                elif isinstance(event, Finished):
                    self.done[part] = event
                elif isinstance(event, Failed):
                    raise FailedError(event)

    def _add(self, part: int, event: Delta) -> None:
        choice = self.choices[part, event.choice]
        choice.texts.append(event.text)
        choice.token_ids.extend(event.token_ids)
        if event.logprobs is not None and self._on_logprobs is not None:
            for entry in event.logprobs:
                self._on_logprobs(part, event.choice, entry)
        if event.finish_reason is not None:
            choice.finish_reason = cast(Literal["stop", "length"], event.finish_reason)
            choice.stop_reason = event.stop_reason
