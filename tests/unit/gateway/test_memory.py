"""Memory shares: together the workers never get more than there is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headrace import _native
from headrace.engine.load import MAX_DEFAULT_KV_BYTES, RESERVE_BYTES
from headrace.gateway.config import ModelSpec, ServeConfig
from headrace.gateway.memory import share_memory
from tests.support.make_model import make_gguf

GIB = 1 << 30


@pytest.fixture
def config(tmp_path: Path) -> ServeConfig:
    specs = []
    for name in "abc":
        path = tmp_path / f"{name}.gguf"
        make_gguf(path)
        specs.append(ModelSpec(name, path))
    return ServeConfig(models=tuple(specs), memory_limit=GIB)


def weights_bytes(config: ServeConfig) -> int:
    return sum(spec.path.stat().st_size for spec in config.models)


def test_one_model_decides_by_itself(config: ServeConfig) -> None:
    alone = dataclasses.replace(config, models=config.models[:1], memory_limit=None)
    (share,) = share_memory(alone)
    assert (share.limit, share.kv_cache) == (None, None)


def test_several_share_a_quarter_of_what_is_free(config: ServeConfig) -> None:
    shares = share_memory(config)
    (kv_cache,) = {share.kv_cache for share in shares}
    assert kv_cache is not None
    assert 3 * kv_cache <= (GIB - weights_bytes(config)) // 4 < 3 * (kv_cache + 1)
    available = min(GIB, _native.memory_info().available_bytes)
    for spec, share in zip(config.models, shares, strict=True):
        others = weights_bytes(config) - spec.path.stat().st_size + 2 * (kv_cache + RESERVE_BYTES)
        assert share.limit is not None
        assert share.limit <= available - others


def test_too_much_for_all_leaves_nothing(config: ServeConfig) -> None:
    asked = dataclasses.replace(config, kv_cache_memory=GIB)
    assert [(share.limit, share.kv_cache) for share in share_memory(asked)] == [(0, GIB)] * 3


def test_a_model_that_cannot_be_opened_counts_nothing(config: ServeConfig, tmp_path: Path) -> None:
    gone = ModelSpec("gone", tmp_path / "gone.gguf")
    shares = share_memory(dataclasses.replace(config, models=(gone, gone), memory_limit=None))
    assert all(0 < (share.kv_cache or 0) <= MAX_DEFAULT_KV_BYTES for share in shares)
