"""From request fields to what the engine understands; which fields are ignored or refused."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

from headrace.api.errors import clip
from headrace.api.openai.types import (
    UNSUPPORTED,
    CacheControl,
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    StreamOptions,
)
from headrace.engine.base import RequestOptions
from headrace.engine.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.kv.radix.base import DEFAULT_PRIORITY, Retention

logger = logging.getLogger("headrace.api")

DEFAULT_COMPLETION_TOKENS = 16
_MAX_SHOWN = 20
_logged_fields: set[str] = set()


def ignored_fields(
    fields: Mapping[str, object], known: frozenset[str], *, strict: bool
) -> list[str]:
    """Names of the fields that nobody will read, sorted.

    Raises RequestError `unsupported_parameter` for a field that asks for something that cannot be
    done here, and for any unknown field when `strict`.
    """
    unknown = []
    for name, value in fields.items():
        if name in known:
            continue
        harmless = UNSUPPORTED.get(name)
        if harmless is None:
            unknown.append(clip(name, 100))
        elif not any(value == v and type(value) is type(v) for v in harmless):
            raise RequestError(
                f"{name} is not supported by this server.", param=name, code="unsupported_parameter"
            )
    unknown += _unknown_within(fields)
    unknown.sort()
    if unknown and strict:
        raise RequestError(
            f"Unknown field {unknown[0]!r}.", param=unknown[0], code="unsupported_parameter"
        )
    _log_once(unknown)
    return unknown


def _unknown_within(fields: Mapping[str, object]) -> set[str]:
    """Fields that say something inside `messages` and the like, as `messages.name`."""
    found: set[str] = set()
    structs = (
        ("cache", CacheControl),
        ("stream_options", StreamOptions),
        ("messages", ChatMessage),
    )
    for outer, struct in structs:
        value, known = fields.get(outer), frozenset(struct.__struct_fields__)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                names = [n for n in item.keys() - known if item[n] not in (None, [], {})]
                found.update(f"{outer}.{clip(name, 100)}" for name in names)
    return found


def _log_once(names: list[str]) -> None:
    for name in names:
        if name not in _logged_fields and len(_logged_fields) < 100:
            _logged_fields.add(name)
            logger.warning("requests carry the unknown field %r; it is ignored", name)


def ignored_header(names: list[str]) -> list[tuple[bytes, bytes]]:
    """`x-headrace-ignored` with the names that a header can hold."""
    if not names:
        return []
    shown = [n if n.isascii() and n.isprintable() else ascii(n)[1:-1] for n in names[:_MAX_SHOWN]]
    return [(b"x-headrace-ignored", ", ".join(shown).encode("ascii", "replace"))]


def completion_params(request: CompletionRequest) -> SamplingParams:
    """SamplingParams of a completion. With `echo`, `logprobs` covers the prompt too."""
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise RequestError(
            "best_of other than n is not supported by this server.",
            param="best_of",
            code="unsupported_parameter",
        )
    max_tokens = request.max_tokens
    prompt_logprobs = request.prompt_logprobs
    if request.echo and request.logprobs is not None:
        if request.prompt_logprobs_from:
            raise RequestError(
                "echo with logprobs shows the whole prompt; leave out prompt_logprobs_from.",
                param="prompt_logprobs_from",
                code="invalid_value",
            )
        prompt_logprobs = max(prompt_logprobs or 0, request.logprobs)
    return _params(
        request,
        max_tokens=DEFAULT_COMPLETION_TOKENS if max_tokens is None else max_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def request_options(request: GenerationRequest, max_cache_priority: int) -> RequestOptions:
    """What a request asks of the engine beside its samples. Raises RequestError when it asks for
    more than the operator lets clients have."""
    cache = request.cache or CacheControl()
    if cache.priority is not None and cache.priority > max_cache_priority:
        raise RequestError(
            f"cache.priority must be at most {max_cache_priority} on this server "
            "(its operator can raise that with --max-cache-priority).",
            param="cache.priority",
            code="invalid_value",
        )
    salt = request.cache_salt if cache.salt is None else cache.salt
    if request.cache_salt not in (None, salt):
        raise RequestError(
            "cache_salt and cache.salt differ; send only one of them.",
            param="cache_salt",
            code="invalid_value",
        )
    priority = DEFAULT_PRIORITY if cache.priority is None else cache.priority
    return RequestOptions(
        priority=request.priority or 0, salt=salt or "", retention=Retention(priority, cache.ttl)
    )


def chat_params(request: ChatRequest) -> SamplingParams:
    """SamplingParams of a chat completion: without a limit it runs to the end of the context."""
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            "max_tokens and max_completion_tokens differ; send only max_completion_tokens.",
            param="max_tokens",
            code="invalid_value",
        )
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError(
            "top_logprobs needs logprobs: true.", param="top_logprobs", code="invalid_value"
        )
    max_tokens = old if new is None else new
    if max_tokens == 0:
        name = "max_tokens" if new is None else "max_completion_tokens"
        raise RequestError(f"{name} must be at least 1.", param=name, code="invalid_value")
    return _params(
        request,
        max_tokens=max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=request.prompt_logprobs,
    )


def _params(
    request: GenerationRequest,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    _check_stream(request)
    stop = request.stop
    fields: dict[str, Any] = {
        "n": request.n,
        "min_tokens": request.min_tokens,
        "prompt_logprobs_from": request.prompt_logprobs_from,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "min_p": request.min_p,
        "stop": (stop,) if isinstance(stop, str) else tuple(stop or ()),
        "stop_token_ids": tuple(request.stop_token_ids or ()),
        "include_stop_str_in_output": request.include_stop_str_in_output,
        "ignore_eos": request.ignore_eos,
        "repetition_penalty": request.repetition_penalty,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logit_bias": request.logit_bias,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return SamplingParams(
        seed=_seed(request.seed),
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        **given,
    )


def _check_stream(request: GenerationRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise RequestError(
            "stream_options needs stream: true.", param="stream_options", code="invalid_value"
        )
    if request.prompt_logprobs is not None and request.stream:
        raise RequestError(
            "prompt_logprobs cannot be streamed; leave out stream.",
            param="prompt_logprobs",
            code="invalid_value",
        )


def _seed(seed: int | None) -> int:
    """The request's seed as an unsigned 64-bit number, or a new one of 53 bits (exact in JSON)."""
    if seed is None:
        return secrets.randbits(53)
    if not -(1 << 63) <= seed < 1 << 64:
        raise RequestError("seed must be a 64-bit integer.", param="seed", code="invalid_value")
    return seed & ((1 << 64) - 1)
