"""The HTTP client against a server on the same event loop that does what a test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from headrace.errors import HeadraceError
from headrace.program import wire
from headrace.program.wire import HttpClient
from headrace.urls import parse_url


@dataclass
class Call:
    """A request as the server has it. `number`: of those on its connection, from 0."""

    number: int
    sent: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


Handler = Callable[[Call], Awaitable[None]]


class Peer:
    """A server. `num_connections`: opened so far; `num_open`: of them still open."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.num_connections = 0
        self.num_open = 0
        self.most_open = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        count = 0
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                await self._handler(Call(count, head + body, reader, writer))
                count += 1
        self.num_open -= 1
        writer.close()


@contextlib.asynccontextmanager
async def peer(handler: Handler) -> AsyncIterator[tuple[Peer, HttpClient]]:
    made = Peer(handler)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made.url = f"http://127.0.0.1:{port}"
    client = HttpClient(parse_url(made.url), [("x-test", "7")])
    async with server:
        yield made, client
        client.close()
        while made.num_open:
            await asyncio.sleep(0.01)


def response(body: bytes, status: str = "200 OK", extra: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


async def answer(call: Call) -> None:
    call.writer.write(response(call.sent.rpartition(b"\r\n\r\n")[2] + b"!"))


async def test_one_connection_serves_one_request_after_the_other() -> None:
    async with peer(answer) as (made, client):
        for i in range(5):
            found = await client.request("POST", "/v1/x", b"%d" % i)
            assert (found.status, bytes(found.body)) == (200, b"%d!" % i)
        assert made.num_connections == 1


async def test_requests_at_one_time_have_connections_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "MAX_CONNECTIONS", 3)
    async with peer(answer) as (made, client):
        asked = [client.request("POST", "/v1/x", b"%d" % i) for i in range(20)]
        found = await asyncio.gather(*asked)
        assert [bytes(each.body) for each in found] == [b"%d!" % i for i in range(20)]
        assert made.most_open == 3


async def test_headers_arrive() -> None:
    heads: list[bytes] = []

    async def note(call: Call) -> None:
        heads.append(call.sent)
        call.writer.write(response(b"", "429 Too Many Requests", "Retry-After: 3\r\n"))

    async with peer(note) as (_, client):
        found = await client.request("GET", "/v1/models")
        assert (found.status, found.headers["retry-after"]) == (429, "3")
        assert b"GET /v1/models HTTP/1.1\r\n" in heads[0]
        assert b"\r\nx-test: 7\r\n" in heads[0]


async def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    async def closing(call: Call) -> None:
        if call.number == 0:
            await answer(call)
        else:
            call.writer.transport.abort()  # in the middle of the next request

    async with peer(closing) as (made, client):
        for i in range(3):
            found = await client.request("POST", "/v1/x", b"%d" % i)
            assert bytes(found.body) == b"%d!" % i
        assert made.num_connections == 3


async def test_a_connection_is_not_kept_against_the_servers_will() -> None:
    async def once(call: Call) -> None:
        call.writer.write(response(b"x", extra="Connection: close\r\n"))
        call.writer.close()

    async with peer(once) as (made, client):
        for _ in range(3):
            assert bytes((await client.request("GET", "/")).body) == b"x"
        assert made.num_connections == 3


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"])
async def test_an_answer_that_ends_early_is_an_error(begin: bytes) -> None:
    async def cut(call: Call) -> None:
        call.writer.write(begin)
        await call.writer.drain()
        await asyncio.sleep(0.02)
        call.writer.transport.abort()

    async with peer(cut) as (made, client):
        with pytest.raises(HeadraceError, match="closed the connection before it answered"):
            await client.request("GET", "/")
        assert made.num_connections == 1


async def test_what_is_no_http_is_an_error() -> None:
    async def rubbish(call: Call) -> None:
        call.writer.write(b"220 mail.example\r\n\r\n")

    async with peer(rubbish) as (_, client):
        with pytest.raises(HeadraceError, match="is not HTTP"):
            await client.request("GET", "/")


async def test_answers_in_pieces_and_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pieces(call: Call) -> None:
        call.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(4):
            call.writer.write(b"3\r\nabc\r\n")
            await call.writer.drain()
        call.writer.write(b"0\r\n\r\n")

    async with peer(pieces) as (_, client):
        assert bytes((await client.request("GET", "/")).body) == b"abc" * 4
        monkeypatch.setattr(wire, "MAX_BODY_BYTES", 10)
        with pytest.raises(HeadraceError, match="above 10 bytes"):
            await client.request("GET", "/")


async def test_a_cancelled_request_drops_its_connection() -> None:
    async def never(call: Call) -> None:
        if call.sent.endswith(b"wait"):
            with contextlib.suppress(ConnectionError):
                await call.reader.read()  # until the client is gone
        else:
            await answer(call)

    async with peer(never) as (made, client):
        await client.request("POST", "/", b"x")
        task = asyncio.ensure_future(client.request("POST", "/", b"wait"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while made.num_open:
            await asyncio.sleep(0.01)
        assert bytes((await client.request("POST", "/", b"y")).body) == b"y!"
        assert made.num_connections == 2


async def test_a_server_that_is_not_there() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    client = HttpClient(parse_url(f"http://127.0.0.1:{port}"))
    with pytest.raises(HeadraceError, match=r"Cannot reach http://.*; is it running"):
        await client.request("GET", "/")
