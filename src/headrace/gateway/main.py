"""`serve`: the life of the gateway process, from the bound port to the last child's end."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvloop

from headrace.gateway.banner import print_banner, say
from headrace.gateway.config import ServeConfig
from headrace.gateway.gateway import Gateway
from headrace.gateway.listener import bind, url_of
from headrace.gateway.supervisor import State
from headrace.gateway.text import TextLoader, load_text
from headrace.observe.logging import setup_logging

if TYPE_CHECKING:
    from headrace.gateway.server import HttpServer

logger = logging.getLogger("headrace.gateway")

# With more threads than cores, the one that runs Python code should not keep the loop waiting.
_SWITCH_INTERVAL_S = 0.001


def serve(
    config: ServeConfig, *, text_loader: TextLoader = load_text, builder: str | None = None
) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit status: 0, or 1 when no model could load.

    `builder` is the import string of another engine builder (see worker.config). Raises
    ResourceError when the configuration is unsafe or the port cannot be had.
    """
    config.check()
    setup_logging(config.log_level, config.log_format)
    listener = bind(config.host, config.port)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Life(config, listener, text_loader, builder).run())


class _Life:
    """Start, wait, drain, stop. The first signal drains, the second one kills."""

    def __init__(
        self,
        config: ServeConfig,
        listener: socket.socket,
        text_loader: TextLoader,
        builder: str | None,
    ) -> None:
        self._config = config
        self._listener = listener
        self._gateway = Gateway(config, text_loader, builder=builder)
        self._signalled = asyncio.Event()
        self._killed = asyncio.Event()

    async def run(self) -> int:
        """The exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        # Workers first: they load while the HTTP stack is imported.
        self._gateway.start()
        try:
            return await self._serve()
        finally:
            self._gateway.kill()
            self._gateway.close()

    async def _serve(self) -> int:
        from headrace.gateway.server import make_server

        make_app: Callable[[Gateway], object] = _resolve(self._config.app)
        server = make_server(make_app(self._gateway), self._config)
        listening = asyncio.create_task(server.serve(sockets=[self._listener]))
        loaded = asyncio.create_task(self._wait_loaded())
        signalled = asyncio.create_task(self._signalled.wait())
        await asyncio.wait({loaded, signalled, listening}, return_when=asyncio.FIRST_COMPLETED)
        status = 0
        if loaded.done() and not self._signalled.is_set():
            status = 0 if loaded.result() else 1
            if status == 0:
                await asyncio.wait({signalled, listening}, return_when=asyncio.FIRST_COMPLETED)
        loaded.cancel()
        signalled.cancel()
        await self._stop(server, listening)
        return status

    async def _wait_loaded(self) -> bool:
        """Wait until every model is loaded or has failed; False when none can be served."""
        for service in self._gateway.services:
            await service.wait_settled()
            if service.state is State.FAILED:
                say(f"error: {service.spec.name}: {service.load_error}")
        # What is here now stays: full collections, which stop every stream, need not look at it.
        gc.collect()
        gc.freeze()
        services = [s for s in self._gateway.services if s.state is State.READY]
        if services:
            print_banner(self._config, url_of(self._listener), services)
        return bool(services)

    async def _stop(self, server: HttpServer, listening: asyncio.Task[None]) -> None:
        gateway = self._gateway
        gateway.is_draining = True
        server.should_exit = True
        num_open = sum(service.num_open for service in gateway.services)
        if num_open:
            timeout_s = self._config.shutdown_timeout_s
            say(f"stopping: {num_open} requests may finish within {timeout_s:g} s")
            await self._drain(timeout_s)
        for service in gateway.services:
            service.fail_all("The server is shutting down.", "draining")
        killed = asyncio.create_task(self._killed.wait())
        await asyncio.wait({listening, killed}, return_when=asyncio.FIRST_COMPLETED)
        if self._killed.is_set():
            server.force_exit = True
            gateway.kill()
        await asyncio.wait({listening})
        killed.cancel()
        await gateway.stop(0.0 if self._killed.is_set() else 2.0)

    async def _drain(self, timeout_s: float) -> None:
        """Wait until nothing runs, the time is over, or a second signal comes."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while loop.time() < end_s and not self._killed.is_set():
            if not any(service.num_open for service in self._gateway.services):
                return
            await asyncio.sleep(0.02)

    def _on_signal(self) -> None:
        if self._signalled.is_set():
            self._killed.set()
        self._signalled.set()


def _resolve(import_string: str) -> Callable[[Gateway], object]:
    module_name, _, name = import_string.partition(":")
    function: Callable[[Gateway], object] = getattr(importlib.import_module(module_name), name)
    return function
