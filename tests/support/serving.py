"""A real server over the fake engine: `serve_fake(...)` as a process, with URL, pid and logs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.gateway.config import HttpLimits, ModelSpec, RestartPolicy, ServeConfig

ROOT = Path(__file__).parents[2]

_BUILDER = "tests.support.fake_engine:build"


@dataclass
class Server:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def children(self) -> list[int]:
        """Pids of the direct children, that is: the workers."""
        return children_of(self.process.pid)

    def connect(self) -> socket.socket:
        """A raw connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()]


def is_alive(pid: int) -> bool:
    """False for a process that is gone or only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(log_path: Path, **options: Any) -> Server:
    """Start a server process; returns at once. `options`: fields of ServeConfig, in JSON's types;
    `models` maps names to paths."""
    port = options.setdefault("port", free_port())
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.serving", json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        )
    return Server(f"http://127.0.0.1:{port}", process, log_path)


def wait_ready(server: Server, timeout_s: float = 30.0) -> None:
    """Return when /readyz answers 200."""
    end_s = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(server.url + "/readyz", timeout=5).read()
            return
        if server.process.poll() is not None or time.monotonic() > end_s:
            raise RuntimeError(f"the server did not come up:\n{server.log}")
        time.sleep(0.02)


@contextlib.contextmanager
def serve_fake(log_path: Path, **options: Any) -> Iterator[Server]:
    """A ready server; killed with its workers at the end."""
    server = start(log_path, **options)
    try:
        wait_ready(server)
        yield server
    finally:
        stop(server)


def stop(server: Server) -> int:
    """Ctrl-C, then force. Returns the exit status."""
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGINT)
        try:
            server.process.wait(15)
        except subprocess.TimeoutExpired:
            server.process.kill()
    return server.process.wait()


def eventually(condition: Any, timeout_s: float = 10.0) -> None:
    """Wait until `condition()` is true; AssertionError when it never is."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it never came true"
        time.sleep(0.01)


def main(options: dict[str, Any]) -> int:
    """The server process: gateway.main.serve over the fake engine and its text."""
    from headrace.gateway.main import serve
    from tests.support.fake_text import load_fake_text

    models = options.pop("models", {"fake": "fake"})
    specs = tuple(ModelSpec(name, Path(path)) for name, path in models.items())
    limits = HttpLimits(**options.pop("limits", {}))
    restart = RestartPolicy(**options.pop("restart", {}))
    for name in ("served_model_name", "cors_origins"):
        options[name] = tuple(options.get(name, ()))
    config = ServeConfig(models=specs, limits=limits, restart=restart, **options)
    return serve(config, text_loader=load_fake_text, builder=_BUILDER)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
