"""A tiny model and a way to run the command line as its users do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.make_model import make_gguf

Cli = Callable[..., subprocess.CompletedProcess[str]]


def environment(cache: Path, **variables: str) -> dict[str, str]:
    """The tests' own environment with an empty cache and no way to the Hub."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    isa = {"HEADRACE_ISA": os.environ["HEADRACE_ISA"]} if "HEADRACE_ISA" in os.environ else {}
    caches = {"HEADRACE_CACHE": str(cache / "own"), "HF_HUB_CACHE": str(cache / "hub")}
    return {**kept, **isa, **caches, "HF_HUB_OFFLINE": "1", "COLUMNS": "100", **variables}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf").path


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without a chat template."""
    return make_gguf(tmp_path_factory.mktemp("model") / "base.gguf", chat_template=None).path


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Runs `headrace WORDS...` in a process of its own."""

    def run(*words: object, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headrace.cli", *map(str, words)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=environment(tmp_path / "cache", **variables),
        )

    return run
