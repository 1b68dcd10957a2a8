"""The HTTP listener: a uvicorn server on a socket that was bound before anything was loaded."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

import uvicorn

from headrace.errors import ResourceError
from headrace.gateway.config import ServeConfig
from headrace.gateway.protocol import make_protocol


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ResourceError in one sentence when the address cannot be had."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        raise ResourceError(f"The host {host!r} is not known; try --host 127.0.0.1.") from None
    family, kind, proto, _, address = found[0]
    listener = socket.socket(family, kind, proto)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ResourceError(_bind_error(host, port, error)) from None
    listener.setblocking(False)
    return listener


def _bind_error(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is in use; choose another with --port."
    if error.errno == errno.EACCES:
        return f"Port {port} needs rights this user does not have; choose one above 1023."
    return f"Cannot listen on {host}, port {port}: {error.strerror}."


def url_of(listener: socket.socket) -> str:
    """The base URL of a bound socket, as a client on this machine can use it."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpServer(uvicorn.Server):
    """Uvicorn without its own signal handling: the life of the process is gateway.main's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def make_server(app: object, config: ServeConfig) -> HttpServer:
    """A server for an ASGI application with the limits of `config`."""
    return HttpServer(
        uvicorn.Config(
            app,  # type: ignore[arg-type]  # starlette's and uvicorn's ASGI types differ in name
            http=make_protocol(config.limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(config.limits.keep_alive_s),
            # Open streams get --shutdown-timeout from gateway.main, then an error, then this.
            timeout_graceful_shutdown=3,
        )
    )
