"""Liveness, readiness, version, metrics: what machines ask."""

from __future__ import annotations

import msgspec

import headrace
from headrace.api.exchange import Exchange
from headrace.gateway.errors import UnavailableError
from headrace.observe.metrics import CONTENT_TYPE


async def livez(exchange: Exchange) -> None:
    """The process runs."""
    await exchange.respond(b'{"status":"ok"}')


async def readyz(exchange: Exchange) -> None:
    """Requests will be answered; 503 while loading, restarting or draining."""
    gateway = exchange.gateway
    if gateway.is_ready:
        await exchange.respond(b'{"status":"ok"}')
        return
    states = ", ".join(f"{s.spec.name} is {s.state.value}" for s in gateway.services)
    raise UnavailableError(
        "The server is shutting down." if gateway.is_draining else f"Not ready: {states}.",
        code="draining" if gateway.is_draining else "not_ready",
        retry_after_s=1.0,
    )


async def version(exchange: Exchange) -> None:
    """The version of headrace."""
    await exchange.respond(msgspec.json.encode({"version": headrace.__version__}))


async def metrics(exchange: Exchange) -> None:
    """Prometheus text."""
    headers = [(b"content-type", CONTENT_TYPE.encode())]
    await exchange.respond(exchange.gateway.metrics.render(), headers=headers)
