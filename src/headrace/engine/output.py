"""What a request of `LLM` ends with, and how it is put together from the engine's events."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.engine.base import (
    ChoiceDelta,
    Event,
    PromptDelta,
    RequestDone,
    RequestFailed,
    TokenLogprob,
)
from headrace.engine.sampling import SamplingParams
from headrace.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request, summed over its choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds a request waited, prefilled (to its first token) and decoded."""

    queue_s: float
    prefill_s: float
    decode_s: float


@dataclass(slots=True)
class Choice:
    """One completion. `logprobs` has one entry per token id when asked for. n = 1 with `seed`
    gives the same text."""

    index: int
    seed: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str = ""
    stop_reason: str | int | None = None


@dataclass(slots=True)
class Output:
    """Result of one prompt; `text`, `token_ids` and the like are the first choice's.

    `prompt_logprobs` begin with position `prompt_logprobs_from`; position 0 is None.
    """

    prompt_token_ids: list[int]
    choices: list[Choice]
    prompt_logprobs: list[TokenLogprob | None] | None = None
    usage: Usage = Usage(0, 0, 0)
    timings: Timings = Timings(0.0, 0.0, 0.0)

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> list[TokenLogprob] | None:
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """News of one choice; the last chunk of a choice has a finish_reason."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    finish_reason: str | None


def empty_output(prompt_ids: list[int], params: SamplingParams) -> Output:
    """The output of a request of which nothing is known yet."""
    choices = [
        Choice(index, logprobs=None if params.logprobs is None else []) for index in range(params.n)
    ]
    return Output(prompt_ids, choices, None if params.prompt_logprobs is None else [])


def collect(output: Output, event: Event) -> None:
    """Add one event of its request to an output. Raises HeadraceError when the request failed."""
    if isinstance(event, ChoiceDelta):
        choice = output.choices[event.choice]
        choice.text += event.text
        choice.token_ids += event.token_ids
        if choice.logprobs is not None and event.logprobs is not None:
            choice.logprobs += event.logprobs
        if event.finish_reason is not None:
            choice.finish_reason = event.finish_reason
            choice.stop_reason = event.stop_reason
    elif isinstance(event, PromptDelta):
        if output.prompt_logprobs is not None:
            output.prompt_logprobs += event.entries
    elif isinstance(event, RequestDone):
        output.usage = Usage(event.num_prompt, event.num_output, event.num_cached)
        output.timings = Timings(event.queue_s, event.prefill_s, event.decode_s)
        for choice, seed in zip(output.choices, event.seeds, strict=True):
            choice.seed = seed
    elif isinstance(event, RequestFailed):
        raise HeadraceError(event.message)
