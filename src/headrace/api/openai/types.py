"""Requests of the OpenAI API as typed structs: what is read, with the limits of each field."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from headrace.engine.base import MAX_PRIORITY, MAX_SALT_LEN
from headrace.engine.sampling import (
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_STOP_LEN,
    MAX_STOP_STRINGS,
    MAX_TOP_LOGPROBS,
)
from headrace.kv.radix.base import MAX_PRIORITY as MAX_CACHE_PRIORITY
from headrace.kv.radix.base import MAX_TTL_S
from headrace.kv.radix.base import MIN_PRIORITY as MIN_CACHE_PRIORITY

MAX_PROMPTS = 64
MAX_MESSAGES = 10_000
MAX_TAILS = 1024
_MAX_INT = 1 << 30

TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
TokenCount: TypeAlias = Annotated[int, Meta(ge=0, le=_MAX_INT)]
NumLogprobs: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]
StopString: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LEN)]
Bias: TypeAlias = Annotated[float, Meta(ge=-100, le=100)]
ModelName: TypeAlias = Annotated[str, Meta(max_length=1024)]
Salt: TypeAlias = Annotated[str, Meta(max_length=MAX_SALT_LEN)]


class StreamOptions(msgspec.Struct, kw_only=True):
    """`include_usage`: one last chunk with the usage; `continuous_usage_stats`: in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class CacheControl(msgspec.Struct, kw_only=True):
    """How what is computed for a request is kept and shared.

    `ttl`: seconds after its last use at which it is forgotten (null: only when memory is needed).
    `priority`: what has a lower one is given up first; 50 unless it is said. `salt`: only requests
    with the same one find each other's.
    """

    ttl: Annotated[float, Meta(gt=0, le=MAX_TTL_S)] | None = None
    priority: Annotated[int, Meta(ge=MIN_CACHE_PRIORITY, le=MAX_CACHE_PRIORITY)] | None = None
    salt: Salt | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """Fields that completions and chat completions share. Null means the default."""

    model: ModelName
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: TokenCount | None = None
    min_tokens: TokenCount | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_MAX_INT)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    # Any 64-bit integer, signed or not: the seeds that responses report can be sent back.
    seed: int | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_LOGIT_BIAS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=MAX_LOGIT_BIAS)] | None = None
    prompt_logprobs: NumLogprobs | None = None
    # Extension: the list begins with this position, and what lies before it may be cached.
    prompt_logprobs_from: TokenCount | None = None
    # Extension: the class of the request in the queue; lower goes first.
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    # Extension: see CacheControl. `cache_salt` is the salt's name elsewhere.
    cache: CacheControl | None = None
    cache_salt: Salt | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Extensions: token ids beside the text, and the seconds each phase took.
    return_token_ids: bool | None = None
    timings: bool | None = None
    # Advisory: read by nobody, but part of the API.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: Literal["auto", "default"] | None = None

    def forget_unread(self) -> None:
        """Drop what can be long and is not read once the prompts are tokenized."""
        self.user = self.metadata = self.safety_identifier = None
        self.prompt_cache_key = self.prompt_cache_retention = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """Body of POST /v1/completions. `prompt`: a text, texts, token ids, or lists of token ids."""

    prompt: str | list[str | TokenId | list[TokenId]]
    # Only with as many as are returned: nothing here ranks choices.
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    echo: bool | None = None
    logprobs: NumLogprobs | None = None

    def forget_unread(self) -> None:
        """The prompt is read again when it is echoed."""
        super().forget_unread()
        if not self.echo:
            self.prompt = ""


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message. Only `text` parts can be read by the models served here."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    add_generation_prompt: bool | None = None

    def forget_unread(self) -> None:
        """The messages are in the prompt."""
        super().forget_unread()
        self.messages = []


class AbandonRequest(msgspec.Struct, kw_only=True):
    """Body of POST /v1/cache/abandon, all of it token ids."""

    model: ModelName | None = None
    prefix: list[TokenId]
    tails: Annotated[list[list[TokenId]], Meta(max_length=MAX_TAILS)]
    salt: Salt | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of POST /tokenize: a `prompt` (or `content`), or the `messages` of a chat."""

    model: ModelName | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = (
        None
    )
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of POST /detokenize."""

    model: ModelName | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=1 << 17)]


# Fields that exist in the API or in its usual extensions and cannot be honoured here, with the
# values that ask for nothing.
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "allowed_token_ids": (None, []),
    "audio": (None,),
    "bad_words": (None, []),
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "continue_final_message": (None, False),
    "documents": (None, []),
    "early_stopping": (None, False),
    "function_call": (None, "none"),
    "functions": (None, []),
    "grammar": (None, ""),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "json_schema": (None, {}),
    "length_penalty": (None, 1, 1.0),
    "lora": (None, []),
    "modalities": (None, [], ["text"]),
    "moderation": (None,),
    "parallel_tool_calls": (None, False, True),
    "prediction": (None,),
    "prompt_embeds": (None,),
    "reasoning_effort": (None, "none"),
    "response_format": (None, {"type": "text"}),
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "store": (None, False),
    "structured_outputs": (None, {}),
    "suffix": (None, ""),
    "thinking": (None,),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}
