"""GGUF metadata to ModelConfig: every family's rules, real files, and every check."""

from __future__ import annotations

import dataclasses
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ModelFormatError
from headrace.models.config import ModelConfig, RopeConfig
from headrace.weights.base import DType
from headrace.weights.check import expected_tensors
from headrace.weights.open import open_source
from tests.support import gguf_writer as gw
from tests.support.make_model import make_gguf, tensor_shapes

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")


def _config(path: Path) -> ModelConfig:
    source = open_source(path)
    try:
        return source.config
    finally:
        source.close()


def _made(tmp_path: Path, **kwargs: Any) -> ModelConfig:
    return _config(make_gguf(tmp_path / "m.gguf", **kwargs).path)


def _f32(value: float) -> float:
    """A number as a GGUF file holds it."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _base(family: str, **changes: Any) -> ModelConfig:
    """What the generator's default shape must read as."""
    config = ModelConfig(
        family=family,
        num_layers=2,
        hidden_dim=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        ffn_dim=128,
        vocab_size=320,
        max_model_len=512,
        norm_eps=_f32(1e-5),
        rope=RopeConfig(theta=10000.0, dim=16, interleaved=family == "llama"),
        rope_local=None,
        attn_scale=0.25,
        activation="silu",
        embed_scale=1.0,
        layer_is_window=(False, False),
        window=0,
        qkv_bias=False,
        qk_norm=False,
        post_norms=False,
        tied_head=True,
    )
    return dataclasses.replace(config, **changes)


def test_llama(tmp_path: Path) -> None:
    assert _made(tmp_path) == _base("llama")


def test_qwen2(tmp_path: Path) -> None:
    made = _made(tmp_path, family="qwen2", tied_head=False)
    assert made == _base("qwen2", qkv_bias=True, tied_head=False)


def test_qwen3(tmp_path: Path) -> None:
    assert _made(tmp_path, family="qwen3") == _base("qwen3", qk_norm=True)


def test_gemma3(tmp_path: Path) -> None:
    assert _made(tmp_path, family="gemma3") == _base(
        "gemma3",
        num_layers=6,
        vocab_size=416,
        norm_eps=_f32(1e-6),
        rope=RopeConfig(theta=1_000_000.0, dim=16, interleaved=False),
        rope_local=RopeConfig(theta=10_000.0, dim=16, interleaved=False),
        activation="gelu_tanh",
        embed_scale=8.0,
        layer_is_window=(True, True, True, True, True, False),
        window=8,
        qk_norm=True,
        post_norms=True,
    )


def test_real_smollm2(smollm2_path: Path) -> None:
    config = _config(smollm2_path)
    assert (config.num_layers, config.hidden_dim, config.ffn_dim) == (30, 576, 1536)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.max_model_len, config.tied_head) == (49152, 8192, True)
    assert config.rope == RopeConfig(theta=100_000.0, dim=64, interleaved=True)
    source = open_source(smollm2_path)
    spec = source.tokenizer
    assert (len(spec.tokens), len(spec.merges)) == (49152, 48900)
    assert (spec.pre, spec.bos_id, spec.eos_ids) == ("smollm", 1, (0, 2))
    source.close()


def test_real_gemma3(gemma3_path: Path) -> None:
    config = _config(gemma3_path)
    pattern = "".join("w" if window else "G" for window in config.layer_is_window)
    assert pattern == "wwwwwGwwwwwGwwwwwG"
    assert (config.window, config.head_dim) == (512, 256)
    assert (config.rope.theta, config.attn_scale) == (1_000_000.0, 1 / 16)
    assert config.rope_local == RopeConfig(theta=10_000.0, dim=256, interleaved=False)
    assert config.embed_scale == math.sqrt(640)


def test_real_qwen25(qwen25_path: Path) -> None:
    config = _config(qwen25_path)
    assert (config.family, config.qkv_bias, config.tied_head) == ("qwen2", True, False)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (24, 14, 2)
    assert config.vocab_size == 151936


def test_missing_key_length_is_hidden_over_heads(tmp_path: Path) -> None:
    config = _made(
        tmp_path,
        metadata={"llama.attention.key_length": None, "llama.attention.value_length": None},
    )
    assert config.head_dim == 16


def test_per_layer_arrays_of_one_value(tmp_path: Path) -> None:
    same = {"llama.attention.head_count_kv": gw.array(gw.INT32, [2, 2])}
    assert _made(tmp_path, metadata=same).num_kv_heads == 2
    with pytest.raises(ModelFormatError, match="differs by layer"):
        _made(tmp_path, metadata={"llama.attention.head_count_kv": gw.array(gw.INT32, [2, 1])})


