"""Loading an engine with what other processes left behind."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from headrace import _native
from headrace.engine.load import LoadOptions, load_engine
from tests.support.make_model import make_gguf


@pytest.mark.parametrize("num_bytes", [0, 4096])
def test_a_spoiled_lease_costs_turns_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, num_bytes: int
) -> None:
    """A worker that starts again is handed the server's lease, whatever became of it since."""
    path = make_gguf(tmp_path / "m.gguf").path
    spoiled = tmp_path / "lease"
    spoiled.write_bytes(b"x" * num_bytes)
    fd = os.open(spoiled, os.O_RDWR)
    options = LoadOptions(kv_cache_bytes=1 << 20, threads=1, lease_fd=fd)
    with closing(load_engine(path, options)):
        assert "other workers are not given their turn" in caplog.text
    caplog.clear()
    options = LoadOptions(kv_cache_bytes=1 << 20, threads=1, lease_fd=_native.ComputeLease.make())
    with closing(load_engine(path, options)):
        assert not caplog.text
