"""Whole responses of the OpenAI API as structs, and the logprob formats of both dialects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from headrace.worker.frames import Finished, TokenLogprob

# JSON has no infinity; OpenAI's API writes this for a token that could not be drawn.
MIN_LOGPROB = -9999.0


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Prompt tokens whose keys and values were in the cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Of the output tokens."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request over all its prompts and choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()


class Timings(msgspec.Struct, frozen=True):
    """Seconds of each phase, the longest over the prompts of a request; only when asked for."""

    queue_s: float
    prefill_s: float
    decode_s: float


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One choice. `logprobs` is a CompletionLogprobs; `seed` and those after it are extensions."""

    index: int
    text: str
    logprobs: msgspec.Raw | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None
    seed: int
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class CompletionResponse(msgspec.Struct, kw_only=True):
    """Answer of POST /v1/completions."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: Timings | msgspec.UnsetType = msgspec.UNSET


class ChatResponseMessage(msgspec.Struct, kw_only=True):
    """What the model said."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    """One choice. `logprobs` is {"content": [...], "refusal": null}; from `seed` on: extensions."""

    index: int
    message: ChatResponseMessage
    logprobs: msgspec.Raw | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None
    seed: int
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatResponse(msgspec.Struct, kw_only=True):
    """Answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def usage_of(done: Sequence[Finished]) -> Usage:
    """Sums over the prompts of a request."""
    num_prompt = sum(frame.num_prompt for frame in done)
    num_output = sum(frame.num_output for frame in done)
    num_cached = sum(frame.num_cached for frame in done)
    details = PromptTokensDetails(num_cached)
    return Usage(num_prompt, num_output, num_prompt + num_output, details)


def timings_of(done: Sequence[Finished]) -> Timings:
    """The longest of each phase."""
    return Timings(
        max(frame.timings.queue_s for frame in done),
        max(frame.timings.prefill_s for frame in done),
        max(frame.timings.decode_s for frame in done),
    )


# ---- log-probabilities ----


def chat_logprob(entry: TokenLogprob) -> bytes:
    """JSON of one item of a chat choice's `logprobs.content`."""
    top = [
        {"token": text, "logprob": max(value, MIN_LOGPROB), "bytes": list(raw)}
        for _, text, raw, value in entry.top
    ]
    return msgspec.json.encode(
        {
            "token": entry.text,
            "logprob": max(entry.logprob, MIN_LOGPROB),
            "bytes": list(entry.raw),
            "top_logprobs": top,
        }
    )


def chat_logprobs(items: Sequence[bytes]) -> bytes:
    """JSON of a chat choice's `logprobs`."""
    return b'{"content":[' + b",".join(items) + b'],"refusal":null}'


class CompletionLogprobs:
    """The four lists of the completions format, kept as JSON pieces; adds up `text_offset`.

    An offset counts the characters before a token's first byte, prompt included when it is echoed.
    """

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._tokens: list[bytes] = []
        self._logprobs: list[bytes] = []
        self._tops: list[bytes] = []
        self._offsets: list[bytes] = []
        self._offset = 0

    def add(self, entry: TokenLogprob | None, unknown: tuple[str, bytes] | None = None) -> None:
        """A token; `unknown` is (text, bytes) of one without logprob (a prompt's first)."""
        encode = msgspec.json.encode
        if entry is None:
            text, raw = unknown or ("", b"")
            self._logprobs.append(b"null")
            self._tops.append(b"null")
        else:
            text, raw = entry.text, entry.raw
            self._logprobs.append(encode(max(entry.logprob, MIN_LOGPROB)))
            top: dict[str, float] = {}
            for _, shown, _, value in entry.top[: self._num_top]:
                top.setdefault(shown, max(value, MIN_LOGPROB))
            top.setdefault(text, max(entry.logprob, MIN_LOGPROB))
            self._tops.append(encode(top))
        self._tokens.append(encode(text))
        self._offsets.append(b"%d" % self._offset)
        self._offset += num_characters(raw)

    def take(self) -> bytes:
        """JSON of what was added since the last call."""
        data = b"".join(
            (
                b'{"tokens":[',
                b",".join(self._tokens),
                b'],"token_logprobs":[',
                b",".join(self._logprobs),
                b'],"top_logprobs":[',
                b",".join(self._tops),
                b'],"text_offset":[',
                b",".join(self._offsets),
                b"]}",
            )
        )
        for pieces in (self._tokens, self._logprobs, self._tops, self._offsets):
            pieces.clear()
        return data


def num_characters(raw: bytes) -> int:
    """Characters that begin in these bytes of UTF-8."""
    return sum(1 for byte in raw if byte & 0xC0 != 0x80)


def prompt_logprob(entry: TokenLogprob | None, num_top: int) -> bytes:
    """JSON of one item of `prompt_logprobs`: null, or alternatives by token id with their ranks."""
    if entry is None:
        return b"null"
    shown: dict[str, dict[str, Any]] = {}
    for rank, (token, text, _, value) in enumerate(entry.top[:num_top], 1):
        logprob = max(value, MIN_LOGPROB)
        shown[str(token)] = {"logprob": logprob, "rank": rank, "decoded_token": text}
    if str(entry.token_id) not in shown:
        logprob = max(entry.logprob, MIN_LOGPROB)
        own = {"logprob": logprob, "rank": None, "decoded_token": entry.text}
        shown[str(entry.token_id)] = own
    return msgspec.json.encode(shown)
