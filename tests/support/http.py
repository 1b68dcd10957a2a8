"""A small HTTP client that hides nothing: status, headers, bytes, raw sockets, events."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any

from tests.support.serving import Server

JSON = {"content-type": "application/json"}


@dataclass
class Answer:
    """A whole response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, after checking its envelope."""
        assert set(self.json) == {"error"}, self.body
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert len(self.body) < 32768
        return error


def request(
    server: Server,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """One request on a connection of its own. A body that is no bytes is sent as JSON."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        sent = {**(JSON if data is not None else {}), **(headers or {})}
        connection.request(method, path, data, sent)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())
    finally:
        connection.close()


def post(server: Server, path: str, body: object, headers: dict[str, str] | None = None) -> Answer:
    return request(server, "POST", path, body, headers)


def complete(server: Server, prompt: str, **fields: object) -> Answer:
    """POST /v1/completions of the fake model."""
    return post(server, "/v1/completions", {"model": "fake", "prompt": prompt, **fields})


def send_raw(connection: socket.socket, path: str, body: bytes, headers: str = "") -> None:
    """A POST as bytes on an open connection."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{headers}\r\n"
    )
    connection.sendall(head.encode() + body)


def read_until(connection: socket.socket, mark: bytes, limit: int = 1 << 20) -> bytes:
    """Bytes up to and with `mark`, or everything until the connection ends."""
    data = bytearray()
    while mark not in data and len(data) < limit:
        got = connection.recv(65536)
        if not got:
            break
        data += got
    return bytes(data)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the peer closes or resets."""
    data = bytearray()
    try:
        while got := connection.recv(65536):
            data += got
    except ConnectionResetError:
        pass
    return bytes(data)


def events_of(answer: Answer) -> list[str]:
    """Data of every event of a stream; checks the framing."""
    text = answer.body.decode()
    assert text.endswith("\n\n")
    events = []
    for block in text[:-2].split("\n\n"):
        assert "\n" not in block
        if not block.startswith(":"):
            assert block.startswith("data: ")
            events.append(block.removeprefix("data: "))
    return events
