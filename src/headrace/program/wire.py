"""An HTTP/1.1 client that keeps its connections and drops the one whose request is cancelled."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import httptools

from headrace.errors import HeadraceError
from headrace.urls import Target

MAX_CONNECTIONS = 64
MAX_BODY_BYTES = 64 << 20
CONNECT_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Response:
    """A whole response; names of headers are lower-case."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)


class _LostError(Exception):
    """The connection ended before the response did."""


class _Connection(asyncio.Protocol):
    """One request at a time. `is_idle`: another one may be sent."""

    def __init__(self) -> None:
        self.is_idle = True
        self.was_used = False
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._response = Response()
        self._done: asyncio.Future[Response] | None = None

    async def exchange(self, data: bytes) -> Response:
        """Send a request and return its response. Raises _LostError.

        Cancelled, the connection is of no use any more: the server must notice.
        """
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._response = Response()
        self._done = asyncio.get_running_loop().create_future()
        self.is_idle = False
        self._transport.write(data)
        try:
            return await self._done
        finally:
            self.was_used = True
            if not self.is_idle:
                self._transport.abort()

    @property
    def has_answered(self) -> bool:
        """The server has begun to answer the last request."""
        return self._response.status != 0

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._done is None or self._done.done():
            self.close()  # nothing was asked for
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(HeadraceError(f"The server's answer is not HTTP: {error}."))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_idle = False
        self._fail(_LostError())

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    # ---- httptools ----

    def on_header(self, name: bytes, value: bytes) -> None:
        self._response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._response.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._response.body += body
        if len(self._response.body) > MAX_BODY_BYTES:
            self._fail(HeadraceError(f"The server's answer is above {MAX_BODY_BYTES} bytes."))

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._done is not None and not self._done.done():
            self.is_idle = self._parser.should_keep_alive()
            self._done.set_result(self._response)


class HttpClient:
    """Requests to one server, up to 64 at a time. Made and used on one event loop."""

    def __init__(self, target: Target, headers: Sequence[tuple[str, str]] = ()) -> None:
        self._target = target
        self._headers = headers
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._idle: list[_Connection] = []

    async def request(self, method: str, path: str, body: bytes = b"") -> Response:
        """The response, whatever its status. Raises HeadraceError without one."""
        data = self._target.request(method, path, body, self._headers)
        async with self._slots:
            while True:
                connection = self._take() or await self._connect()
                is_fresh = not connection.was_used
                try:
                    response = await connection.exchange(data)
                except _LostError:
                    if is_fresh or connection.has_answered:
                        raise HeadraceError(
                            f"The server at {self._target.url} closed the connection before it "
                            "answered."
                        ) from None
                    # It had closed the connection that was kept: ask again on another one.
                else:
                    if connection.is_idle:
                        self._idle.append(connection)
                    return response

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle:
                return connection
        return None

    async def _connect(self) -> _Connection:
        target = self._target
        tls = ssl.create_default_context() if target.is_tls else None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    _Connection, target.host, target.port, ssl=tls
                )
        except (OSError, TimeoutError) as error:
            reason = str(error) or "it did not answer"
            raise HeadraceError(f"Cannot reach {target.url} ({reason}); is it running?") from None
        return connection

    def close(self) -> None:
        """Drop the connections that are kept."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
