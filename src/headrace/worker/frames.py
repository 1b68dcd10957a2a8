"""Frames between gateway and worker: typed, versioned MessagePack, one struct per message.

Contract
- A frame is an array-like tagged msgspec struct. Every ZeroMQ message is one batch, a list of
  frames of at most MAX_FRAME_BYTES: the news of one engine step travel together, so that a step
  costs one send. A batch that does not decode is dropped and logged, never an end of the process.
- The gateway binds, the worker connects. The first frame of a worker is `Hello` (protocol version,
  then `Ready` once it is servable or `LoadFailed`).
- For each `Submit` exactly one of `Finished` (all choices ended) or `Failed` follows, unless a
  `Cancel` overtakes it; after a `Cancel` at most two steps' deltas may still arrive and are to be
  ignored.
- `Progress` is sent at least once per step and at least once a second while idle; it feeds the
  watchdog and metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from headrace.engine.base import DEFAULT_OPTIONS, AllocationStats, RequestOptions
from headrace.engine.sampling import SamplingParams

PROTOCOL_VERSION = 3
MAX_FRAME_BYTES = 64 << 20


class _Frame(msgspec.Struct, array_like=True, tag=True, frozen=True, kw_only=True):
    pass


class Submit(_Frame, frozen=True):
    """Gateway -> worker: run a request. `prompt_ids` were validated against the vocabulary."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    options: RequestOptions = DEFAULT_OPTIONS
    # Seconds (monotonic, of the gateway) the request may still take, or None.
    deadline_s: float | None = None


class Cancel(_Frame, frozen=True):
    """Gateway -> worker: free everything of this request within two steps."""

    request_id: str


class Abandon(_Frame, frozen=True):
    """Gateway -> worker: nobody will go on with `prefix` + tail, for any of `tails` (token ids)."""

    prefix: list[int]
    tails: list[list[int]]
    salt: str = ""


class Drain(_Frame, frozen=True):
    """Gateway -> worker: finish what runs, then exit with status 0."""


class Hello(_Frame, frozen=True):
    """Worker -> gateway: the process runs; loading begins."""

    version: int
    pid: int


class Ready(_Frame, frozen=True):
    """Worker -> gateway: servable. Sizes in tokens and bytes."""

    model_name: str
    numerics_id: str
    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_len: int
    kv_bytes: int
    # Positions that the pool holds for sequences of full length.
    kv_tokens: int
    weights_bytes: int
    load_s: float
    isa: str
    threads: int
    queue_order: str = "fcfs"


class LoadFailed(_Frame, frozen=True):
    """Worker -> gateway: one sentence for the user; the worker exits with status 1."""

    message: str


class TokenLogprob(msgspec.Struct, array_like=True, frozen=True):
    """One token: id, its text for display, its exact bytes, its logprob, the alternatives."""

    token_id: int
    text: str
    raw: bytes
    logprob: float
    top: list[tuple[int, str, bytes, float]]


class Delta(_Frame, frozen=True):
    """Worker -> gateway: news of one choice. `finish_reason`: None, "stop" or "length"; when set
    this is the choice's last delta. `stop_reason`: the stop string or id that ended it, if any.
    `text` is whole characters, never a byte of a stop string; `token_ids` may arrive before their
    text."""

    request_id: str
    choice: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    # Output tokens of this choice so far, this delta's included.
    num_output: int = 0
    # Of the request's prompt, as `Finished` will have it unless it is preempted.
    num_cached: int = 0


class PromptLogprobs(_Frame, frozen=True):
    """Worker -> gateway: logprobs of prompt positions `start`.., the first of them the request's
    `prompt_logprobs_from`; position 0 has none (None)."""

    request_id: str
    start: int
    entries: list[TokenLogprob | None]


class Timings(msgspec.Struct, array_like=True, frozen=True):
    """Seconds: waiting before the first step, prefill until the first token, decode after it."""

    queue_s: float
    prefill_s: float
    decode_s: float


class Finished(_Frame, frozen=True):
    """Worker -> gateway: all choices of the request ended. `seeds`: the seed of each choice."""

    request_id: str
    num_prompt: int
    num_output: int
    num_cached: int
    num_preemptions: int
    seeds: list[int]
    timings: Timings


class Failed(_Frame, frozen=True):
    """Worker -> gateway: the request failed; nothing more follows for it."""

    request_id: str
    message: str
    status: int
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None


class Progress(_Frame, frozen=True):
    """Worker -> gateway: a heartbeat with the state of the engine after a step."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_blocks: int
    num_steps: int
    num_preemptions: int
    prompt_tokens: int
    output_tokens: int
    last_step_s: float
    last_step_rows: int
    lease_wait_s: float = 0.0
    last_chunks: list[int] = []
    num_passes: int = 0
    step_time_error: float = 0.0
    step_time_margin: float = 1.0
    itl_target_s: float = 0.0
    num_cached_blocks: int = 0
    num_idle_blocks: int = 0
    num_inserted_blocks: int = 0
    num_evicted_blocks: dict[str, int] = {}
    allocation: AllocationStats = AllocationStats()


ToWorker: TypeAlias = Submit | Cancel | Abandon | Drain
ToGateway: TypeAlias = (
    Hello | Ready | LoadFailed | Delta | PromptLogprobs | Finished | Failed | Progress
)

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(list[ToWorker])
_to_gateway = msgspec.msgpack.Decoder(list[ToGateway])


def encode(frames: Sequence[ToWorker | ToGateway]) -> bytes:
    """Bytes of one batch of frames."""
    return _encoder.encode(frames)


def decode_to_worker(data: bytes | memoryview) -> list[ToWorker]:
    """Raises msgspec.DecodeError (or ValidationError) on anything that is not a batch of frames."""
    return _to_worker.decode(data)


def decode_to_gateway(data: bytes | memoryview) -> list[ToGateway]:
    """Raises msgspec.DecodeError (or ValidationError) on anything that is not a batch of frames."""
    return _to_gateway.decode(data)
