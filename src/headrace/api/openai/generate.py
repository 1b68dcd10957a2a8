"""What both generation endpoints share: from the raw body to an admitted stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from headrace.api.exchange import Exchange
from headrace.api.json_body import decode
from headrace.api.openai.chunks import StreamShape
from headrace.api.openai.params import ignored_fields, ignored_header, request_options
from headrace.api.openai.types import GenerationRequest
from headrace.engine.base import RequestOptions
from headrace.engine.sampling import SamplingParams
from headrace.gateway.service import ModelService
from headrace.gateway.streams import RequestStream
from headrace.gateway.text import ModelText
from headrace.worker.frames import Ready

T = TypeVar("T")
R = TypeVar("R", bound=GenerationRequest)


@dataclass(slots=True)
class Job:
    """A validated request and the model that will answer it."""

    service: ModelService
    text: ModelText
    ready: Ready
    params: SamplingParams
    options: RequestOptions
    prompts: list[list[int]]
    response_id: str
    created: int
    model: str
    headers: list[tuple[bytes, bytes]]

    def note(self, stream: RequestStream) -> str:
        """What the access log says about the request: never anything of its text."""
        num_prompt = sum(map(len, self.prompts))
        return f" {self.service.spec.name} {num_prompt}+{stream.num_output} tokens"

    def shape(self, request: GenerationRequest) -> StreamShape:
        """How the streamed response looks."""
        options = request.stream_options
        assert self.params.seed is not None
        return StreamShape(
            response_id=self.response_id,
            created=self.created,
            model=self.model,
            fingerprint=self.ready.numerics_id,
            prompts=self.prompts,
            num_choices=self.params.n,
            seed=self.params.seed,
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            with_timings=bool(request.timings),
            with_token_ids=bool(request.return_token_ids),
        )


async def decode_body(
    exchange: Exchange, decoder: msgspec.json.Decoder[T]
) -> tuple[T, dict[str, Any]]:
    """Decode the body on the loop when it is quick, in a thread when it is not."""
    if not exchange.is_large:
        return decode(exchange.take_body(), decoder)
    return await exchange.gateway.pool.run(
        lambda: decode(exchange.take_body(), decoder), is_large=True
    )


async def prepare(
    exchange: Exchange,
    decoder: msgspec.json.Decoder[R],
    *,
    prefix: str,
    make_params: Callable[[R], SamplingParams],
    encode: Callable[[ModelText, R, SamplingParams, int], list[list[int]]],
) -> tuple[R, Job]:
    """Decode and validate, find the model (hold while it loads), and tokenize in a thread.

    Of a large body nothing is left after that: it may wait and run for long.
    """
    request, fields = await decode_body(exchange, decoder)
    gateway = exchange.gateway
    known = frozenset(type(request).__struct_fields__)
    ignored = ignored_fields(fields, known, strict=gateway.config.strict_fields)
    service = gateway.find(request.model)
    params = make_params(request)
    options = request_options(request, gateway.config.max_cache_priority)
    gateway.check_accepting()
    text, ready = await service.wait_servable()
    params.validate(text.tokenizer.vocab_size)
    prompts = await gateway.pool.run(
        lambda: encode(text, request, params, ready.max_model_len), is_large=exchange.is_large
    )
    request.forget_unread()
    exchange.release_body()
    return request, Job(
        service=service,
        text=text,
        ready=ready,
        params=params,
        options=options,
        prompts=prompts,
        response_id=f"{prefix}-{secrets.token_hex(16)}",
        created=int(time.time()),
        model=request.model,
        headers=ignored_header(ignored),
    )
