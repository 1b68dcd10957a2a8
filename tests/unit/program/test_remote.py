"""The remote runtime against a server of scripts: what it sends, and what it makes of answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from headrace.engine.base import RequestOptions
from headrace.engine.sampling import SamplingParams
from headrace.errors import HeadraceError, RequestError
from headrace.kv.radix.base import Retention
from headrace.program import Session, remote
from headrace.program.base import Counts, Generated
from headrace.program.remote import RemoteRuntime
from tests.support.scripted_server import ScriptedServer, http
from tests.support.serving import eventually

PARAMS = SamplingParams(seed=3, max_tokens=4, logprobs=0)
COMPLETION = (
    b'{"choices":[{"text":"hi","finish_reason":"stop","stop_reason":"x","token_ids":[5,6],'
    b'"logprobs":{"token_logprobs":[-0.5,-1.25]}}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":1}}}'
)


def runtime(server: ScriptedServer, model: str | None = None) -> RemoteRuntime:
    return RemoteRuntime(server.url, "session-7", model=model, api_key="key")


def test_a_completion_as_it_is_asked_for_and_read() -> None:
    with ScriptedServer(lambda number, body: [http(COMPLETION)]) as server:
        made = runtime(server)
        found = made.generate([1, 2, 3], PARAMS).result(20)
        made.close()
    assert found == Generated("hi", (5, 6), "stop", "x", (-0.5, -1.25), Counts(3, 1, 2))
    (body,) = server.bodies
    assert (body["model"], body["prompt"]) == ("scripted", [1, 2, 3])
    assert (body["seed"], body["max_tokens"], body["logprobs"]) == (3, 4, 0)
    assert body["return_token_ids"] is True
    assert "prompt_logprobs" not in body
    head = server.heads[0].lower().split("\r\n")
    assert {"x-headrace-session: session-7", "authorization: bearer key"} <= set(head)


def test_scores_are_asked_for_in_parts_and_read_from_the_end() -> None:
    """A server that knows nothing of prompt_logprobs_from sends those of the prefix, too."""

    def script(number: int, body: dict[str, Any]) -> Iterable[bytes]:
        entries = []
        for prompt in body["prompt"]:
            items = [f'{{"{t}":{{"logprob":{-t}}}}}' for t in prompt[1:]]
            entries.append(f'{{"prompt_logprobs":[{",".join(["null", *items])}]}}')
        choices = ",".join(entries)
        yield http(f'{{"choices":[{choices}],"usage":{{"prompt_tokens":9}}}}'.encode())

    tails = [[7, i] for i in range(100)]
    with ScriptedServer(script) as server:
        made = runtime(server, "m")
        futures = made.score([1, 2], tails)
        scored = [each for future in futures for each in future.result(20).logprobs]
        made.close()
    assert scored == [(-7.0, -float(i)) for i in range(100)]
    assert sorted(len(body["prompt"]) for body in server.bodies) == [36, 64]
    assert all(body["prompt_logprobs_from"] == 2 for body in server.bodies)
    assert all(body["max_tokens"] == 0 for body in server.bodies)


def test_long_prefixes_are_scored_fewer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_IDS", 50)
    answer = b'{"choices":[],"usage":{"prompt_tokens":1}}'
    with ScriptedServer(lambda number, body: [http(answer)]) as server:
        made = runtime(server, "m")
        assert len(made.score([1] * 20, [[2]] * 5)) == 3
        assert len(made.score([1] * 200, [[2]] * 5)) == 5
        made.close()


def test_the_only_model_is_found_and_several_are_not_guessed_at() -> None:
    with ScriptedServer(lambda number, body: [http(b'{"tokens":[1]}')]) as server:
        made = runtime(server)
        assert made.encode(["a", "b", "c"], add_special=True).result(20) == [[1]] * 3
        assert {body["model"] for body in server.bodies} == {"scripted"}
        made.close()
    several = http(b'{"data":[{"id":"one"},{"id":"two"}]}')
    with ScriptedServer(lambda number, body: [http(b'{"tokens":[1]}')], several) as server:
        made = runtime(server)
        with pytest.raises(HeadraceError, match=r"which model .* it has: one, two"):
            made.encode(["a"], add_special=True).result(20)
        made.close()
        named = runtime(server, "two")
        assert named.encode(["a"], add_special=False).result(20) == [[1]]
        assert server.bodies[-1]["model"] == "two"
        assert server.bodies[-1]["add_special_tokens"] is False
        named.close()


def refused(status: str, retry: str = "") -> bytes:
    body = b'{"error":{"message":"Not now.","type":"x","param":"prompt","code":"busy"}}'
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{retry}\r\n"
    return head.encode() + body


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_a_busy_server_is_asked_again(status: str) -> None:
    def script(number: int, body: dict[str, Any]) -> Iterable[bytes]:
        yield refused(status, "Retry-After: 0\r\n") if number < 3 else http(COMPLETION)

    with ScriptedServer(script) as server:
        made = runtime(server, "m")
        assert made.generate([1], PARAMS).result(20).text == "hi"
        assert len(server.bodies) == 4
        made.close()


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        (refused("503 Service Unavailable", "Retry-After: 0\r\n"), 1 + remote.MAX_RETRIES),
        (refused("503 Service Unavailable"), 1),
        (refused("503 Service Unavailable", "Retry-After: Mon, 1 Jan 2029 00:00:00 GMT\r\n"), 1),
        (refused("400 Bad Request", "Retry-After: 0\r\n"), 1),
    ],
)
def test_refusals_are_request_errors(answer: bytes, count: int) -> None:
    with ScriptedServer(lambda number, body: [answer]) as server:
        made = runtime(server, "m")
        with pytest.raises(RequestError, match=r"Not now\.") as caught:
            made.generate([1], PARAMS).result(20)
        assert (caught.value.param, caught.value.code) == ("prompt", "busy")
        assert caught.value.status == int(answer.split()[1])
        assert len(server.bodies) == count
        made.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (http(b"<html>", "502 Bad Gateway"), "answered with status 502"),
        (http(b"<html>"), "answer to /v1/completions is odd"),
        (http(b'{"choices":5}'), "answer to /v1/completions is odd"),
        (http(b'{"choices":[],"usage":{"prompt_tokens":1}}'), "has no choice"),
        (b"", "closed the connection before it answered"),
    ],
)
def test_answers_that_are_none(answer: bytes, message: str) -> None:
    with ScriptedServer(lambda number, body: [answer]) as server:
        made = runtime(server, "m")
        with pytest.raises(HeadraceError, match=message):
            made.generate([1], PARAMS).result(20)
        made.close()


@pytest.mark.parametrize(
    "answer",
    [
        b'{"choices":[],"usage":{"prompt_tokens":1}}',
        b'{"choices":[{"prompt_logprobs":[]}],"usage":{"prompt_tokens":1}}',
        b'{"choices":[{"prompt_logprobs":[null,null]}],"usage":{"prompt_tokens":1}}',
        b'{"choices":[{"prompt_logprobs":[{"8":{"logprob":-1}}]}],"usage":{"prompt_tokens":1}}',
    ],
)
def test_scores_that_are_none(answer: bytes) -> None:
    with ScriptedServer(lambda number, body: [http(answer)]) as server:
        made = runtime(server, "m")
        with pytest.raises(HeadraceError, match="no log-probabilities of what was asked for"):
            made.score([1], [[7]])[0].result(20)
        made.close()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "remote"]


def test_closing_ends_what_runs() -> None:
    gate = threading.Event()

    def script(number: int, body: dict[str, Any]) -> Iterable[bytes]:
        gate.wait(20)
        yield http(COMPLETION)

    with ScriptedServer(script) as server:
        made = runtime(server, "m")
        future = made.generate([1], PARAMS)
        eventually(lambda: len(server.bodies) == 1)
        made.close()
        made.close()
        with pytest.raises(CancelledError):
            future.result(20)
        with pytest.raises(HeadraceError, match="The session is closed"):
            made.generate([1], PARAMS).result(20)
        made.abandon([1], [[2]])
        gate.set()
    assert not threads()


def test_hints_are_told_in_parts_that_a_server_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.program.remote.MAX_IDS", 10)
    monkeypatch.setattr("headrace.program.remote.MAX_TAILS", 2)
    tails = [[3] * 4, [4] * 4, [5], [6], [7], [8] * 20, [9]]
    with ScriptedServer(lambda number, body: [http(b"{}")]) as server:
        made = runtime(server, "m")
        made.abandon([1, 2], tails)
        made.close()
        told = sorted(body["tails"] for body in server.bodies)
    assert told == [tails[:2], tails[2:4], tails[4:5], tails[5:6], tails[6:]]


def test_hints_are_told_before_the_end_and_never_fail() -> None:
    def script(number: int, body: dict[str, Any]) -> Iterable[bytes]:
        time.sleep(0.05)
        yield http(b"no such path", "404 Not Found")

    with ScriptedServer(script) as server:
        made = runtime(server)
        made.abandon([1, 2], [[3], [4]])
        made.close()
        assert server.bodies == [{"model": "scripted", "prefix": [1, 2], "tails": [[3], [4]]}]
    with ScriptedServer(script) as server:
        made = runtime(server)
        server.close()  # and nobody is there any more
    made.abandon([1], [[2]])
    made.close()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "smollm2:135m", ""])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(HeadraceError, match="is no URL"):
        Session(url)
    assert not threads()


def test_options_go_with_every_request_and_default_ones_are_not_sent() -> None:
    retention = Retention(priority=70, ttl_s=60.0)
    options = RequestOptions(priority=-2, salt="tenant", retention=retention)
    with ScriptedServer(lambda number, body: [http(COMPLETION)]) as server:
        made = RemoteRuntime(server.url, "s", model="m", api_key=None, options=options)
        made.generate([1], PARAMS).result(20)
        (scored,) = made.score([1], [[2]])
        with pytest.raises(HeadraceError):
            scored.result(20)  # the script knows no scores
        made.abandon([1], [[2]])
        made.close()
        plain = runtime(server, "m")
        plain.generate([1], PARAMS).result(20)
        plain.close()
    *both, hint, last = server.bodies
    for body in both:
        assert body["priority"] == -2
        assert body["cache"] == {"ttl": 60.0, "salt": "tenant", "priority": 70}
    assert hint == {"model": "m", "prefix": [1], "tails": [[2]], "salt": "tenant"}
    assert not {"priority", "cache"} & set(last)
