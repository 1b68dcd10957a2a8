"""GET /v1/models and /v1/models/{id}: what is served, and in which state."""

from __future__ import annotations

import time
from typing import Literal

import msgspec

from headrace.api.exchange import Exchange
from headrace.gateway.service import ModelService

_started = int(time.time())


class ModelCard(msgspec.Struct, kw_only=True):
    """One id. From `root` on: extensions; `max_model_len` is null until the model is loaded."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "headrace"
    root: str
    parent: None = None
    max_model_len: int | None
    status: Literal["loading", "ready", "restarting", "failed", "stopped"]


class ModelList(msgspec.Struct, kw_only=True):
    """Answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


def _card(service: ModelService, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=_started,
        root=service.spec.name,
        max_model_len=None if service.ready is None else service.ready.max_model_len,
        status=service.state.value,
    )


async def list_models(exchange: Exchange) -> None:
    """Every model under every name it has."""
    services = exchange.gateway.services
    cards = [_card(service, name) for service in services for name in service.names]
    await exchange.respond(msgspec.json.encode(ModelList(data=cards)))


async def get_model(exchange: Exchange) -> None:
    """One model; its id may hold slashes and colons."""
    name = exchange.scope["path_params"]["model_id"]
    service = exchange.gateway.find(name)
    await exchange.respond(msgspec.json.encode(_card(service, name)))
