"""What a dead, stopped, hanging or looping worker does to readiness, streams and requests."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http import (
    Answer,
    complete,
    events_of,
    post,
    read_all,
    read_until,
    request,
    send_raw,
)
from tests.support.serving import Server, eventually, is_alive, serve_fake, start, stop, wait_ready

SLOW = {"model": "fake", "prompt": "!slow", "max_tokens": 3000, "ignore_eos": True, "stream": True}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    restart = {"backoff_s": 0.3, "backoff_max_s": 0.3, "stall_s": 2.0}
    with serve_fake(tmp_path / "log", restart=restart) as running:
        yield running


def is_ready(server: Server) -> bool:
    return request(server, "GET", "/readyz").status == 200


def state(server: Server) -> object:
    return request(server, "GET", "/v1/models").json["data"][0]["status"]


def open_stream(server: Server) -> Iterator[bytes]:
    """First the beginning of a slow stream, then the rest of it."""
    with server.connect() as connection:
        body = json.dumps(SLOW).encode()
        send_raw(connection, "/v1/completions", body, "Connection: close\r\n")
        yield read_until(connection, b"data: ")
        yield read_all(connection)


def in_thread(results: list[Answer], server: Server, prompt: str, **fields: object) -> None:
    thread = threading.Thread(
        target=lambda: results.append(complete(server, prompt, **fields)), daemon=True
    )
    thread.start()


def test_a_killed_worker(server: Server) -> None:
    """Readiness is false within a second, the stream gets an error event, a new worker comes."""
    stream = open_stream(server)
    next(stream)
    (old,) = server.children()
    os.kill(old, signal.SIGKILL)
    eventually(lambda: not is_ready(server), 1.0)
    rest = next(stream).decode()
    assert '"code":"engine_dead"' in rest
    assert "SIGKILL" in rest
    assert "[DONE]" not in rest
    assert rest.endswith("0\r\n\r\n")
    answer = complete(server, "abc")
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.error["code"] == "engine_dead"
    assert request(server, "GET", "/livez").status == 200
    eventually(lambda: is_ready(server))
    assert complete(server, "abc").status == 200
    assert server.children() != [old]


def test_a_stopped_worker_is_replaced(server: Server) -> None:
    """SIGSTOP: no news for `stall_s`."""
    stream = open_stream(server)
    next(stream)
    (old,) = server.children()
    os.kill(old, signal.SIGSTOP)
    assert "no sign of life" in next(stream).decode()
    eventually(lambda: is_ready(server))
    assert not is_alive(old)
    assert complete(server, "abc").status == 200


def test_a_hanging_step_is_ended(server: Server) -> None:
    results: list[Answer] = []
    in_thread(results, server, "!hang")
    eventually(lambda: bool(results), 20)
    # It was tried a second time, and then refused.
    assert results[0].error["code"] == "request_refused"
    eventually(lambda: is_ready(server))


def test_a_waiting_request_survives_the_worker(server: Server) -> None:
    """It had no output yet, so it is run again in the next worker."""
    stream = open_stream(server)
    next(stream)
    (old,) = server.children()
    os.kill(old, signal.SIGSTOP)
    results: list[Answer] = []
    in_thread(results, server, "abc", seed=3)
    time.sleep(0.2)
    os.kill(old, signal.SIGKILL)
    eventually(lambda: bool(results))
    assert results[0].status == 200
    assert (
        results[0].json["choices"][0]["text"]
        == complete(server, "abc", seed=3).json["choices"][0]["text"]
    )


def test_a_request_that_kills_two_workers_is_refused(server: Server) -> None:
    """It is run twice, then never again; others come through."""
    results: list[Answer] = []
    bad: list[Answer] = []
    in_thread(bad, server, "!crash now")
    for i in range(5):
        in_thread(results, server, f"good-{i}")
    eventually(lambda: len(bad) == 1, 20)
    assert bad[0].status == 500
    assert bad[0].error["code"] == "request_refused"
    assert bad[0].headers["x-should-retry"] == "false"
    eventually(lambda: len(results) == 5, 20)
    assert {answer.status for answer in results} <= {200, 503}
    eventually(lambda: is_ready(server))
    starts = server.log.count("worker of a model is gone")
    assert starts == 2
    again = complete(server, "!crash now", seed=99)
    assert again.error["code"] == "request_refused"
    assert is_ready(server)
    assert complete(server, "good").status == 200


def test_a_crash_in_a_stream_is_no_success(server: Server) -> None:
    answer = complete(server, "!late-crash", stream=True)
    assert json.loads(events_of(answer)[-1])["error"]["code"] == "engine_dead"
    eventually(lambda: is_ready(server))
    text = request(server, "GET", "/metrics").body.decode()
    assert 'vllm:request_success_total{finished_reason="stop",model_name="fake"} 0.0' in text
    assert 'vllm:request_success_total{finished_reason="error",model_name="fake"} 1.0' in text


def test_a_step_that_raises_ends_its_requests_only(server: Server) -> None:
    (old,) = server.children()
    answer = complete(server, "!raise")
    assert answer.status == 500
    assert "raised" not in answer.body.decode()
    assert "the fake step raised" in server.log
    assert complete(server, "abc").status == 200
    assert server.children() == [old]


def test_a_crash_loop_opens_the_circuit(tmp_path: Path) -> None:
    restart = {"backoff_s": 0.01, "max_failures": 3, "open_s": 600.0}
    server = start(tmp_path / "log", restart=restart, models={"fake": "/x/crash"})
    try:
        assert server.process.wait(20) == 1
        assert server.log.count("is gone") == 3
        assert "did not come up: it ended with SIGKILL" in server.log
    finally:
        stop(server)


def test_the_circuit_of_a_model_that_once_served(server: Server) -> None:
    """Too many deaths in a row: no more starts for a while, and a clear code."""
    for _ in range(5):
        eventually(lambda: bool(server.children()))
        os.kill(server.children()[0], signal.SIGKILL)
        eventually(lambda: not server.children())
    eventually(lambda: state(server) == "failed")
    answer = complete(server, "abc")
    assert (answer.status, answer.error["code"]) == (503, "engine_dead")
    assert int(answer.headers["retry-after"]) > 5
    assert request(server, "GET", "/livez").status == 200


def test_a_model_that_does_not_load(tmp_path: Path) -> None:
    """One sentence, status 1, nothing left behind."""
    server = start(tmp_path / "log", models={"fake": "/x/corrupt.gguf"})
    assert server.process.wait(20) == 1
    assert "error: fake: The fake model is corrupt." in server.log
    assert "Traceback" not in server.log
    assert "/x/" not in server.log


def test_one_of_two_models_does_not_load(tmp_path: Path) -> None:
    models = {"fake": "/x/fine", "other": "/x/corrupt"}
    with serve_fake(tmp_path / "log", models=models) as server:
        assert complete(server, "abc").status == 200
        answer = post(server, "/v1/completions", {"model": "other", "prompt": "abc"})
        assert answer.status == 503
        cards = request(server, "GET", "/v1/models").json["data"]
        assert [(card["id"], card["status"]) for card in cards] == [
            ("fake", "ready"),
            ("other", "failed"),
        ]


def test_two_models_have_a_worker_each(tmp_path: Path) -> None:
    models = {"fake": "/x/one", "other": "/x/two"}
    with serve_fake(tmp_path / "log", models=models) as server:
        assert len(server.children()) == 2
        for name in models:
            answer = post(server, "/v1/completions", {"model": name, "prompt": "abc"})
            assert answer.json["model"] == name


def test_names_for_a_model(tmp_path: Path) -> None:
    with serve_fake(tmp_path / "log", served_model_name=["gpt-x", "alias"]) as server:
        for name in ("gpt-x", "alias"):
            answer = post(server, "/v1/completions", {"model": name, "prompt": "abc"})
            assert answer.json["model"] == name
        assert complete(server, "abc").status == 404


def test_requests_are_held_while_the_model_loads(tmp_path: Path) -> None:
    server = start(tmp_path / "log")
    try:
        eventually(lambda: _is_listening(server))
        assert complete(server, "abc").status == 200
    finally:
        stop(server)


def test_the_queue_is_bounded(tmp_path: Path) -> None:
    with serve_fake(tmp_path / "log", max_num_seqs=2, max_waiting=3) as server:
        results: list[Answer] = []
        fields = {"max_tokens": 25, "ignore_eos": True}
        for _ in range(12):
            in_thread(results, server, "!slow", **fields)
        eventually(lambda: len(results) == 12, 60)
        statuses = sorted(answer.status for answer in results)
        assert statuses[:5] == [200] * 5
        rejected = [answer for answer in results if answer.status == 429]
        assert len(rejected) >= 1
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in rejected)


def _is_listening(server: Server) -> bool:
    try:
        return request(server, "GET", "/livez").status == 200
    except OSError:
        return False


def test_readiness_of_a_slow_start(tmp_path: Path) -> None:
    server = start(tmp_path / "log")
    try:
        wait_ready(server)
        assert request(server, "GET", "/health").json == {"status": "ok"}
    finally:
        assert stop(server) == 0
