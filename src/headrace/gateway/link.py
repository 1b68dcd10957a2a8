"""The gateway's end of a worker's socket: batches of frames delivered on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec
import zmq

from headrace.worker import frames
from headrace.worker.channel import configure
from headrace.worker.frames import ToGateway, ToWorker

logger = logging.getLogger("headrace.gateway")

# Batches taken per turn of the event loop, so that one worker cannot starve the rest.
_BATCHES_PER_TURN = 64


class WorkerLink:
    """Binds `endpoint` for one life of a worker. Everything runs on the event loop that made it."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        on_frames: Callable[[list[ToGateway]], None],
    ) -> None:
        self._on_frames = on_frames
        self._loop = asyncio.get_running_loop()
        self._socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        configure(self._socket)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self._fd = self._socket.fileno()
        self._is_open = True
        self._loop.add_reader(self._fd, self._receive)

    def send(self, batch: Sequence[ToWorker]) -> bool:
        """Queue one batch. False when the worker is so far behind that it must be given up."""
        try:
            self._socket.send(frames.encode(batch), zmq.NOBLOCK)
        except zmq.Again:
            return False
        # Sending may swallow the one wake-up that the descriptor gives for a received batch.
        self._loop.call_soon(self._receive)
        return True

    def _receive(self) -> None:
        """The descriptor is edge-triggered: read until there is nothing more."""
        for _ in range(_BATCHES_PER_TURN):
            if not self._is_open:
                return
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                batch = frames.decode_to_gateway(data)
            except msgspec.DecodeError as error:
                logger.warning("dropped a batch of %d bytes from a worker: %s", len(data), error)
                continue
            self._on_frames(batch)
        self._loop.call_soon(self._receive)

    def close(self) -> None:
        """Stop at once; what was queued is lost."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._fd)
            self._socket.close()
