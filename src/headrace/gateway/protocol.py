"""Uvicorn's HTTP/1.1 protocol with bounded headers (size, number, time), no change of protocol,
and an abort for apps."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import httptools
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
    # A second parser reads a head that stands for the one the first parser has read.
    _is_resuming = False

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
        self._unset_keepalive_if_required()
        self._parse(data)
        # A header that never ends is held by the parser: it must not grow without bound.
        if self._in_headers and self._header_bytes > self.limits.header_bytes:
            self._refuse(431, b"The headers are too large.", b"headers_too_large")

    def _parse(self, data: bytes) -> None:
        """Feed the parser, through any number of declined upgrades."""
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                if self.transport.is_closing():
                    return
                self._decline_upgrade()
            except httptools.HttpParserError:
                self.send_400_response("")
                return

    def _decline_upgrade(self) -> None:
        """Go on in HTTP/1.1, as RFC 9110 (7.8) allows.

        Some clients offer HTTP/2 with their first request. The parser takes such a message to end
        with its headers, so that a new one has to read its body.
        """
        framing = (b"content-length", b"transfer-encoding")
        lines = [b"%b: %b\r\n" % pair for pair in self.headers if pair[0] in framing]
        self.parser = httptools.HttpRequestParser(self)
        self._is_resuming = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n")
        self._is_resuming = False

    def on_message_begin(self) -> None:
        if self._is_resuming:
            return
        super().on_message_begin()
        self._in_headers = True
        self.scope["extensions"] = {"headrace.abort": self.transport.abort}  # type: ignore[dict-item]  # ours

    def on_url(self, url: bytes) -> None:
        if not self._is_resuming:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_resuming:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_resuming:
            return
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
        if self.parser.should_upgrade():
            return
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
