"""GET /openapi.json: the API described from the structs that parse and build it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

import headrace
from headrace.api.errors import ErrorBody
from headrace.kv.radix.base import DEFAULT_PRIORITY

_REF = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One route as the document shows it. `events`: the answer may be a stream of events."""

    path: str
    method: str
    summary: str
    tag: str
    request: type | None = None
    response: type | None = None
    content_type: str = "application/json"
    events: bool = False
    is_public: bool = False


class Status(msgspec.Struct):
    """Answer of the probes, and of what has nothing to say."""

    status: str


class Version(msgspec.Struct):
    """Answer of GET /version."""

    version: str


def build_openapi(
    operations: Sequence[Operation], *, with_key: bool, max_cache_priority: int = DEFAULT_PRIORITY
) -> dict[str, Any]:
    """An OpenAPI 3.1 document, of a server that lets clients ask for no higher cache.priority."""
    types = {op.request for op in operations} | {op.response for op in operations}
    known = sorted((t for t in types | {ErrorBody} if t is not None), key=lambda t: t.__name__)
    _, schemas = msgspec.json.schema_components(known, ref_template=_REF)
    for choice in schemas["CacheControl"]["properties"]["priority"]["anyOf"]:
        if "maximum" in choice:
            choice["maximum"] = max_cache_priority
    paths: dict[str, Any] = {}
    for op in operations:
        paths.setdefault(op.path, {})[op.method.lower()] = _operation(op, with_key)
    components: dict[str, Any] = {"schemas": schemas}
    if with_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "headrace",
            "version": headrace.__version__,
            "description": "OpenAI-compatible API. Every path under /v1 is also served without it.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": components,
    }


def _operation(op: Operation, with_key: bool) -> dict[str, Any]:
    content: dict[str, Any] = {op.content_type: _schema(op.response)}
    if op.events:
        # No schema: OpenAPI 3.1 has none for the events of a stream.
        content["text/event-stream"] = {}
    failure = {"application/json": _schema(ErrorBody)}
    made: dict[str, Any] = {
        "operationId": op.method.lower() + op.path.replace("/", "_").translate(_PLAIN),
        "summary": op.summary,
        "tags": [op.tag],
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {"description": "An error.", "content": failure},
        },
    }
    if with_key and not op.is_public:
        made["security"] = [{"key": []}]
    if op.request is not None:
        body = {"application/json": _schema(op.request)}
        made["requestBody"] = {"required": True, "content": body}
    if "{model_id}" in op.path:
        made["parameters"] = [
            {"name": "model_id", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return made


_PLAIN = str.maketrans("", "", "{}")


def _schema(kind: type | None) -> dict[str, Any]:
    if kind is None:
        return {"schema": {"type": "string"}}
    return {"schema": {"$ref": _REF.format(name=kind.__name__)}}
