"""Keys: every route but the probes and the page needs one, and it appears nowhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from headrace.api.app import build_routes
from headrace.gateway.config import ModelSpec, ServeConfig
from headrace.gateway.gateway import Gateway
from tests.support.fake_text import load_fake_text
from tests.support.http import request
from tests.support.serving import Server, serve_fake

KEY = "sk-a-key-of-some-length"
PUBLIC = {"/livez", "/readyz", "/health", "/", "/ui/app.js", "/ui/markdown.js", "/ui/style.css"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("locked") / "log"
    origins = ["https://good.example"]
    with serve_fake(path, api_key=KEY, host="127.0.0.1", cors_origins=origins) as running:
        yield running


async def all_paths() -> dict[str, set[str]]:
    """Every path of the router with its methods."""
    config = ServeConfig(models=(ModelSpec("fake", Path("fake")),), api_key=KEY)
    gateway = Gateway(config, load_fake_text)
    try:
        return {route.path: set(route.methods or ()) for route in build_routes(gateway)}
    finally:
        gateway.close()


async def test_every_route_needs_the_key(locked: Server) -> None:
    paths = await all_paths()
    assert set(paths) > PUBLIC
    assert len(paths) >= 20
    for path, methods in paths.items():
        shown = path.replace("{model_id:path}", "fake")
        for method in {*methods, "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}:
            body = b"{}" if method in ("POST", "PUT", "PATCH") else None
            answer = request(locked, method, shown, body)
            if path in PUBLIC:
                assert answer.status in (200, 405), (method, path)
            else:
                assert answer.status == 401, (method, path)


def test_unknown_paths_tell_nothing(locked: Server) -> None:
    assert request(locked, "GET", "/nothing").status == 401
    assert request(locked, "GET", "//v1/models").status == 401
    assert request(locked, "GET", "/livez/../v1/models").status in (401, 404)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {KEY}",
        KEY,
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        "Bearer ' OR 1=1 --",
        "Bearer \u00e9",
    ],
)
def test_wrong_keys(locked: Server, value: str) -> None:
    answer = request(locked, "GET", "/v1/models", headers={"authorization": value})
    assert answer.status == 401
    assert answer.error["type"] == "authentication_error"
    assert answer.error["code"] == "invalid_api_key"
    assert KEY not in answer.body.decode()


def test_the_right_key(locked: Server) -> None:
    with openai.OpenAI(base_url=locked.url + "/v1", api_key=KEY, max_retries=0) as client:
        assert client.completions.create(model="fake", prompt="a").choices
    with (
        openai.OpenAI(base_url=locked.url + "/v1", api_key="x", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_preflight_and_cors_for_the_named_origin(locked: Server) -> None:
    headers = {"origin": "https://good.example", "access-control-request-method": "POST"}
    answer = request(locked, "OPTIONS", "/v1/completions", headers=headers)
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == "https://good.example"
    # The openai package sends x-stainless-* headers from a page; a star alone leaves out the key.
    allowed = answer.headers["access-control-allow-headers"].split(", ")
    assert {"authorization", "*"} <= set(allowed)
    answer = request(locked, "GET", "/livez", headers={"origin": "https://good.example"})
    assert answer.headers["access-control-allow-origin"] == "https://good.example"
    answer = request(locked, "GET", "/livez", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_the_key_is_in_no_log_and_in_no_worker(locked: Server) -> None:
    request(locked, "GET", "/v1/models", headers={"authorization": f"Bearer {KEY}"})
    assert KEY not in locked.log
    assert KEY not in request(locked, "GET", "/metrics", headers=_auth()).body.decode()
    for pid in locked.children():
        for name in ("cmdline", "environ"):
            assert KEY.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()


def test_the_key_variable_stays_in_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY", KEY)
    with serve_fake(tmp_path / "log") as server:
        assert KEY.encode() in Path(f"/proc/{server.process.pid}/environ").read_bytes()
        for pid in server.children():
            assert KEY.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_sockets_are_private(locked: Server) -> None:
    """TCP: the one port, on loopback. Unix sockets: in a folder of mode 0700."""
    listening = {
        line.split()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[9] in _socket_inodes(locked)
    }
    assert listening == {f"0100007F:{locked.port:04X}"}
    paths = {
        line.split()[7]
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]
        if len(line.split()) > 7 and line.split()[6] in _socket_inodes(locked)
    }
    folders = {os.path.dirname(path) for path in paths if not path.startswith("@")}
    assert len(folders) == 1
    assert os.stat(folders.pop()).st_mode & 0o777 == 0o700


def _auth() -> dict[str, str]:
    return {"authorization": f"Bearer {KEY}"}


def _socket_inodes(server: Server) -> set[str]:
    folder = Path(f"/proc/{server.process.pid}/fd")
    links = [os.readlink(path) for path in folder.iterdir() if path.exists() or path.is_symlink()]
    return {found[1] for link in links if (found := re.fullmatch(r"socket:\[(\d+)\]", link))}
