"""The error envelope of the OpenAI API: bounded, and without anything of the server's inside."""

from __future__ import annotations

import http
import math

import msgspec

from headrace.errors import RequestError

MAX_MESSAGE_LEN = 2000

_TYPES = {
    401: "authentication_error",
    403: "permission_denied",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "service_unavailable_error",
}
_CODES = {413: "request_too_large", 431: "headers_too_large"}


class ErrorObject(msgspec.Struct, frozen=True):
    """`param` is the field at fault, as `messages.2.content`."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """What every failed response carries."""

    error: ErrorObject


def error_body(error: RequestError) -> ErrorBody:
    """The envelope of an error."""
    default = "server_error" if error.status >= 500 else "invalid_request_error"
    return ErrorBody(
        ErrorObject(
            message=clip(str(error), MAX_MESSAGE_LEN),
            type=_TYPES.get(error.status, default),
            param=None if error.param is None else clip(error.param, 200),
            code=error.code or _CODES.get(error.status),
        )
    )


def encode_error(error: RequestError) -> bytes:
    """JSON of the envelope."""
    return msgspec.json.encode(error_body(error))


def error_headers(error: RequestError) -> list[tuple[bytes, bytes]]:
    """Headers that tell a client whether and when to try again."""
    headers: list[tuple[bytes, bytes]] = []
    retry_after_s: float | None = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(retry_after_s))).encode()))
    elif error.code == "request_refused":
        headers.append((b"x-should-retry", b"false"))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    # What is left of such a request will not be read.
    if error.status in (408, 413, 431):
        headers.append((b"connection", b"close"))
    return headers


def internal_error() -> RequestError:
    """A bug of ours: the client learns nothing about it, the log does."""
    return RequestError("The server failed on this request.", status=500, code="internal_error")


def status_error(status: int, detail: str | None = None) -> RequestError:
    """An error of HTTP itself (unknown path, wrong method)."""
    phrase = http.HTTPStatus(status).phrase
    return RequestError(detail or f"{phrase}.", status=status)


def clip(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, well-formed."""
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    return text.encode("utf-8", "replace").decode("utf-8")
