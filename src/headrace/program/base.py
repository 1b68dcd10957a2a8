"""The seam of programs: what a prompt with control flow needs of whatever runs the model.

A `Runtime` turns text into token ids and token ids into more of them. There are two: `in_process`
over an LLM, `remote` over a server's HTTP API. The front end above knows neither.

Contract
- Every method returns at once. What it promises comes in a `concurrent.futures.Future`, which a
  thread or an event loop may wait for. Cancelling a future frees what its request holds; a future
  fails with RequestError for a request that cannot be served as asked, else with HeadraceError.
- Prompts are token ids, and the caller only ever appends to them: requests that share a beginning
  share the same ids, so that a cache can find it. Nobody but the caller cuts or joins ids.
- `encode(texts, add_special)`: ids of each text; `add_special` puts what the model wants around a
  text that begins a prompt. `decode(ids)`: their text, without special tokens. `render(messages)`:
  ids of a conversation up to where the model's next answer begins.
- `generate(ids, params)`: one choice. `params.seed` and `params.max_tokens` are set, `params.n` is
  1. The same ids and params give the same result in every runtime, bit for bit.
- `score(prefix, tails)`: for each tail the logprobs of its tokens after `prefix` (not empty) and
  the tail's own tokens before. The results of the futures, one after the other, are in the order of
  the tails. A runtime asks for no logprob of the prefix, so that a cache can give all of it.
- `abandon(prefix, tails)`: a hint that nobody will go on with prefix + tail, for any of the tails;
  see engine.base. It may come to nothing, and never fails.
- `close` cancels what runs and gives back threads and connections; afterwards nothing is called.
- All methods may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, TypedDict

from headrace.engine.sampling import SamplingParams

# Carried by every request of a session, so that a router can send its branches to one cache.
SESSION_HEADER = "x-headrace-session"


class Message(TypedDict):
    """A turn of a conversation; `role` is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of requests: of their prompts, how many of those were cached, of their outputs.

    What was cached depends on who came first, so it does not make results unequal.
    """

    prompt: int = 0
    cached: int = field(default=0, compare=False)
    output: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.prompt + other.prompt, self.cached + other.cached, self.output + other.output
        )


@dataclass(frozen=True, slots=True)
class Generated:
    """One choice. `token_ids` include those that ended it; `text` does not.

    `finish_reason`: "stop" or "length"; `stop_reason`: the stop string or the stop token id of the
    request that ended it, None for the model's own end token. `logprobs`: one for each token id.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | int | None
    logprobs: tuple[float, ...] | None
    counts: Counts


@dataclass(frozen=True, slots=True)
class Scored:
    """Logprobs of the tokens of some tails."""

    logprobs: tuple[tuple[float, ...], ...]
    counts: Counts


class Runtime(Protocol):
    """See the module docstring."""

    def encode(self, texts: Sequence[str], *, add_special: bool) -> Future[list[list[int]]]: ...

    def decode(self, ids: Sequence[int]) -> Future[str]: ...

    def render(self, messages: Sequence[Message]) -> Future[list[int]]: ...

    def generate(self, ids: Sequence[int], params: SamplingParams) -> Future[Generated]: ...

    def score(
        self, prefix: Sequence[int], tails: Sequence[Sequence[int]]
    ) -> list[Future[Scored]]: ...

    def abandon(self, prefix: Sequence[int], tails: Sequence[Sequence[int]]) -> None: ...

    def close(self) -> None: ...
