"""How the models of one server share its memory: their workers load at one time, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.gateway.config import ModelSpec, ServeConfig


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """What one worker may take; None: whatever it finds free. Bytes."""

    limit: int | None
    kv_cache: int | None


def share_memory(config: ServeConfig) -> list[MemoryShare]:
    """A share for each model of `config`, in order.

    A single worker decides by itself. Several, each of which sees all of the free memory, would
    promise it more than once: a quarter of what their weights leave is divided evenly among their
    KV pools, and the limit of each leaves out what the others need.
    """
    if len(config.models) < 2:
        return [MemoryShare(config.memory_limit, config.kv_cache_memory)] * len(config.models)
    from headrace import _native
    from headrace.engine.load import MAX_DEFAULT_KV_BYTES, RESERVE_BYTES

    available = _native.memory_info().available_bytes
    if config.memory_limit is not None:
        available = min(available, config.memory_limit)
    sizes = [_weights_bytes(spec) for spec in config.models]
    kv_cache = config.kv_cache_memory
    if kv_cache is None:
        spare = max(0, available - sum(sizes)) // 4
        kv_cache = min(MAX_DEFAULT_KV_BYTES, spare // len(sizes))
    return _shares([size + kv_cache + RESERVE_BYTES for size in sizes], kv_cache, available)


def _shares(needs: Sequence[int], kv_cache: int, available: int) -> list[MemoryShare]:
    spare = available - sum(needs)
    return [MemoryShare(max(0, spare + need), kv_cache) for need in needs]


def _weights_bytes(spec: ModelSpec) -> int:
    """Of a model that cannot be opened: 0, since its worker will not load it either."""
    from headrace.weights.open import open_source

    try:
        source = open_source(spec.path)
    except HeadraceError:
        return 0
    try:
        return source.file_bytes
    finally:
        source.close()
