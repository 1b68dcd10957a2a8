"""Real servers: the workers of one user share one compute lease, and answer the same."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from tests.support.make_model import make_gguf
from tests.support.real_server import complete, serve_model
from tests.support.serving import Server


def lease_of(server: Server) -> tuple[str, str]:
    """(device, inode) of the lease that the worker has mapped."""
    (worker,) = server.children()
    lines = Path(f"/proc/{worker}/maps").read_text().splitlines()
    found = {(line.split()[3], line.split()[4]) for line in lines if "/compute-" in line}
    assert len(found) == 1, found
    return found.pop()


def test_two_servers_share_a_lease(tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "tiny.gguf").path
    with serve_model(path, tmp_path / "a") as first, serve_model(path, tmp_path / "b") as second:
        assert lease_of(first) == lease_of(second)
        fields = {"temperature": 1.0, "seed": 3, "max_tokens": 20}
        answers = [complete(server, "hello", **fields) for server in (first, second, first)]
        assert len({answer["choices"][0]["text"] for answer in answers}) == 1
        with urllib.request.urlopen(first.url + "/metrics", timeout=20) as response:
            assert b"headrace:lease_wait_seconds_total{" in response.read()
