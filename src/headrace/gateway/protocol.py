"""Uvicorn's HTTP/1.1 protocol with bounded headers (size, number, time), and an abort for apps."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.gateway.config import HttpLimits

_BODY = b'{"error":{"message":"%b","type":"invalid_request_error","param":null,"code":"%b"}}'
_PHRASES = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
}


class BoundedProtocol(HttpToolsProtocol):
    """Counts what arrives before the end of the headers, and how long that takes."""

    limits: ClassVar[HttpLimits] = HttpLimits()

    _header_bytes = 0
    _in_headers = True
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_timer is None:
                self._arm()
        super().data_received(data)
        # A header that never ends is held by the parser: it must not grow without bound.
        if self._in_headers and self._header_bytes > self.limits.header_bytes:
            self._refuse(431, b"The headers are too large.", b"headers_too_large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self.scope["extensions"] = {"headrace.abort": self.transport.abort}  # type: ignore[dict-item]  # ours

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes = 0
        self._disarm()
        limits = self.limits
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if len(self.headers) > limits.num_headers or size > limits.header_bytes:
            self._refuse(431, b"The headers are too large.", b"headers_too_large")
        else:
            super().on_headers_complete()

    # A request refused above has no cycle of its own.

    def on_message_complete(self) -> None:
        if self.cycle is not None:
            super().on_message_complete()
        self._in_headers = True

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None:
            super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, b"The request is not valid HTTP.", b"invalid_http")

    def _refuse(self, status: int, message: bytes, code: bytes) -> None:
        """Answer without the application and close."""
        if self.transport.is_closing():
            return
        body = _BODY % (message, code)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (status, _PHRASES[status], len(body), body)
        )
        self.transport.close()

    def _arm(self) -> None:
        self._header_timer = self.loop.call_later(self.limits.header_s, self._too_slow)

    def _disarm(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _too_slow(self) -> None:
        if not self._in_headers or self.transport.is_closing():
            return
        if self._header_bytes:
            self._refuse(408, b"The request came too slowly.", b"request_timeout")
        else:
            self.transport.close()


def make_protocol(limits: HttpLimits) -> type[BoundedProtocol]:
    """The protocol class with these limits."""
    return type("Protocol", (BoundedProtocol,), {"limits": limits})
