"""The HTTP server: uvicorn on a socket that is already bound."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import uvicorn

from headrace.gateway.config import ServeConfig
from headrace.gateway.protocol import make_protocol


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
