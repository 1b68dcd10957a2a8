"""The server without its socket: the gateway and its application, called in this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.gateway.config import ServeConfig


class LocalServer:
    """Workers run while the context is open; `post` is one request of the HTTP API.

    Raises HeadraceError on entry if a model cannot be loaded.
    """

    def __init__(self, config: ServeConfig) -> None:
        from headrace.api.app import build_app
        from headrace.gateway.gateway import Gateway
        from headrace.gateway.text import load_text

        self._gateway = Gateway(config, load_text)
        self._app = build_app(self._gateway)

    async def __aenter__(self) -> LocalServer:
        self._gateway.start()
        try:
            for service in self._gateway.services:
                await service.wait_settled()
                if service.load_error is not None:
                    raise HeadraceError(service.load_error)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        try:
            await self._gateway.stop(0.0)
        finally:
            self._gateway.kill()

    async def post(self, path: str, body: bytes) -> tuple[int, float | None, bytes]:
        """Status, seconds to wait before another try (of a full queue), and body of the answer."""
        answer = _Answer(body)
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"host", b"127.0.0.1"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
        }
        await self._app(scope, answer.receive, answer.send)
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # the application ends early, but quietly
            raise asyncio.CancelledError
        return answer.status, answer.retry_after_s, bytes(answer.body)


class _Answer:
    """The client's end of one request: gives the body once, takes what comes back."""

    def __init__(self, request_body: bytes) -> None:
        self._request_body: bytes | None = request_body
        self.status = 0
        self.retry_after_s: float | None = None
        self.body = bytearray()

    async def receive(self) -> dict[str, Any]:
        if self._request_body is None:
            await asyncio.get_running_loop().create_future()  # this client never goes away
        body, self._request_body = self._request_body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = {key.lower(): value for key, value in message["headers"]}
            if b"retry-after" in headers:
                self.retry_after_s = float(headers[b"retry-after"])
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
