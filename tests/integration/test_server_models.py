"""The real server on the larger test models says what the engine says offline, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import LLM
from tests.support.real_server import (
    check_server_equals_offline,
    check_stream_whole_batch_alone,
    serve_model,
)

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12}
SAMPLED: dict[str, Any] = {"temperature": 0.9, "seed": 7, "top_p": 0.95, "max_tokens": 12}


def _check(path: Path, log_path: Path) -> None:
    with serve_model(path, log_path) as server:
        with LLM(path, kv_cache_bytes=64 << 20) as llm:
            for fields in (GREEDY, SAMPLED):
                check_server_equals_offline(server, llm, fields)
        check_stream_whole_batch_alone(server)


@pytest.mark.slow
def test_gemma3(gemma3_path: Path, tmp_path: Path) -> None:
    _check(gemma3_path, tmp_path / "log")


@pytest.mark.slow
def test_qwen25(qwen25_path: Path, tmp_path: Path) -> None:
    _check(qwen25_path, tmp_path / "log")