def test_linear_rope_scaling(tmp_path: Path) -> None:
    rope = _made(tmp_path, rope_scaling="linear").rope
    assert (rope.scaling, rope.factor) == ("linear", 8.0)
    old = _made(tmp_path, metadata={"llama.rope.scale_linear": gw.f32(4.0)}).rope
    assert (old.scaling, old.factor) == ("linear", 4.0)
    off = {"llama.rope.scaling.type": gw.text("none"), "llama.rope.scaling.factor": gw.f32(4.0)}
    assert _made(tmp_path, metadata=off).rope.scaling == "none"


def test_gemma_scales_global_layers_only(tmp_path: Path) -> None:
    config = _made(tmp_path, family="gemma3", rope_scaling="linear")
    assert (config.rope.scaling, config.rope.factor) == ("linear", 8.0)
    assert config.rope_local is not None
    assert config.rope_local.scaling == "none"


def test_llama3_scaling_is_a_tensor(tmp_path: Path) -> None:
    config = _made(tmp_path, rope_scaling="llama3")
    assert config.rope.freq_factors_tensor == "rope_freqs.weight"
    assert config.rope.scaling == "none"
    assert expected_tensors(config)["rope_freqs.weight"] == (8,)


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        (gw.u32(3), "wwGwwG"),
        (gw.array(gw.BOOL, [True, False] * 3), "wGwGwG"),
        (gw.u32(1), "GGGGGG"),
    ],
)
def test_gemma_pattern_keys(tmp_path: Path, value: gw.Value, pattern: str) -> None:
    meta = {"gemma3.attention.sliding_window_pattern": value}
    flags = _made(tmp_path, family="gemma3", metadata=meta).layer_is_window
    assert "".join("w" if flag else "G" for flag in flags) == pattern


def test_gemma_27b_scales_by_hidden_over_heads(tmp_path: Path) -> None:
    config = _made(tmp_path, family="gemma3", num_layers=62, hidden_dim=64, num_heads=2)
    assert config.attn_scale == 1 / math.sqrt(32)
    own = {"gemma3.attention.scale": gw.f32(0.5)}
    assert _made(tmp_path, family="gemma3", num_layers=62, metadata=own).attn_scale == 0.5


def test_mistral_window_holds_for_every_layer(tmp_path: Path) -> None:
    config = _made(tmp_path, metadata={"llama.attention.sliding_window": gw.u32(64)})
    assert (config.window, config.layer_is_window) == (64, (True, True))
    assert _made(tmp_path, metadata={"llama.attention.sliding_window": gw.u32(512)}).window == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_expected_tensors_are_all_of_them(tmp_path: Path, family: str) -> None:
    """Two lists written apart: the generator's and the check's."""
    made = make_gguf(tmp_path / "m.gguf", family=family, tied_head=False)
    assert expected_tensors(_config(made.path)) == tensor_shapes(made.shape)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": None}, "'general.architecture' is missing"),
        ({"general.architecture": gw.text("mamba")}, "'mamba' is not supported"),
        ({"general.architecture": gw.u32(1)}, "must be a string"),
        ({"llama.block_count": None}, "'llama.block_count' is missing"),
        ({"llama.block_count": gw.u32(0)}, "layers is 0"),
        ({"llama.block_count": gw.u32(1001)}, "layers is 1001"),
        ({"llama.block_count": gw.u32(3)}, "tensor 'blk.2.attn_norm.weight' is missing"),
        ({"llama.block_count": gw.u32(1)}, "'blk.1.attn_norm.weight' does not belong"),
        ({"llama.block_count": gw.f32(2.0)}, "must be an integer"),
        ({"llama.embedding_length": gw.u32(0)}, "hidden size is 0"),
        ({"llama.embedding_length": gw.u32(96)}, "instead of"),
        ({"llama.embedding_length": gw.Value(gw.UINT64, 1 << 63)}, "hidden size is"),
        ({"llama.feed_forward_length": gw.u32(64)}, "'blk.0.ffn_gate.weight' has the shape"),
        ({"llama.attention.head_count": gw.u32(0)}, "attention heads is 0"),
        ({"llama.attention.head_count_kv": gw.u32(3)}, "cannot share"),
        ({"llama.attention.head_count_kv": gw.u32(0)}, "key-value heads is 0"),
        ({"llama.attention.head_count_kv": gw.u32(4)}, "'blk.0.attn_k.weight' has the shape"),
        ({"llama.attention.key_length": gw.u32(0)}, "do not fit"),
        ({"llama.attention.value_length": gw.u32(8)}, "do not fit"),
        ({"llama.context_length": gw.u32(0)}, "context length is 0"),
        ({"llama.context_length": None}, "'llama.context_length' is missing"),
        ({"llama.attention.layer_norm_rms_epsilon": gw.f32(0.0)}, "epsilon is 0"),
        ({"llama.attention.layer_norm_rms_epsilon": gw.f32(math.nan)}, "epsilon is nan"),
        ({"llama.rope.freq_base": gw.f32(math.inf)}, "rope base is inf"),
        ({"llama.rope.freq_base": gw.f32(-1.0)}, "rope base is -1"),
        ({"llama.rope.dimension_count": gw.u32(18)}, "rotary width is 18"),
        ({"llama.rope.dimension_count": gw.u32(7)}, "rotary width is 7"),
        ({"llama.rope.scaling.type": gw.text("yarn")}, "rope scaling 'yarn'"),
        ({"llama.expert_count": gw.u32(8)}, "mixture-of-experts"),
        ({"llama.attention.scale": gw.f32(-1.0)}, "attention scale is -1"),
        ({"llama.final_logit_softcapping": gw.f32(-1.0)}, "logit soft cap is -1"),
        (
            {"tokenizer.ggml.tokens": gw.array(gw.STRING, ["x"] * 321)},
            "321 tokens for 320 embedding rows",
        ),
    ],
)
def test_impossible_metadata(
    tmp_path: Path, changes: dict[str, gw.Value | None], message: str
) -> None:
    with pytest.raises(ModelFormatError, match=message):
        _made(tmp_path, metadata=changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gemma3.attention.sliding_window": None}, "is missing"),
        ({"gemma3.attention.sliding_window": gw.u32(0)}, "sliding window is 0"),
        ({"gemma3.attention.sliding_window_pattern": gw.u32(0)}, "is 0"),
        ({"gemma3.attention.sliding_window_pattern": gw.array(gw.BOOL, [True])}, "1 entries"),
    ],
)
def test_impossible_windows(
    tmp_path: Path, changes: dict[str, gw.Value | None], message: str
) -> None:
    with pytest.raises(ModelFormatError, match=message):
        _made(tmp_path, family="gemma3", metadata=changes)


