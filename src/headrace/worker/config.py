"""What a worker process is told at birth: one MessagePack value through an inherited descriptor."""

from __future__ import annotations

import os

import msgspec

from headrace.engine.base import SERVING, Scheduling


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker needs. Sizes in bytes. No secrets.

    `endpoint` is the ipc:// address the gateway has bound; `parent_pid` the process whose death
    ends this one. `lease_fd`: the inherited descriptor of a compute lease, None for no lease.
    `builder` is the import string of a function (WorkerConfig) -> WorkerEngine.
    """

    model_name: str
    model_path: str
    endpoint: str
    parent_pid: int
    max_model_len: int | None = None
    memory_limit: int | None = None
    kv_cache_bytes: int | None = None
    max_num_seqs: int = 64
    max_waiting: int = 512
    max_waiting_tokens: int = 1 << 20
    threads: int | None = None
    lease_fd: int | None = None
    packing: str | None = None
    kv_dtype: str = "fp16"
    activations: str = "quantized"
    scheduling: Scheduling = SERVING
    prefix_cache: bool = True
    log_level: str = "info"
    log_format: str = "text"
    builder: str = "headrace.worker.build:build_engine"


def send_config(config: WorkerConfig) -> int:
    """A descriptor from which a child can read the config; the caller closes it after the spawn."""
    fd = os.memfd_create("headrace-worker", 0)
    os.write(fd, msgspec.msgpack.encode(config))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def receive_config(fd: int) -> WorkerConfig:
    """The config behind `fd`, which is closed."""
    with os.fdopen(fd, "rb") as stream:
        return msgspec.msgpack.decode(stream.read(), type=WorkerConfig)
