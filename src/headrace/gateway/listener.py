"""The listening socket: bound before anything is loaded, so that a port in use is known at once."""

from __future__ import annotations

import errno
import socket

from headrace.errors import ResourceError


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
