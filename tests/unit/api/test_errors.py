"""The error envelope: types, codes, headers, bounds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.errors import clip, encode_error, error_headers, internal_error, status_error
from headrace.errors import OverloadedError, RequestError
from headrace.gateway.errors import FailedError, UnavailableError
from headrace.worker.frames import Failed


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", None),
        (401, "authentication_error", None),
        (404, "invalid_request_error", None),
        (413, "invalid_request_error", "request_too_large"),
        (429, "rate_limit_error", None),
        (500, "server_error", None),
        (503, "service_unavailable_error", None),
    ],
)
def test_types_by_status(status: int, kind: str, code: str | None) -> None:
    error = json.loads(encode_error(RequestError("No.", status=status)))["error"]
    assert error == {"message": "No.", "type": kind, "param": None, "code": code}


def test_retry_headers() -> None:
    def headers(error: RequestError) -> dict[bytes, bytes]:
        return dict(error_headers(error))

    assert headers(OverloadedError("x", retry_after_s=0.2))[b"retry-after"] == b"1"
    assert headers(OverloadedError("x", retry_after_s=2.5))[b"retry-after"] == b"3"
    refused = UnavailableError("x", code="request_refused", status=500)
    assert headers(refused) == {b"x-should-retry": b"false"}
    assert headers(RequestError("x")) == {}
    assert headers(RequestError("x", status=413)) == {b"connection": b"close"}


def test_a_failed_frame_keeps_everything() -> None:
    frame = Failed(request_id="r", message="m", status=429, code="c", param="p", retry_after_s=4.0)
    error = FailedError(frame)
    shown = json.loads(encode_error(error))["error"]
    assert (shown["message"], shown["code"], shown["param"]) == ("m", "c", "p")
    assert dict(error_headers(error))[b"retry-after"] == b"4"


@given(st.text(alphabet=st.characters(codec=None), max_size=50), st.integers(4, 60))
def test_clipped_text_is_short_and_well_formed(text: str, limit: int) -> None:
    clipped = clip(text * 3, limit)
    assert len(clipped) <= limit
    clipped.encode()


def test_messages_and_params_are_bounded() -> None:
    error = RequestError("m" * 100_000, param="p" * 100_000)
    assert len(encode_error(error)) < 4096


def test_internal_errors_say_nothing() -> None:
    assert str(internal_error()) == "The server failed on this request."
    assert str(status_error(418)) == "I'm a Teapot."
