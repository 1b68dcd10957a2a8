"""Isolated caches and a Hub on loopback for the tests of where models come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.fake_hub import FakeHub, serve_hub


@dataclass(frozen=True)
class Caches:
    """Both cache roots of a test."""

    ours: Path
    hub: Path


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Caches:
    """Empty caches, no token, no proxy, and a Hub that refuses connections."""
    caches = Caches(tmp_path / "ours", tmp_path / "hub")
    monkeypatch.setenv("HEADRACE_CACHE", str(caches.ours))
    monkeypatch.setenv("HF_HUB_CACHE", str(caches.hub))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # The discard port: nobody listens.
    return caches


@pytest.fixture
def hub(caches: Caches, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serve_hub(FakeHub()) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served
