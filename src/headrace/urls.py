"""URLs of servers: what a person writes, and the requests that go there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. `path` comes before that of the API."""

    url: str
    host: str
    port: int
    is_tls: bool
    path: str
    authority: str
    api_key: str | None = None

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Sequence[tuple[str, str]] = ()
    ) -> bytes:
        """The bytes of a request. `headers` beside those that every request has."""
        lines = [
            f"{method} {self.path}{path} HTTP/1.1",
            f"Host: {self.authority}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers),
        ]
        if self.api_key is not None:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def parse_url(url: str, api_key: str | None = None) -> Target:
    """`http://host:port`, with or without `/v1`. Raises HeadraceError."""
    example = "write it like http://127.0.0.1:8000"
    printable = all(33 <= ord(c) < 127 for c in url)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise HeadraceError(f"{url!r} is no URL ({error}); {example}.") from None
    if not printable or parts.scheme not in {"http", "https"} or not host or port == 0:
        raise HeadraceError(f"{url!r} is no URL of a server; {example}.")
    if api_key is not None and not all(33 <= ord(c) < 127 for c in api_key):
        raise HeadraceError("The API key has characters that no header can carry.")
    is_tls = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/v1")
    authority = parts.netloc.rpartition("@")[2]
    return Target(url, host, port or (443 if is_tls else 80), is_tls, path, authority, api_key)
