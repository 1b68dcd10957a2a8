"""Schemathesis over the OpenAPI document: no 5xx, and every answer as the document says."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from headrace.api.app import ENDPOINTS
from headrace.api.openapi import build_openapi
from tests.support.http import request
from tests.support.serving import Server

pytestmark = pytest.mark.slow

load_all_checks()
_CHECKS: Any = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
        "response_headers_conformance",
    ]
)
_DOCUMENT = build_openapi([operation for operation, _ in ENDPOINTS], with_key=False)
_SCHEMA = schemathesis.openapi.from_dict(_DOCUMENT)
# Only a request with a body can be wrong.
_RUNS = [(op.path, op.method, GenerationMode.POSITIVE) for op, _ in ENDPOINTS]
_RUNS += [(op.path, op.method, GenerationMode.NEGATIVE) for op, _ in ENDPOINTS if op.request]


def _whole(value: Any) -> Any:
    """JSON Schema takes 2.0 for an integer; the server, as others do, does not."""
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _steer(case: Case[Any]) -> None:
    """Most drawn bodies would end at an unknown model, ask for very long answers, or for what the
    schema cannot say."""
    case.body = body = _whole(case.body)
    if not isinstance(body, dict):
        return
    if isinstance(body.get("model"), str) and len(body["model"]) % 4 != 3:
        body["model"] = "fake"
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(body.get(name), int):
            body[name] = min(body[name], 50)
    if isinstance(body.get("logit_bias"), dict):  # its keys have to be ids of tokens
        body["logit_bias"] = {str(len(key)): each for key, each in body["logit_bias"].items()}
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, dict) and len(message.get("role") or "") % 2 == 0:
            message["content"] = message.get("content") or "Hello"


@pytest.mark.parametrize(("path", "method", "mode"), _RUNS)
def test_the_server_keeps_to_its_document(
    server: Server, path: str, method: str, mode: GenerationMode
) -> None:
    operation = _SCHEMA[path][method]
    statuses: set[int] = set()

    @settings(
        max_examples=60 if method == "POST" else 5,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Case[Any]) -> None:
        _steer(case)
        response = case.call(base_url=server.url, timeout=30)
        case.validate_response(response, checks=_CHECKS)
        statuses.add(response.status_code)

    check()
    if mode is GenerationMode.NEGATIVE:
        assert 400 in statuses
    elif "model_id" not in path:
        assert 200 in statuses


def test_the_document_is_served(server: Server) -> None:
    served: Any = request(server, "GET", "/openapi.json").json
    assert served["openapi"].startswith("3.1")
    assert set(served["paths"]) == set(_DOCUMENT["paths"])
    assert len(served["paths"]) == 12
    schemas = served["components"]["schemas"]
    assert schemas["ChatRequest"]["properties"]["messages"]["maxItems"] == 10_000
    assert "security" not in served["paths"]["/v1/models"]["get"]


def test_the_document_says_what_the_operator_allows() -> None:
    operations = [operation for operation, _ in ENDPOINTS]
    for most in (0, 77):
        document = build_openapi(operations, with_key=False, max_cache_priority=most)
        control = document["components"]["schemas"]["CacheControl"]["properties"]
        assert {"type": "integer", "minimum": 0, "maximum": most} in control["priority"]["anyOf"]


def test_the_document_asks_for_the_key() -> None:
    document = build_openapi([operation for operation, _ in ENDPOINTS], with_key=True)
    assert document["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
    assert "security" not in document["paths"]["/livez"]["get"]
