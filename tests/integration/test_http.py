"""HTTP as such: framing, methods, types, limits of size and time, ids, clients that go away."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http import (
    complete,
    events_of,
    post,
    read_all,
    read_until,
    request,
    send_raw,
)
from tests.support.serving import Server, eventually, serve_fake

BODY = {"model": "fake", "prompt": "abc"}


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Short times and small bodies, unknown fields refused."""
    limits = {
        "header_s": 0.5,
        "body_idle_s": 0.5,
        "body_s": 1.0,
        "body_bytes": 100_000,
        "comment_s": 0.1,
        "first_event_s": 0.1,
        "reader_stall_s": 1.0,
    }
    path = tmp_path_factory.mktemp("strict") / "log"
    with serve_fake(path, limits=limits, strict_fields=True, ui=False) as running:
        yield running


# ---- framing ----


def test_stream_framing(server: Server) -> None:
    answer = post(server, "/v1/completions", {**BODY, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "content-encoding" not in answer.headers
    events = events_of(answer)
    assert events[-1] == "[DONE]"
    assert all(json.loads(event)["object"] == "text_completion" for event in events[:-1])


def test_a_failure_in_a_stream_ends_it_without_done(server: Server) -> None:
    prompt = ["abc", "!fail"]
    answer = post(server, "/v1/completions", {**BODY, "prompt": prompt, "stream": True})
    assert answer.status == 200
    last = json.loads(events_of(answer)[-1])
    assert last["error"]["message"] == "The fake model failed."
    assert "[DONE]" not in answer.body.decode()


def test_an_early_failure_keeps_its_status(server: Server) -> None:
    answer = complete(server, "!refuse", stream=True)
    assert answer.status == 429
    assert answer.headers["retry-after"] == "3"
    assert answer.error["code"] == "rate_limit_exceeded"


def test_comments_keep_a_silent_stream_alive(strict_server: Server) -> None:
    """`!slow` takes 20 ms a step, so a prompt of 40 chunks is silent for 0.8 s."""
    prompt = "!slow" + "x" * 4000
    answers = [complete(strict_server, prompt, stream=True, max_tokens=2) for _ in range(1)]
    assert answers[0].status == 200
    assert b": keep-alive\n\n" in answers[0].body
    assert events_of(answers[0])[-1] == "[DONE]"


def test_paths_without_prefix(server: Server) -> None:
    assert post(server, "/completions", BODY).status == 200
    assert request(server, "GET", "/models").json == request(server, "GET", "/v1/models").json
    assert request(server, "GET", "/models/fake").status == 200


def test_keep_alive_and_pipelining(server: Server) -> None:
    body = json.dumps({**BODY, "seed": 1, "max_tokens": 2}).encode()
    with server.connect() as connection:
        send_raw(connection, "/v1/completions", body)
        send_raw(connection, "/v1/completions", body, "Connection: close\r\n")
        data = read_all(connection)
    assert data.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize("cut", [0, 40, -5])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_offer_of_another_protocol_is_declined(server: Server, cut: int, chunked: bool) -> None:
    """As Java's client makes it with its first request: the body counts, and the connection goes
    on in HTTP/1.1."""
    body = json.dumps({**BODY, "max_tokens": 2}).encode()
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    head = f"Host: localhost\r\nContent-Type: application/json\r\n{offer}{framing}\r\n\r\n"
    framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    sent = b"POST /v1/completions HTTP/1.1\r\n" + head.encode() + framed
    sent = b"GET /version HTTP/1.1\r\nHost: localhost\r\n" + offer.encode() + b"\r\n" + sent
    with server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if cut:
            connection.sendall(sent[:cut])
            time.sleep(0.05)
        connection.sendall(sent[cut:] if cut else sent)
        send_raw(connection, "/v1/completions", body, "Connection: close\r\n")
        data = read_all(connection)
    assert data.count(b"HTTP/1.1 200 OK") == 3
    assert data.count(b"text_completion") == 2
    assert "upgrade" not in server.log.lower()


def test_head(server: Server) -> None:
    answer = request(server, "HEAD", "/v1/models")
    assert (answer.status, answer.body) == (200, b"")


# ---- errors of HTTP, all in the envelope ----


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/v1", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/livez", 405, "method_not_allowed"),
        ("GET", "/v1/models/a/b:c", 404, "model_not_found"),
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 404, "model_not_found"),
        ("GET", "/v1/models/%00%0d%0a", 404, "model_not_found"),
    ],
)
def test_error_envelope(server: Server, method: str, path: str, status: int, code: str) -> None:
    answer = request(server, method, path)
    assert answer.status == status
    assert answer.error["code"] == code
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_only_json_is_read(server: Server, content_type: str) -> None:
    answer = post(server, "/v1/completions", BODY, {"content-type": content_type})
    assert answer.status == 415
    assert answer.error["type"] == "invalid_request_error"