def _with_tensors(tmp_path: Path, change: dict[str, gw.Tensor | None], **kwargs: Any) -> Path:
    """A model whose tensors are replaced, dropped (None) or added."""
    made = make_gguf(tmp_path / "m.gguf", **kwargs)
    tensors = {
        name: gw.Tensor(name, tensor.shape[::-1], tensor.dtype, tensor.data)
        for name, tensor in made.tensors.items()
    }
    for name, tensor in change.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    made.path.write_bytes(gw.gguf_bytes(made.metadata, list(tensors.values())))
    return made.path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_embd.weight": None}, "'token_embd.weight' is missing"),
        ({"blk.1.ffn_up.weight": None}, "'blk.1.ffn_up.weight' is missing"),
        ({"output_norm.weight": gw.Tensor("output_norm.weight", [32], 0, bytes(128))}, r"\[32\]"),
        (
            {"blk.0.attn_norm.weight": gw.Tensor("blk.0.attn_norm.weight", [64], 8, bytes(68))},
            "norms and biases must be",
        ),
        (
            {"blk.0.attn_output.bias": gw.Tensor("blk.0.attn_output.bias", [64], 0, bytes(256))},
            "'blk.0.attn_output.bias' does not belong",
        ),
        (
            {
                "blk.0.ffn_up_exps.weight": gw.Tensor(
                    "blk.0.ffn_up_exps.weight", [64, 8, 2], 0, bytes(4096)
                )
            },
            "mixture-of-experts",
        ),
        (
            {"blk.0.attn_q.bias": gw.Tensor("blk.0.attn_q.bias", [64], 0, bytes(256))},
            "'blk.0.attn_k.bias' is missing",
        ),
    ],
)
def test_impossible_tensors(
    tmp_path: Path, change: dict[str, gw.Tensor | None], message: str
) -> None:
    with pytest.raises(ModelFormatError, match=message):
        _config(_with_tensors(tmp_path, change))


def test_llama_with_biases(tmp_path: Path) -> None:
    biases = {
        f"blk.{layer}.attn_{kind}.bias": gw.Tensor(
            f"blk.{layer}.attn_{kind}.bias", [dim], DType.F32, bytes(4 * dim)
        )
        for layer in range(2)
        for kind, dim in (("q", 64), ("k", 32), ("v", 32))
    }
    assert _config(_with_tensors(tmp_path, dict(biases))).qkv_bias
