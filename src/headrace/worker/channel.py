"""The socket between gateway and worker: batches of frames over a private ipc:// address."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import zmq

from headrace.worker import frames
from headrace.worker.frames import ToGateway, ToWorker

logger = logging.getLogger("headrace.worker")

# Batches that may wait in a direction; beyond it the sender is held or the peer is given up.
HIGH_WATER = 4096


def make_runtime_dir() -> Path:
    """A new folder for sockets that only this user can enter. Its owner removes it."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base is not None and not (os.path.isdir(base) and os.access(base, os.W_OK)):
        base = None
    # A Unix socket's path may have 107 bytes at most.
    if base is not None and len(os.fsencode(base)) > 60:
        base = None
    return Path(tempfile.mkdtemp(prefix="headrace-", dir=base))  # mode 0700


def remove_runtime_dir(path: Path) -> None:
    """Remove a folder made by make_runtime_dir with what is left in it."""
    shutil.rmtree(path, ignore_errors=True)


def configure(socket: zmq.Socket[bytes]) -> None:
    """Bounds of both ends: batch size and batches in flight."""
    socket.setsockopt(zmq.MAXMSGSIZE, frames.MAX_FRAME_BYTES)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER)


class WorkerChannel:
    """The worker's end. Not thread-safe."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        configure(self._socket)
        # Last words (LoadFailed, the final deltas of a drain) may take this long to be read.
        self._socket.setsockopt(zmq.LINGER, 2000)
        self._socket.connect(endpoint)

    def receive(self, timeout_s: float) -> list[ToWorker]:
        """All frames there are; waits up to `timeout_s` for the first (0: not at all)."""
        if timeout_s > 0 and not self._socket.poll(int(timeout_s * 1000)):
            return []
        received: list[ToWorker] = []
        while True:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return received
            try:
                received.extend(frames.decode_to_worker(data))
            except msgspec.DecodeError as error:
                logger.warning("dropped a batch of %d bytes: %s", len(data), error)

    def send(self, batch: Sequence[ToGateway]) -> None:
        """Send one batch; blocks while the gateway is far behind (its death ends this process)."""
        if batch:
            self._socket.send(frames.encode(batch))

    def close(self) -> None:
        """Flush for at most two seconds, then close."""
        self._socket.close()
        self._context.term()
