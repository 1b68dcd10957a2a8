"""`headrace serve`: the OpenAI-compatible server."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli import options
from headrace.cli import serve_options as so
from headrace.cli.console import ProgressLine

if TYPE_CHECKING:
    from headrace.gateway.config import ModelSpec, ServeConfig

_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


def serve(
    models: so.Models = None,
    host: so.Host = "127.0.0.1",
    port: so.Port = 8000,
    api_key: so.ApiKey = None,
    served_model_name: so.ServedModelName = None,
    max_model_len: options.MaxModelLen = None,
    memory_limit: so.MemoryLimit = None,
    kv_cache_memory: options.KvCacheMemory = None,
    max_num_seqs: options.MaxNumSeqs = 64,
    threads: options.Threads = None,
    packing: so.PackingOption = None,
    kv_dtype: options.KvDtypeOption = options.KvDtype.FP16,
    activations: options.ActivationsOption = options.Activations.QUANTIZED,
    queue_order: so.QueueOrderOption = so.QueueOrder.SHORTEST,
    max_queue_wait: so.MaxQueueWait = 600.0,
    max_partial_prefills: so.MaxPartialPrefills = 4,
    itl_target_ms: so.ItlTarget = None,
    kv_allocation: so.KvAllocationOption = so.KvAllocation.LOOKAHEAD,
    no_prefix_cache: so.NoPrefixCache = False,
    max_cache_priority: so.MaxCachePriority = 50,
    cors_origin: so.CorsOrigin = None,
    log_level: so.LogLevelOption = so.LogLevel.INFO,
    log_format: so.LogFormatOption = so.LogFormat.TEXT,
    shutdown_timeout: so.ShutdownTimeout = 30.0,
    strict_fields: so.StrictFields = False,
    no_ui: so.NoUi = False,
) -> None:
    """Serve models over the OpenAI API.

    The first Ctrl-C lets running requests end, the second stops at once.
    """
    from headrace.gateway.config import ServeConfig

    steps = (max_partial_prefills, itl_target_ms)
    config = ServeConfig(
        models=_named(models),
        host=host,
        port=port,
        api_key=api_key,
        served_model_name=tuple(served_model_name or ()),
        max_model_len=max_model_len,
        memory_limit=memory_limit,
        kv_cache_memory=kv_cache_memory,
        max_num_seqs=max_num_seqs,
        threads=threads,
        packing=None if packing is None else packing.value,
        kv_dtype=kv_dtype.value,
        activations=activations.value,
        scheduling=so.scheduling(queue_order, max_queue_wait, *steps, kv_allocation),
        prefix_cache=not no_prefix_cache,
        max_cache_priority=max_cache_priority,
        cors_origins=tuple(cors_origin or ()),
        log_level=log_level.value,
        log_format=log_format.value,
        shutdown_timeout_s=shutdown_timeout,
        strict_fields=strict_fields,
        ui=not no_ui,
    )
    _run(config, is_default=not models)


def _named(models: list[str] | None) -> tuple[ModelSpec, ...]:
    """Specs without paths: those are found once the configuration is known to work."""
    from headrace.gateway.config import ModelSpec
    from headrace.weights.catalog import DEFAULT_MODEL

    return tuple(ModelSpec(name, Path()) for name in models or [DEFAULT_MODEL])


def _run(config: ServeConfig, *, is_default: bool) -> None:
    """Serve until told to stop. Nothing is fetched for a configuration that cannot work."""
    from headrace.gateway.main import serve as run_gateway

    config.check()
    found = tuple(find_model(spec.name, is_default=is_default) for spec in config.models)
    sys.exit(run_gateway(dataclasses.replace(config, models=found)))


def find_model(name: str, *, is_default: bool = False) -> ModelSpec:
    """Resolve a name, fetching the model if need be. A path's id is its stem, never the path."""
    from headrace.gateway.config import ModelSpec
    from headrace.weights.resolve import find_target, resolve

    with ProgressLine(name) as progress:
        path = resolve(name, progress=progress)
    if Path(name).expanduser().exists():
        local = Path(name).expanduser().resolve()
        stem = local.stem if local.is_file() else local.name
        return ModelSpec(_SHARD.sub("", stem), path)
    return ModelSpec(find_target(name).name, path, is_default)
