"""A Hub on loopback: the few answers of the real one that a download needs, and its failures."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class FakeHub:
    """`repos`: repository -> file -> bytes. Large-file storage holds what ends in .gguf or
    .safetensors. Behaviours are set by tests."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    # Bytes sent in place of a file's own (of the same length): damage on the way.
    damaged: dict[str, bytes] = field(default_factory=dict)
    # File -> how many bytes to send before the connection is cut, once.
    cut_after: dict[str, int] = field(default_factory=dict)
    # Base URL of a second server that file requests are redirected to.
    storage: str = ""
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    def sent_ranges(self) -> list[str | None]:
        return [r.headers.get("range") for r in self.requests if r.method == "GET" and _file(r)]


def _file(request: Request) -> bool:
    return "/resolve/" in request.path


def is_large(name: str) -> bool:
    return name.endswith((".gguf", ".safetensors"))


def digest_of(name: str, data: bytes) -> str:
    """sha256 for large files, git's blob hash for the others."""
    if is_large(name):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlparse(self.path).path)
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.hub.requests.append(Request(self.command, path, headers))
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if api:
            self._repo(api[1], api[2])
        elif file:
            self._file(file[1], file[3], with_body=with_body)
        else:
            self._error(404, "EntryNotFound")

    def _repo(self, repo: str, revision: str) -> None:
        if repo in self.hub.gated:
            self._error(403, "GatedRepo")
        elif repo not in self.hub.repos:
            self._error(401, "RepoNotFound")
        elif revision not in ("main", COMMIT):
            self._error(404, "RevisionNotFound")
        else:
            siblings = []
            for name, data in self.hub.repos[repo].items():
                entry: dict[str, object] = {
                    "rfilename": name,
                    "size": len(data),
                    "blobId": "0" * 40,
                }
                if is_large(name):
                    sha256 = digest_of(name, data)
                    entry["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 134}
                else:
                    entry["blobId"] = digest_of(name, data)
                siblings.append(entry)
            body = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
            self._send(200, body, {"Content-Type": "application/json"})

    def _file(self, repo: str, name: str, *, with_body: bool) -> None:
        data = self.hub.repos[repo][name]
        extra = {
            "ETag": f'"{digest_of(name, data)}"',
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(data)),
            "Accept-Ranges": "bytes",
        }
        if self.hub.storage:
            extra["Location"] = self.hub.storage + self.path
            self._send(302, b"", extra)
            return
        body = self.hub.damaged.get(name, data)
        status, start = 200, 0
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted:
            status, start = 206, int(wanted[1])
            extra["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        limit = self.hub.cut_after.pop(name, None) if with_body else None
        self._send(status, body[start:], extra, with_body=with_body, limit=limit)

    def _error(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(
        self,
        status: int,
        body: bytes,
        extra: dict[str, str],
        *,
        with_body: bool = True,
        limit: int | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in extra.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and with_body:
            self.wfile.write(body if limit is None else body[:limit])
        if limit is not None:
            self.close_connection = True


@contextmanager
def serve_hub(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve on a free loopback port; `hub.url` is the HF_ENDPOINT."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
