"""The ASGI application: the routes of the HTTP API over one gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.api import cache, models, openapi, probes, tokens, ui
from headrace.api.exchange import Exchange
from headrace.api.guard import Guard
from headrace.api.openai.chat import chat_completions
from headrace.api.openai.completions import completions
from headrace.api.openai.responses import ChatResponse, CompletionResponse
from headrace.api.openai.types import (
    AbandonRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from headrace.api.openapi import Operation, build_openapi
from headrace.gateway.config import ServeConfig
from headrace.gateway.gateway import Gateway
from headrace.observe.metrics import CONTENT_TYPE

Endpoint: TypeAlias = Callable[[Exchange], Awaitable[None]]

# Every route; those below /v1 are served without that prefix, too.
ENDPOINTS: list[tuple[Operation, Endpoint]] = [
    (
        Operation(
            "/v1/chat/completions",
            "POST",
            "Answer a conversation",
            "openai",
            ChatRequest,
            ChatResponse,
            events=True,
        ),
        chat_completions,
    ),
    (
        Operation(
            "/v1/completions",
            "POST",
            "Continue prompts",
            "openai",
            CompletionRequest,
            CompletionResponse,
            events=True,
        ),
        completions,
    ),
    (
        Operation("/v1/models", "GET", "List models", "openai", response=models.ModelList),
        models.list_models,
    ),
    (
        Operation(
            "/v1/models/{model_id}", "GET", "Show a model", "openai", response=models.ModelCard
        ),
        models.get_model,
    ),
    (
        Operation(
            "/tokenize",
            "POST",
            "Token ids of a text or conversation",
            "text",
            TokenizeRequest,
            tokens.TokenizeResponse,
        ),
        tokens.tokenize,
    ),
    (
        Operation(
            "/detokenize",
            "POST",
            "Text of token ids",
            "text",
            DetokenizeRequest,
            tokens.DetokenizeResponse,
        ),
        tokens.detokenize,
    ),
    (
        Operation(
            "/v1/cache/abandon",
            "POST",
            "Say that nobody will go on with some token ids: what is cached of them goes first",
            "cache",
            AbandonRequest,
            openapi.Status,
        ),
        cache.abandon,
    ),
    (
        Operation(
            "/livez", "GET", "The process runs", "probes", response=openapi.Status, is_public=True
        ),
        probes.livez,
    ),
    (
        Operation(
            "/readyz", "GET", "Models serve", "probes", response=openapi.Status, is_public=True
        ),
        probes.readyz,
    ),
    (
        Operation(
            "/health", "GET", "As /readyz", "probes", response=openapi.Status, is_public=True
        ),
        probes.readyz,
    ),
    (
        Operation("/version", "GET", "The version", "probes", response=openapi.Version),
        probes.version,
    ),
    (
        Operation("/metrics", "GET", "Prometheus metrics", "probes", content_type=CONTENT_TYPE),
        probes.metrics,
    ),
]


class EndpointApp:
    """An endpoint function as an ASGI application."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Guard has put the exchange into the scope."""
        await self.endpoint(scope["headrace.exchange"])


class _Document:
    """GET /openapi.json."""

    def __init__(self, config: ServeConfig) -> None:
        document = build_openapi(
            [op for op, _ in ENDPOINTS],
            with_key=config.api_key is not None,
            max_cache_priority=config.max_cache_priority,
        )
        self._data = msgspec.json.encode(document)

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.respond(self._data)


def build_routes(gateway: Gateway) -> list[Route]:
    """All routes of a gateway."""
    pairs = [(op.path, op.method, endpoint) for op, endpoint in ENDPOINTS]
    pairs += [(p.removeprefix("/v1"), m, e) for p, m, e in pairs if p.startswith("/v1/")]
    pairs.append(("/openapi.json", "GET", _Document(gateway.config)))
    if gateway.config.ui:
        pairs += [(path, "GET", ui.UiAsset(path)) for path in sorted(ui.PATHS)]
    return [
        Route(path.replace("{model_id}", "{model_id:path}"), EndpointApp(e), methods=[method])
        for path, method, e in pairs
    ]


def build_app(gateway: Gateway) -> ASGIApp:
    """The application; Guard stands before the router and checks every request."""
    router = Router(build_routes(gateway), redirect_slashes=False, default=_not_found)
    return Guard(gateway, router, ui.PATHS if gateway.config.ui else frozenset())


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise HTTPException(404)