def test_a_declared_large_body_is_refused_unread(server: Server) -> None:
    with server.connect() as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: 30000000\r\n\r\n"
        connection.sendall(head)
        data = read_all(connection)
    assert data.startswith(b"HTTP/1.1 413 ")
    assert b"request_too_large" in data


def test_an_undeclared_large_body_is_cut(strict_server: Server) -> None:
    with strict_server.connect() as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head)
        try:
            for _ in range(400):
                connection.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
        except OSError:
            pass
        assert read_all(connection).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/nothing"])
@pytest.mark.parametrize("headers", [{}, {"connection": "close"}])
def test_a_refusal_reaches_a_client_that_first_sends_everything(
    server: Server, path: str, headers: dict[str, str]
) -> None:
    answer = request(server, "POST", path, b"x" * 30_000_000, headers)
    assert answer.status == (413 if path == "/v1/completions" else 404)
    assert answer.error["message"]


def test_compressed_bodies_are_refused(server: Server) -> None:
    answer = post(server, "/v1/completions", BODY, {"content-encoding": "gzip"})
    assert answer.status == 415
    assert "Content-Encoding" in answer.error["message"]
    assert post(server, "/v1/completions", BODY, {"content-encoding": "identity"}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        "".join(f"X-{i}: y\r\n" for i in range(101)),
        f"X-Large: {'y' * 33000}\r\n",
        f"X-Endless: {'y' * 200_000}",
    ],
)
def test_too_many_or_too_large_headers(server: Server, headers: str) -> None:
    with server.connect() as connection:
        try:
            connection.sendall(f"GET /livez HTTP/1.1\r\nHost: localhost\r\n{headers}".encode())
            connection.sendall(b"\r\n")
        except OSError:
            pass
        data = read_all(connection)
    assert data.startswith(b"HTTP/1.1 431 ")
    assert b"headers_too_large" in data


@pytest.mark.parametrize(
    "data", [b"\x00\x01\x02\r\n\r\n", b"GET /livez HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"]
)
def test_what_is_not_http(server: Server, data: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(data)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"invalid_http" in answer


def test_slow_senders_are_cut(strict_server: Server) -> None:
    with strict_server.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: lo")
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")
    with strict_server.connect() as connection:
        assert read_all(connection) == b""
    with strict_server.connect() as connection:
        send_raw(connection, "/v1/completions", b"{", "")
        connection.sendall(b"")
    with strict_server.connect() as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
        connection.sendall(head)
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


# ---- headers ----


def test_request_ids(server: Server) -> None:
    assert request(server, "GET", "/livez").headers["x-request-id"].startswith("req-")
    given = {"x-request-id": "Az09._:/+=-" + "x" * 100}
    assert (
        request(server, "GET", "/livez", headers=given).headers["x-request-id"]
        == given["x-request-id"]
    )
    for bad in ("x" * 129, "a b", "a\tb", "\u00e9"):
        answer = request(server, "GET", "/livez", headers={"x-request-id": bad})
        assert answer.headers["x-request-id"].startswith("req-")


def test_unknown_fields_are_named(server: Server, strict_server: Server) -> None:
    body = {**BODY, "zebra": 1, "apple": {"deep": True}, "user": "u", "store": False, "tools": []}
    answer = post(server, "/v1/completions", body)
    assert answer.status == 200
    assert answer.headers["x-headrace-ignored"] == "apple, zebra"
    answer = post(strict_server, "/v1/completions", body)
    assert answer.status == 400
    assert answer.error["param"] == "apple"
    del body["apple"], body["zebra"]
    assert post(strict_server, "/v1/completions", body).status == 200


def test_hosts_of_other_names_are_refused(server: Server) -> None:
    for good in ("localhost", "127.0.0.1:8000", "[::1]:80", "box.localhost"):
        assert request(server, "GET", "/livez", headers={"host": good}).status == 200
    for bad in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""):
        answer = request(server, "GET", "/livez", headers={"host": bad})
        assert answer.status == 403
        assert answer.error["code"] == "host_not_allowed"


def test_no_cors_by_default(server: Server) -> None:
    origin = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = request(server, "OPTIONS", "/v1/completions", headers=origin)
    assert answer.status == 405
    answer = request(server, "GET", "/livez", headers=origin)
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_the_page(server: Server, strict_server: Server) -> None:
    answer = request(server, "GET", "/")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for path in ("/ui/app.js", "/ui/style.css", "/ui/markdown.js"):
        assert request(server, "GET", path).status == 200
        assert request(strict_server, "GET", path).status == 404
    assert request(strict_server, "GET", "/").status == 404


