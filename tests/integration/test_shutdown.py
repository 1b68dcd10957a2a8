"""The end of a server: signals, drain, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.http import read_all, read_until, request, send_raw
from tests.support.serving import Server, eventually, is_alive, serve_fake, start, wait_ready


def slow_stream(server: Server, num_tokens: int) -> socket.socket:
    """An open stream of 20 ms a token, past its first token."""
    fields = {"model": "fake", "prompt": "!slow", "max_tokens": num_tokens, "stream": True}
    body = json.dumps({**fields, "ignore_eos": True}).encode()
    connection = server.connect()
    send_raw(connection, "/v1/completions", body)
    read_until(connection, b"data: ")
    return connection


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_idle(tmp_path: Path, number: signal.Signals) -> None:
    with serve_fake(tmp_path / "log") as server:
        workers = server.children()
        started_s = time.monotonic()
        server.process.send_signal(number)
        assert server.process.wait(15) == 0
        assert time.monotonic() - started_s < 8
        assert not any(is_alive(pid) for pid in workers)
        assert "Traceback" not in server.log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_streams_end(tmp_path: Path, number: signal.Signals) -> None:
    with serve_fake(tmp_path / "log") as server:
        workers = server.children()
        with slow_stream(server, 60) as connection:
            server.process.send_signal(number)
            eventually(lambda: _refused(server), 5)
            rest = read_all(connection).decode()
        assert "[DONE]" in rest
        assert server.process.wait(15) == 0
        assert not any(is_alive(pid) for pid in workers)


def test_streams_beyond_the_timeout_get_an_error(tmp_path: Path) -> None:
    with serve_fake(tmp_path / "log", shutdown_timeout_s=0.5) as server:
        with slow_stream(server, 3000) as connection:
            server.process.send_signal(signal.SIGTERM)
            rest = read_all(connection).decode()
        assert '"code":"draining"' in rest
        assert "[DONE]" not in rest
        assert server.process.wait(15) == 0


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with serve_fake(tmp_path / "log", shutdown_timeout_s=60.0) as server:
        workers = server.children()
        with slow_stream(server, 3000) as connection:
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            assert server.process.poll() is None
            started_s = time.monotonic()
            server.process.send_signal(signal.SIGINT)
            read_all(connection)
            assert server.process.wait(15) == 0
            assert time.monotonic() - started_s < 8
        assert not any(is_alive(pid) for pid in workers)


def test_a_signal_to_the_group_reaches_only_the_gateway(tmp_path: Path) -> None:
    """Ctrl-C in a terminal: the worker goes on until the gateway ends it."""
    with serve_fake(tmp_path / "log") as server:
        (worker,) = server.children()
        os.kill(worker, signal.SIGINT)
        assert os.getpgid(worker) != os.getpgid(server.process.pid)
        assert request(server, "GET", "/readyz").status == 200
        assert server.children() == [worker]


def test_a_killed_gateway_leaves_no_worker(tmp_path: Path) -> None:
    with serve_fake(tmp_path / "log") as server:
        workers = server.children()
        with slow_stream(server, 3000):
            server.process.kill()
            server.process.wait()
            eventually(lambda: not any(is_alive(pid) for pid in workers), 5)


def test_signals_while_loading(tmp_path: Path) -> None:
    server = start(tmp_path / "log")
    eventually(lambda: bool(server.children()), 20)
    workers = server.children()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(15) in (0, -signal.SIGTERM)
    eventually(lambda: not any(is_alive(pid) for pid in workers), 5)


def test_a_worker_told_to_end_finishes_first(tmp_path: Path) -> None:
    """SIGTERM to the worker itself drains it; the gateway then starts another one."""
    with serve_fake(tmp_path / "log", restart={"backoff_s": 0.1}) as server:
        (worker,) = server.children()
        with slow_stream(server, 30) as connection:
            os.kill(worker, signal.SIGTERM)
            assert b"[DONE]" in read_until(connection, b"[DONE]")
        eventually(lambda: server.children() not in ([], [worker]))
        wait_ready(server)


def test_a_port_in_use(tmp_path: Path) -> None:
    with serve_fake(tmp_path / "log") as server:
        second = start(tmp_path / "second", port=server.port)
        assert second.process.wait(20) == 1
        assert f"Port {server.port} on 127.0.0.1 is in use; choose another" in second.log


def test_the_runtime_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest's own folder has a path that is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="hr") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        with serve_fake(tmp_path / "log") as server:
            assert len(os.listdir(folder)) == 1
            server.process.send_signal(signal.SIGINT)
            server.process.wait(15)
        assert os.listdir(folder) == []


def _refused(server: Server) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5):
            return False
    except ConnectionRefusedError:
        return True
