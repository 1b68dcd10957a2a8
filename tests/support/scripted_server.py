"""A server of scripts: every connection gets the bytes that a function gives for its request."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

# (number of the completion, its body) -> pieces of the answer, each sent as it is made.
Script = Callable[[int, dict[str, Any]], Iterable[bytes]]

MODELS = b'{"object": "list", "data": [{"id": "scripted"}]}'


def http(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def stream_head() -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(value: object) -> bytes:
    return chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


def token(text: str) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": None}]})


def stream_end(prompt_tokens: int, output_tokens: int) -> bytes:
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
    finish = event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
    usage = event({"choices": [], "usage": counts})
    return finish + usage + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def answer(body: dict[str, Any]) -> Iterator[bytes]:
    """A whole answer, its tokens one by one."""
    yield stream_head()
    for index in range(body["max_tokens"]):
        yield token(f"t{index} ")
    yield stream_end(len(body["prompt"].split()), body["max_tokens"])


@dataclass
class ScriptedServer:
    """Runs while the context is open. `bodies`: of all completions, in order of arrival."""

    script: Script
    models: bytes = field(default_factory=lambda: http(MODELS))
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)

    def __enter__(self) -> ScriptedServer:
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """No new connection: from now on they are refused."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def _port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head, body = _read_request(connection)
            if head.startswith("GET"):
                connection.sendall(self.models)
                return
            with self._lock:
                number = len(self.bodies)
                self.bodies.append(body)
                self.heads.append(head)
            for piece in self.script(number, body):
                connection.sendall(piece)


def _read_request(connection: socket.socket) -> tuple[str, dict[str, Any]]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    text = head.decode()
    length = int(text.lower().split("content-length: ")[1].split("\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return text, json.loads(body) if body else {}
