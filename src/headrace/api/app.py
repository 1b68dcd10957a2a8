"""The ASGI application: routes of the HTTP API over one gateway."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.api.exchange import Exchange
from headrace.api.guard import Guard
from headrace.api.openai.chat import chat_completions
from headrace.api.probes import livez, metrics, readyz, version
from headrace.gateway.gateway import Gateway

logger = logging.getLogger("headrace.api")

Endpoint: TypeAlias = Callable[[Exchange], Awaitable[None]]


class EndpointApp:
    """An endpoint function as an ASGI application."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.endpoint(scope["headrace.exchange"])


def build_app(gateway: Gateway) -> ASGIApp:
    """The application; `Guard` in front of the router checks every request."""
    routes = [
        Route(path, EndpointApp(endpoint), methods=[method]) for path, method, endpoint in ROUTES
    ]
    router = Router(routes, redirect_slashes=False, default=_not_found)
    return Guard(gateway, router, frozenset())


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise HTTPException(404)


ROUTES: list[tuple[str, str, Endpoint]] = [
    ("/v1/chat/completions", "POST", chat_completions),
    ("/chat/completions", "POST", chat_completions),
    ("/livez", "GET", livez),
    ("/readyz", "GET", readyz),
    ("/health", "GET", readyz),
    ("/version", "GET", version),
    ("/metrics", "GET", metrics),
]