def test_no_prompt_in_the_log(server: Server) -> None:
    complete(server, "a-very-secret-prompt", user="secret-user", foo="secret-value")
    assert "secret" not in server.log


# ---- clients that go away ----


def running(server: Server) -> float:
    """Requests anywhere between admission and the end, in gateway and engine."""
    text = request(server, "GET", "/metrics").body.decode()
    names = ("headrace:open_requests{", "vllm:num_requests_running{", "vllm:num_requests_waiting{")
    found = [line for line in text.splitlines() if line.startswith(names)]
    assert len(found) == 3
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.1])
def test_a_client_that_goes_frees_everything(server: Server, stream: bool, after_s: float) -> None:
    """At once (in the body, in tokenizing), in prefill, in decode."""
    fields = {**BODY, "prompt": "!slow" + "x" * 2000, "max_tokens": 2000, "ignore_eos": True}
    body = json.dumps({**fields, "stream": stream}).encode()
    with server.connect() as connection:
        send_raw(connection, "/v1/completions", body)
        time.sleep(after_s)
    eventually(lambda: running(server) == 0)
    assert "Traceback" not in server.log


def test_a_client_that_goes_in_the_middle_of_a_stream(server: Server) -> None:
    fields = {**BODY, "prompt": "!slow", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with server.connect() as connection:
        send_raw(connection, "/v1/completions", json.dumps(fields).encode())
        read_until(connection, b"data: ")
        assert running(server) == 2
    eventually(lambda: running(server) == 0)


def test_a_client_that_goes_within_its_body(server: Server) -> None:
    with server.connect() as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: 5000\r\n\r\n{"
        connection.sendall(head)
    assert complete(server, "abc").status == 200
    assert "Traceback" not in server.log


def test_many_impatient_clients_then_a_patient_one(server: Server) -> None:
    body = json.dumps({**BODY, "prompt": "!slow", "max_tokens": 2000, "ignore_eos": True}).encode()
    connections = [server.connect() for _ in range(100)]
    for connection in connections:
        send_raw(connection, "/v1/completions", body)
    time.sleep(0.2)
    for connection in connections:
        connection.close()
    started_s = time.monotonic()
    assert complete(server, "abc").status == 200
    assert time.monotonic() - started_s < 10
    eventually(lambda: running(server) == 0)


def test_a_reader_that_stops_is_cut(strict_server: Server) -> None:
    """Its stream ends, others go on, and nothing piles up."""
    fields = {"model": "fake", "prompt": ["abc"] * 60, "max_tokens": 3000, "ignore_eos": True}
    body = json.dumps({**fields, "stream": True, "logprobs": 5}).encode()
    with strict_server.connect() as connection:
        send_raw(connection, "/v1/completions", body)
        read_until(connection, b"data: ")
        assert complete(strict_server, "abc").status == 200
        eventually(lambda: running(strict_server) == 0, 60)
    assert "Traceback" not in strict_server.log


def test_a_body_is_forgotten_while_its_request_runs(tmp_path: Path) -> None:
    """Requests may run for long: what nobody reads again of a body must not wait with them."""

    def pss_mib(pid: int) -> float:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return int(rollup.split("\nPss:")[1].split()[0]) / 1024

    with serve_fake(tmp_path / "log") as server, contextlib.ExitStack() as connections:
        fields = {**BODY, "prompt": "!slow", "stream": True, "ignore_eos": True}
        fields["max_tokens"] = 2000
        small = json.dumps(fields).encode()
        padded = {**fields, "user": "u" * 3_000_000, "metadata": {"a": "m" * 3_000_000}}
        large = json.dumps(padded).encode()

        def begin(body: bytes) -> None:
            connection = connections.enter_context(server.connect())
            send_raw(connection, "/v1/completions", body)
            assert b"200 OK" in read_until(connection, b"data: ")

        begin(small)
        begin(large)
        before = pss_mib(server.process.pid)
        for _ in range(12):
            begin(large)
        assert pss_mib(server.process.pid) - before < 36


def test_no_descriptor_stays_open(server: Server) -> None:
    folder = Path(f"/proc/{server.process.pid}/fd")
    complete(server, "abc")
    before = len(list(folder.iterdir()))
    for _ in range(20):
        complete(server, "abc", stream=True)
    eventually(lambda: len(list(folder.iterdir())) <= before + 1)
