"""One HTTP request and its response: bounded reading, JSON answers, the end of a gone client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias

from starlette.types import Receive, Scope, Send

from headrace.api.errors import encode_error, error_headers
from headrace.api.json_body import LARGE_BYTES
from headrace.errors import OverloadedError, RequestError
from headrace.gateway.config import HttpLimits
from headrace.gateway.gateway import Gateway

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", b"application/json")


class ClientGone(Exception):
    """The client closed the connection: there is nobody to answer."""


class BodyBudget:
    """Bytes of request bodies held at one time, over all connections."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0

    def take(self, num_bytes: int) -> None:
        """Raises OverloadedError when too much is held already."""
        if self._held + num_bytes > self._limit:
            raise OverloadedError("Too many large requests at one time.", retry_after_s=1.0)
        self._held += num_bytes

    def give(self, num_bytes: int) -> None:
        self._held -= num_bytes


class Exchange:
    """`scope`, `receive` and `send` of ASGI, with what every endpoint needs. One task owns it."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        gateway: Gateway,
        budget: BodyBudget,
    ) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.gateway = gateway
        self.budget = budget
        # Written by Guard: the id that logs and the response carry, and headers of every response.
        self.request_id = ""
        self.extra_headers: list[tuple[bytes, bytes]] = []
        # What the access log says: the status (0: none was sent) and a remark of the endpoint.
        self.status = 0
        self.note = ""
        self._body = b""
        self._held = 0
        self._has_unread = self._announces_body()

    @property
    def is_started(self) -> bool:
        return self.status != 0

    def header(self, name: bytes) -> bytes | None:
        """The first header of this (lower-case) name."""
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value)
        return None

    # ---- in ----

    async def read_body(self) -> None:
        """Read the whole JSON body, for `take_body`; its bytes count as held until `release_body`.

        Raises RequestError 413, 415 or 408, OverloadedError, or ClientGone.
        """
        limits = self.gateway.config.limits
        self._check_type()
        self._hold(self._content_length(limits))
        body = bytearray()
        more = True
        try:
            async with asyncio.timeout(limits.body_s):
                while more:
                    chunk, more = await self._receive_some(limits.body_idle_s)
                    body += chunk
                    if len(body) > limits.body_bytes:
                        raise _too_large(limits)
                    self._hold(len(body))
        except TimeoutError:
            raise RequestError("The request's body came too slowly.", status=408) from None
        self._body = bytes(body)

    def take_body(self) -> bytes:
        """What `read_body` has read, once: whoever decodes it has the only reference."""
        body, self._body = self._body, b""
        return body

    @property
    def is_large(self) -> bool:
        """The body that was read is too large to be worked on between two events."""
        return self._held > LARGE_BYTES

    def release_body(self) -> None:
        """The body was turned into something else; may be called twice."""
        self.budget.give(self._held)
        self._held = 0

    def _hold(self, num_bytes: int) -> None:
        if num_bytes > self._held:
            self.budget.take(num_bytes - self._held)
            self._held = num_bytes

    async def _receive_some(self, idle_s: float) -> tuple[bytes, bool]:
        async with asyncio.timeout(idle_s):
            message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self._has_unread = message.get("more_body", False)
        return message.get("body", b""), self._has_unread

    def _announces_body(self) -> bool:
        length = self.header(b"content-length")
        return self.header(b"transfer-encoding") is not None or length not in (None, b"0")

    async def _discard_body(self) -> None:
        """Read what is left of the body, within limits.

        Most clients read nothing before they have sent everything; closing before that makes the
        kernel reset the connection, and the answer is lost.
        """
        limits = self.gateway.config.limits
        left = limits.linger_bytes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.linger_s):
                while self._has_unread and left > 0:
                    chunk, _ = await self._receive_some(limits.linger_idle_s)
                    left -= len(chunk)

    def _check_type(self) -> None:
        content_type = (self.header(b"content-type") or b"").split(b";")[0].strip().lower()
        if content_type != b"application/json":
            raise RequestError(
                "The body must be JSON: send the header Content-Type: application/json.", status=415
            )
        encoding = (self.header(b"content-encoding") or b"identity").strip().lower()
        if encoding != b"identity":
            raise RequestError(
                "A compressed body cannot be read: leave out the header Content-Encoding.",
                status=415,
            )

    def _content_length(self, limits: HttpLimits) -> int:
        value = self.header(b"content-length")
        if value is None or not value.isdigit():
            return 0
        if len(value) > 12 or int(value) > limits.body_bytes:
            raise _too_large(limits)
        return int(value)

    # ---- out ----

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status line and headers."""
        self.status = status
        sent = [*headers, *self.extra_headers]
        await self.send({"type": "http.response.start", "status": status, "headers": sent})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece of the body; waits while the client reads slowly, and cuts it at last."""
        try:
            async with asyncio.timeout(self.gateway.config.limits.reader_stall_s):
                await self.send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            self.abort()
            raise ClientGone from None

    async def respond(
        self, data: bytes, *, status: int = 200, headers: Headers = (JSON_TYPE,)
    ) -> None:
        """Send a whole response."""
        await self.start(status, [*headers, (b"content-length", str(len(data)).encode())])
        await self.write(data, more=False)

    async def respond_error(self, error: RequestError, headers: Headers = ()) -> None:
        """Send an error as a whole response."""
        data = encode_error(error)
        length = (b"content-length", str(len(data)).encode())
        await self.start(error.status, [JSON_TYPE, *error_headers(error), *headers, length])
        if self._has_unread:
            await self.write(data)
            await self._discard_body()
            data = b""
        await self.write(data, more=False)

    def abort(self) -> None:
        """Drop the connection, with whatever it has not taken yet."""
        abort: Callable[[], None] | None = self.scope.get("extensions", {}).get("headrace.abort")
        if abort is not None:
            abort()

    async def until_gone(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` (after the body was read); cancel it when the client closes the connection."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._wait_gone())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if task.cancelled():
            raise ClientGone
        task.result()

    async def _wait_gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass


def _too_large(limits: HttpLimits) -> RequestError:
    return RequestError(f"The body is larger than {limits.body_bytes} bytes.", status=413)
