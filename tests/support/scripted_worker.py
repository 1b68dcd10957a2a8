"""The worker's end of the socket without a worker: a test says what is sent, and sees what came."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import zmq

from headrace.worker import frames
from headrace.worker.channel import WorkerChannel
from headrace.worker.frames import (
    PROTOCOL_VERSION,
    Delta,
    Finished,
    Hello,
    Progress,
    Ready,
    Timings,
    ToGateway,
    ToWorker,
)

READY = Ready(
    model_name="scripted",
    numerics_id="scripted-1",
    max_model_len=1024,
    vocab_size=260,
    num_blocks=64,
    block_len=16,
    kv_bytes=1 << 20,
    kv_tokens=1024,
    weights_bytes=0,
    load_s=0.1,
    isa="none",
    threads=1,
)
HELLO = Hello(version=PROTOCOL_VERSION, pid=1)


class ScriptedWorker:
    """Connects to an endpoint that a WorkerLink has bound."""

    def __init__(self, endpoint: str) -> None:
        self.channel = WorkerChannel(endpoint)

    def send(self, *batch: ToGateway) -> None:
        self.channel.send(batch)

    def send_bytes(self, data: bytes) -> None:
        """Whatever it is, as one message."""
        self.channel._socket.send(data, zmq.NOBLOCK)

    def receive(self, timeout_s: float = 5.0) -> list[ToWorker]:
        """The frames that came; the empty list after the timeout."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            if received := self.channel.receive(0.01):
                return received
        return []

    def __enter__(self) -> ScriptedWorker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.channel.close()


def delta(
    request_id: str,
    text: str,
    *,
    choice: int = 0,
    num_output: int = 1,
    finish_reason: str | None = None,
    logprobs: list[frames.TokenLogprob] | None = None,
    num_cached: int = 0,
) -> Delta:
    """A delta of one token a character."""
    return Delta(
        request_id=request_id,
        choice=choice,
        text=text,
        token_ids=list(text.encode()),
        logprobs=logprobs,
        finish_reason=finish_reason,
        num_output=num_output,
        num_cached=num_cached,
    )


def finished(request_id: str, num_prompt: int = 1, num_output: int = 1) -> Finished:
    """The end of a request."""
    return Finished(
        request_id=request_id,
        num_prompt=num_prompt,
        num_output=num_output,
        num_cached=0,
        num_preemptions=0,
        seeds=[0],
        timings=Timings(0.0, 0.1, 0.2),
    )


def progress(num_steps: int = 1, lease_wait_s: float = 0.0, **fields: Any) -> Progress:
    """A heartbeat; everything that is not given is zero."""
    values: dict[str, Any] = {
        "num_running": 0,
        "num_waiting": 0,
        "num_free_blocks": 64,
        "num_blocks": 64,
        "num_preemptions": 0,
        "prompt_tokens": 0,
        "output_tokens": 0,
        "last_step_rows": 0,
        **fields,
    }
    return Progress(num_steps=num_steps, last_step_s=0.01, lease_wait_s=lease_wait_s, **values)
