"""POST /v1/cache/abandon: what a client knows about the future of its prefixes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.api.exchange import Exchange
from headrace.api.openai.generate import decode_body
from headrace.api.openai.types import AbandonRequest
from headrace.api.openapi import Status
from headrace.errors import RequestError

_decoder = msgspec.json.Decoder(AbandonRequest)


async def abandon(exchange: Exchange) -> None:
    """Take the hint of EngineAPI.abandon. The answer says that it was read, no more."""
    await exchange.read_body()
    request, _ = await decode_body(exchange, _decoder)
    service = exchange.gateway.find(request.model)
    _, ready = await service.wait_servable()
    _check(request.prefix, ready.vocab_size, "prefix")
    for i, tail in enumerate(request.tails):
        _check(tail, ready.vocab_size, f"tails.{i}")
    service.abandon(request.prefix, request.tails, request.salt or "")
    await exchange.respond(msgspec.json.encode(Status("ok")))


def _check(ids: Iterable[int], vocab_size: int, param: str) -> None:
    if max(ids, default=0) >= vocab_size:
        raise RequestError(
            f"{param} holds an id outside 0 to {vocab_size - 1}.",
            param=param,
            code="invalid_value",
        )
