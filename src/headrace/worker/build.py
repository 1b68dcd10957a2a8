"""The builder of real workers: a model file becomes an engine, its sizes a Ready frame."""

from __future__ import annotations

from pathlib import Path

from headrace import _native
from headrace.backends.layout import BLOCK_LEN
from headrace.engine.load import LoadedEngine, LoadOptions, load_engine
from headrace.kv.tables import blocks_to_hold
from headrace.worker.config import WorkerConfig
from headrace.worker.frames import Ready
from headrace.worker.loaded import WorkerEngine


def build_engine(config: WorkerConfig) -> WorkerEngine:
    """Load the model. Raises ModelFormatError and ResourceError, each one sentence for the user."""
    path = Path(config.model_path)
    loaded = load_engine(
        path,
        LoadOptions(
            kv_cache_bytes=config.kv_cache_bytes,
            memory_limit_bytes=config.memory_limit,
            max_num_seqs=config.max_num_seqs,
            max_waiting=config.max_waiting,
            max_waiting_tokens=config.max_waiting_tokens,
            max_model_len=config.max_model_len,
            threads=config.threads,
            packing=config.packing,
            activations=config.activations,
            lease_fd=config.lease_fd,
            kv_dtype=config.kv_dtype,
            scheduling=config.scheduling,
            prefix_cache=config.prefix_cache,
        ),
    )
    return WorkerEngine(loaded.engine, loaded.tokenizer, _ready(config, path, loaded))


def _ready(config: WorkerConfig, path: Path, loaded: LoadedEngine) -> Ready:
    backend, engine = loaded.backend, loaded.engine
    full_len = engine.max_model_len
    full_blocks = blocks_to_hold(backend.layout, full_len, backend.max_step_rows)
    return Ready(
        model_name=config.model_name,
        numerics_id=backend.numerics_id,
        max_model_len=full_len,
        vocab_size=loaded.tokenizer.vocab_size,
        num_blocks=backend.num_blocks,
        block_len=BLOCK_LEN,
        kv_bytes=backend.num_blocks * backend.layout.block_bytes,
        kv_tokens=backend.num_blocks * full_len // max(1, full_blocks),
        weights_bytes=_file_bytes(path),
        load_s=loaded.load_s,
        isa=_native.isa(),
        threads=config.threads or _native.default_threads(),
        queue_order=config.scheduling.order.value,
    )


def _file_bytes(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
