"""From a model's name or path to a running engine: the one way in for the worker and for `LLM`."""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headrace import _native
from headrace.backends.cpu import CpuBackend
from headrace.backends.layout import DEFAULT_KV_DTYPE
from headrace.engine.base import THROUGHPUT, EngineConfig, Scheduling
from headrace.engine.engine import Engine
from headrace.errors import ResourceError
from headrace.models.registry import build_program
from headrace.text.base import Tokenizer
from headrace.text.tokenizer import load_tokenizer
from headrace.weights.base import WeightSource
from headrace.weights.open import open_source

logger = logging.getLogger("headrace.engine")

MAX_DEFAULT_KV_BYTES = 2 << 30
# Kept free beside weights and KV for the interpreter, scratch memory and the tokenizer.
RESERVE_BYTES = 150 << 20


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Sizes of an engine; None means the default of this machine."""

    kv_cache_bytes: int | None = None
    memory_limit_bytes: int | None = None
    max_num_seqs: int = 64
    max_step_tokens: int = 512
    max_waiting: int = 512
    max_waiting_tokens: int = 1 << 20
    max_model_len: int | None = None
    threads: int | None = None
    packing: str | None = None
    activations: str = "quantized"
    # Of a compute lease shared with other processes; it is mapped and closed.
    lease_fd: int | None = None
    kv_dtype: str = DEFAULT_KV_DTYPE
    scheduling: Scheduling = THROUGHPUT
    prefix_cache: bool = True


@dataclass(slots=True)
class LoadedEngine:
    """An engine and what belongs to it. `close` frees the weights, the arena and the threads."""

    engine: Engine
    backend: CpuBackend
    tokenizer: Tokenizer
    model_name: str
    chat_template: str | None
    load_s: float

    def close(self) -> None:
        self.backend.close()


def load_engine(path: Path, options: LoadOptions | None = None) -> LoadedEngine:
    """Open, check and pack a model, and build its engine. The tokenizer loads beside the packing.

    Raises ModelFormatError for a bad file and ResourceError when memory does not suffice.
    """
    options = options or LoadOptions()
    started = time.monotonic()
    source = open_source(path)
    try:
        spec, vocab_size = source.tokenizer, source.config.vocab_size
        with ThreadPoolExecutor(max_workers=1) as beside:
            pending = beside.submit(load_tokenizer, spec, vocab_size)
            backend = _load_backend(source, options)
            tokenizer: Tokenizer = pending.result()
        config = EngineConfig(
            max_num_seqs=options.max_num_seqs,
            max_step_tokens=max(options.max_step_tokens, options.max_num_seqs),
            max_waiting=options.max_waiting,
            max_waiting_tokens=options.max_waiting_tokens,
            max_model_len=options.max_model_len,
            scheduling=options.scheduling,
            prefix_cache=options.prefix_cache,
        )
        engine = Engine(backend, tokenizer, source.config.max_model_len, config)
        return LoadedEngine(
            engine,
            backend,
            tokenizer,
            source.name,
            source.chat_template,
            time.monotonic() - started,
        )
    finally:
        source.close()


def _load_backend(source: WeightSource, options: LoadOptions) -> CpuBackend:
    """Check memory, then pack the weights."""
    available = _native.memory_info().available_bytes
    if options.memory_limit_bytes is not None:
        available = min(available, options.memory_limit_bytes)
    kv_bytes = options.kv_cache_bytes
    if kv_bytes is None:
        kv_bytes = min(MAX_DEFAULT_KV_BYTES, max(0, available - source.file_bytes) // 4)
    needed = source.file_bytes + kv_bytes + RESERVE_BYTES
    if needed > available:
        raise ResourceError(
            f"Model {source.name} needs about {_mib(needed)} MiB ({_mib(source.file_bytes)} MiB of "
            f"weights, {_mib(kv_bytes)} MiB of KV cache, {_mib(RESERVE_BYTES)} MiB beside), but "
            f"{_mib(available)} MiB are available; use a smaller model or --kv-cache-memory."
        )
    program = build_program(source.config, freq_factors(source))
    return CpuBackend.load(
        source,
        program,
        kv_bytes=kv_bytes,
        threads=options.threads,
        max_step_rows=max(options.max_step_tokens, options.max_num_seqs),
        packing=options.packing,
        activations=options.activations,
        lease=None if options.lease_fd is None else _map_lease(options.lease_fd),
        kv_dtype=options.kv_dtype,
    )


def _map_lease(fd: int) -> _native.ComputeLease | None:
    """None for a file that others have spoiled: serving without turns beats not serving."""
    try:
        return _native.ComputeLease(fd)
    except ValueError as error:
        logger.warning("other workers are not given their turn: %s", error)
        return None
    finally:
        os.close(fd)


def freq_factors(source: WeightSource) -> tuple[float, ...] | None:
    """The rope divisors a GGUF file carries as a float32 tensor, or None."""
    name = source.config.rope.freq_factors_tensor
    if name is None:
        return None
    return tuple(source.data(name).cast("f"))


def _mib(num_bytes: int) -> int:
    return (num_bytes + (1 << 20) - 1) >> 20
