"""Opens a model in this process for the verbs that run one themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.console import ProgressLine

if TYPE_CHECKING:
    from headrace.engine.llm import LLM


def open_llm(
    model: str,
    *,
    threads: int | None,
    activations: str,
    kv_cache_bytes: int | None,
    max_model_len: int | None,
    max_num_seqs: int,
    kv_dtype: str,
) -> LLM:
    """Find the model, fetching it if need be, and load it."""
    from headrace.engine.llm import LLM

    with ProgressLine(model) as progress:
        return LLM(
            model,
            threads=threads,
            activations=activations,
            kv_cache_bytes=kv_cache_bytes,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            kv_dtype=kv_dtype,
            progress=progress,
        )
