"""Hugging Face folders: the same model as its GGUF twin, and every refusal."""

from __future__ import annotations

import dataclasses
import json
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError, ModelFormatError
from headrace.models.config import ModelConfig, RopeConfig
from headrace.weights.base import DType, TokenizerSpec, WeightSource
from headrace.weights.hf import HfSource
from headrace.weights.names import canonical_name
from headrace.weights.open import open_source
from headrace.weights.safetensors_file import MAX_HEADER_BYTES, SafetensorsFile
from tests.support.make_model import (
    CHAT_TEMPLATE,
    hf_name,
    make_gguf,
    make_hf,
    safetensors_bytes,
    tensor_shapes,
)

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")


def _config(folder: Path, **kwargs: Any) -> ModelConfig:
    source = open_source(make_hf(folder, **kwargs).path)
    try:
        return source.config
    finally:
        source.close()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_what_was_written_is_presented(
    tmp_path: Path, family: str, dtype: DType, num_shards: int
) -> None:
    made = make_hf(
        tmp_path / "tiny", family=family, dtype=dtype, num_shards=num_shards, tied_head=False
    )
    source = open_source(made.path)
    assert set(source.tensors) == set(made.tensors)
    for name, tensor in made.tensors.items():
        info, view = source.tensors[name], source.data(name)
        assert (info.dtype, info.shape, info.num_bytes) == (
            tensor.dtype,
            tensor.shape,
            len(tensor.data),
        )
        assert view == tensor.data
        assert view.readonly
        source.release(name)
        assert source.data(name) == tensor.data
    assert source.name == "tiny"
    assert source.chat_template == CHAT_TEMPLATE
    assert source.config.family == family
    source.close()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scaling", ["none", "linear"])
def test_config_equals_the_gguf_twin(tmp_path: Path, family: str, scaling: str) -> None:
    config = _config(tmp_path / "hf", family=family, rope_scaling=scaling)
    twin_path = make_gguf(
        tmp_path / "m.gguf", family=family, rope_scaling=scaling, tokenizer="gpt2"
    ).path
    twin = open_source(twin_path)
    rope = dataclasses.replace(twin.config.rope, interleaved=False)
    assert config == dataclasses.replace(twin.config, rope=rope, norm_eps=config.norm_eps)
    assert config.norm_eps == pytest.approx(twin.config.norm_eps, rel=1e-6)
    twin.close()


def test_gemma_norms_get_their_one(tmp_path: Path) -> None:
    """The presented norms of the folder are the stored ones of the GGUF twin, bit for bit."""
    folder = open_source(make_hf(tmp_path / "hf", family="gemma3", dtype=DType.F32).path)
    twin = open_source(
        make_gguf(tmp_path / "m.gguf", family="gemma3", dtype=DType.F32, tokenizer="gpt2").path
    )
    names = [name for name in twin.tensors if name.endswith("norm.weight")]
    assert len(names) == 6 * 6 + 1
    for name in twin.tensors:
        assert folder.data(name) == twin.data(name)
    folder.close()
    twin.close()


def test_llama3_scaling(tmp_path: Path) -> None:
    assert _config(tmp_path, rope_scaling="llama3").rope == RopeConfig(
        theta=10_000.0,
        dim=16,
        interleaved=False,
        scaling="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_len=64,
    )


def test_rope_parameters_of_newer_files(tmp_path: Path) -> None:
    flat = {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    assert _config(tmp_path / "a", config=flat).rope.theta == 5e5
    nested = {
        "rope_theta": None,
        "rope_local_base_freq": None,
        "sliding_window_pattern": None,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "rope_parameters": {
            "full_attention": {"rope_theta": 2e6, "rope_type": "linear", "factor": 8.0},
            "sliding_attention": {"rope_theta": 2e4, "rope_type": "default"},
        },
    }
    config = _config(tmp_path / "b", family="gemma3", config=nested)
    assert (config.rope.theta, config.rope.scaling, config.rope.factor) == (2e6, "linear", 8.0)
    assert config.rope_local == RopeConfig(theta=2e4, dim=16, interleaved=False)
    assert config.layer_is_window == (True, False) * 3


def test_windows(tmp_path: Path) -> None:
    mistral = {"model_type": "mistral", "sliding_window": 100}
    config = _config(tmp_path / "a", config=mistral)
    assert (config.family, config.window, config.layer_is_window) == ("llama", 100, (True, True))
    qwen = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}
    config = _config(tmp_path / "b", family="qwen2", config=qwen)
    assert (config.window, config.layer_is_window) == (64, (False, True))
    unused = qwen | {"use_sliding_window": False}
    assert _config(tmp_path / "c", family="qwen2", config=unused).window == 0


def test_gemma_query_scale(tmp_path: Path) -> None:
    config = _config(tmp_path, family="gemma3", config={"query_pre_attn_scalar": 64})
    assert config.attn_scale == 1 / 8
    assert config.embed_scale == math.sqrt(64)


def test_tied_head_ignores_a_stored_one(tmp_path: Path) -> None:
    made = make_hf(tmp_path, tied_head=False, config={"tie_word_embeddings": True})
    source = open_source(made.path)
    assert source.config.tied_head
    assert "output.weight" not in source.tensors
    source.close()


def test_the_library_reads_the_same_bytes(tmp_path: Path) -> None:
    path = make_hf(tmp_path, dtype=DType.F16).path / "model.safetensors"
    file = SafetensorsFile(path)
    library: Any = safetensors  # It has no types.
    stored = dict(library.deserialize(path.read_bytes()))
    assert set(stored) == set(file.tensors)
    for name, tensor in file.tensors.items():
        assert tensor.info.shape == tuple(stored[name]["shape"])
        data = file.file.view[tensor.start : tensor.start + tensor.info.num_bytes]
        assert data == bytes(stored[name]["data"])
        del data
    file.file.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_names_round_trip(tmp_path: Path, family: str) -> None:
    shape = make_hf(tmp_path, family=family, tied_head=False).shape
    for name in tensor_shapes(shape):
        assert canonical_name(family, hf_name(family, name)) == name
    for stranger in (
        "model.layers.00.input_layernorm.weight",
        "model.layers.0.mlp.experts.0.up_proj.weight",
        "model.layers.0.self_attn.q_proj.qweight",
        "vision_tower.x.weight",
        "",
    ):
        assert canonical_name(family, stranger) is None


def _spec(folder: Path) -> TokenizerSpec:
    source = open_source(folder)
    try:
        return source.tokenizer
    finally:
        source.close()


def test_tokenizer_spec(tmp_path: Path) -> None:
    made = make_hf(tmp_path, family="qwen2")
    spec = _spec(tmp_path)
    assert spec.json_bytes == (tmp_path / "tokenizer.json").read_bytes()
    assert (spec.bos_id, spec.eos_ids, spec.add_bos) == (1, (0, 2), False)
    generation = {"eos_token_id": [5, 2]}
    (made.path / "generation_config.json").write_text(json.dumps(generation))
    assert _spec(tmp_path).eos_ids == (0, 2, 5)


def test_post_processor_says_whether_bos_is_added(tmp_path: Path) -> None:
    make_hf(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}},
        ],
    }
    document["post_processor"] = {"type": "Sequence", "processors": [template]}
    path.write_text(json.dumps(document))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": {"content": "<|im_start|>"}}')
    assert _spec(tmp_path).add_bos


def _template(folder: Path) -> str | None:
    source = open_source(folder)
    try:
        return source.chat_template
    finally:
        source.close()


def test_chat_template_files(tmp_path: Path) -> None:
    make_hf(tmp_path)
    settings_path = tmp_path / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    settings_path.write_text(json.dumps({"chat_template": named}))
    assert _template(tmp_path) == "D"
    (tmp_path / "chat_template.jinja").write_text("J")
    assert _template(tmp_path) == "J"
    (tmp_path / "chat_template.jinja").unlink()
    settings_path.unlink()
    assert _template(tmp_path) is None
    settings_path.write_text('{"chat_template": 5}')
    with pytest.raises(ModelFormatError, match="must be a string"):
        _template(tmp_path)


def test_name_in_the_hub_cache(tmp_path: Path) -> None:
    folder = tmp_path / "models--org--tiny-model" / "snapshots" / ("a" * 40)
    source = open_source(make_hf(folder).path)
    assert source.name == "tiny-model"
    source.close()


def test_header_digest(tmp_path: Path) -> None:
    def digest(folder: str, **kwargs: Any) -> str:
        source = open_source(make_hf(tmp_path / folder, **kwargs).path)
        value = source.header_digest
        source.close()
        return value

    base = digest("a")
    assert digest("b", seed=3) == base
    assert digest("c", config={"rms_norm_eps": 1e-4}) != base
    assert digest("d", ffn_dim=96) != base


def _use(folder: Path) -> None:
    source: WeightSource = open_source(folder)
    try:
        _ = source.config
        _ = source.tokenizer
        _ = source.chat_template
        for name in source.tensors:
            assert len(source.data(name)) == source.tensors[name].num_bytes
    finally:
        source.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "'mamba' is not supported"),
        ({"model_type": None}, "model type '' is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized with 'awq'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized with 'gptq'"),
        ({"num_local_experts": 8}, "mixture-of-experts"),
        ({"num_experts": 64}, "mixture-of-experts"),
        ({"vision_config": {}}, "text-only"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "64"}, "'hidden_size' must be an integer"),
        ({"hidden_size": 1 << 70}, "hidden size is"),
        ({"hidden_size": -64}, "hidden size is -64"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0"),
        ({"num_hidden_layers": 10**9}, "outside 1 to 1000"),
        ({"num_hidden_layers": True}, "must be an integer"),
        ({"num_attention_heads": 0}, "'num_attention_heads' is 0"),
        ({"head_dim": 0}, "'head_dim' is 0"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"intermediate_size": 64}, "'blk.0.ffn_gate.weight' has the shape"),
        ({"vocab_size": 100}, "'token_embd.weight' has the shape"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' must be a number"),
        ({"rms_norm_eps": 10**400}, "'rms_norm_eps' must be a number"),
        ({"rope_theta": 0}, "rope base is 0"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope scaling 'yarn'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic'"),
        ({"rope_scaling": [1]}, "must be an object"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "'low_freq_factor' is missing"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"tie_word_embeddings": False}, "'output.weight' is missing"),
        ({"eos_token_id": 320}, "special token 320 is outside"),
        ({"eos_token_id": "x"}, "must be a token id"),
    ],
)
def test_impossible_configs(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    make_hf(tmp_path, config=changes)
    with pytest.raises(ModelFormatError, match=message):
        _use(tmp_path)


def test_code_of_a_repository_is_never_run(tmp_path: Path) -> None:
    make_hf(
        tmp_path,
        config={"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}},
    )
    marker = tmp_path / "ran"
    (tmp_path / "modeling_evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    _use(tmp_path)
    assert not marker.exists()
    assert "modeling_evil" not in sys.modules


def _rename(old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / old).rename(folder / new)


def _write(name: str, raw: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(raw)


INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_rename(WEIGHTS, "pytorch_model.bin"), "only pickled weights"),
        (_rename(WEIGHTS, "notes.txt"), "no .safetensors files"),
        (_write("config.json", b"{"), "not valid JSON"),
        (_write("config.json", b"[]"), "not a JSON object"),
        (_write("config.json", b"[" * 100_000), "not valid JSON"),
        (_write("config.json", b"\xff\xfe"), "not valid JSON"),
        (_write("config.json", b" " * (17 << 20)), "larger than"),
        (_write("tokenizer.json", b"{"), "not a tokenizer file"),
        (_write("tokenizer.json", b'{"added_tokens": [{"id": "x"}]}'), "not a tokenizer file"),
        (_rename("tokenizer.json", "other.json"), "no tokenizer.json"),
        (_write(INDEX, b"{}"), "'weight_map' must be an object"),
        (_write(INDEX, b'{"weight_map": {"x": "../../etc/passwd"}}'), "it names the file"),
        (_write(INDEX, b'{"weight_map": {"x": "a.bin"}}'), "it names the file"),
        (_write(INDEX, b'{"weight_map": {"x": "no.safetensors"}}'), "'no.safetensors' is missing"),
        (_write(WEIGHTS, b""), "is empty"),
        (_write(WEIGHTS, b"\0" * 7), "longer than the file"),
    ],
)
def test_damaged_folders(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    make_hf(tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelFormatError, match=message) as failure:
        _use(tmp_path)
    assert str(tmp_path) not in str(failure.value)


def _entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


def _file(header: bytes, data: bytes = bytes(8)) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def _json(document: Any, data: bytes = bytes(8)) -> bytes:
    raw = json.dumps(document).encode()
    return _file(raw + b" " * (-len(raw) % 8), data)


SAFETENSORS: dict[str, tuple[bytes, str]] = {
    "header longer than the file": (struct.pack("<Q", 100) + bytes(50), "longer than the file"),
    "header of 2^64": (struct.pack("<Q", (1 << 64) - 1) + bytes(50), "longer than the file"),
    "not JSON": (_file(b"xxxxxxxx"), "not valid JSON"),
    "not UTF-8": (_file(b"\xff" * 8), "not valid JSON"),
    "deep nesting": (_file(b"[" * 100_000), "not valid JSON"),
    "not an object": (_json([]), "not a JSON object"),
    "the same key twice": (_file(b'{"a":{},"a":{}} '), "not valid JSON"),
    "entry of another type": (_json({"a": 5}), "is not an object"),
    "8-bit floats": (_json({"a": _entry(dtype="F8_E4M3")}), "'a' is stored as F8_E4M3"),
    "integers": (_json({"a": _entry(dtype="I8")}), "'a' is stored as I8"),
    "no dtype": (_json({"a": {}}), "'a' is stored as None"),
    "negative shape": (_json({"a": _entry(shape=[-2])}), "impossible shape"),
    "empty shape": (_json({"a": _entry(shape=[0])}), "impossible shape"),
    "float shape": (_json({"a": _entry(shape=[2.0])}), "impossible shape"),
    "boolean shape": (_json({"a": _entry(shape=[True, 2])}), "impossible shape"),
    "many dimensions": (_json({"a": _entry(shape=[1] * 9)}), "impossible shape"),
    "overflowing shape": (_json({"a": _entry(shape=[1 << 63, 4])}), "does not fit"),
    "three offsets": (_json({"a": _entry(data_offsets=[0, 4, 8])}), "impossible offsets"),
    "offsets reversed": (_json({"a": _entry(data_offsets=[8, 0])}), "does not fit"),
    "offsets behind the end": (_json({"a": _entry(data_offsets=[8, 16])}), "does not fit"),
    "wrong length": (_json({"a": _entry(data_offsets=[0, 4])}), "does not fit"),
    "overlap": (_json({"a": _entry(), "b": _entry()}), "overlaps or leaves a gap"),
    "gap": (_json({"a": _entry(data_offsets=[8, 16])}, bytes(16)), "overlaps or leaves a gap"),
    "bytes behind": (_json({"a": _entry()}, bytes(9)), "end at byte"),
    "long name": (_json({"a" * 600: _entry()}), "600 characters"),
    "misaligned": (_file(json.dumps({"a": _entry()}).encode().ljust(63)), "not aligned"),
}


@pytest.mark.parametrize("case", SAFETENSORS)
def test_hostile_safetensors(tmp_path: Path, case: str) -> None:
    raw, message = SAFETENSORS[case]
    make_hf(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(raw)
    with pytest.raises(ModelFormatError, match=message):
        HfSource(tmp_path)


def test_header_of_many_megabytes(tmp_path: Path) -> None:
    make_hf(tmp_path)
    with (tmp_path / WEIGHTS).open("wb") as file:
        file.write(struct.pack("<Q", 101 << 20))
        file.truncate(1 << 30)
    with pytest.raises(ModelFormatError, match=f"more than {MAX_HEADER_BYTES}"):
        HfSource(tmp_path)


def test_truncated_weights(tmp_path: Path) -> None:
    path = make_hf(tmp_path).path / WEIGHTS
    raw = path.read_bytes()
    for cut in (*range(1, 200), len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:cut])
        with pytest.raises(ModelFormatError):
            HfSource(tmp_path)


def test_stranger_tensors_are_named(tmp_path: Path) -> None:
    made = make_hf(tmp_path)
    named = [(hf_name("llama", name), tensor) for name, tensor in made.tensors.items()]
    named.append(("model.layers.0.mlp.gate_proj.bias2", made.tensors["output_norm.weight"]))
    (tmp_path / WEIGHTS).write_bytes(safetensors_bytes(named))
    with pytest.raises(ModelFormatError, match=r"'model\.layers\.0\.mlp\.gate_proj\.bias2'"):
        HfSource(tmp_path)
    named[-1] = ("model.layers.0.self_attn.rotary_emb.inv_freq", named[-1][1])
    (tmp_path / WEIGHTS).write_bytes(safetensors_bytes(named))
    _use(tmp_path)


@given(st.integers(0, 4000), st.binary(min_size=1, max_size=8))
@settings(
    max_examples=200, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_mutated_headers(tmp_path: Path, start: int, data: bytes) -> None:
    if not (tmp_path / "raw").exists():
        make_hf(tmp_path, num_layers=1)
        (tmp_path / "raw").write_bytes((tmp_path / WEIGHTS).read_bytes())
    raw = bytearray((tmp_path / "raw").read_bytes())
    raw[start : start + len(data)] = data
    (tmp_path / WEIGHTS).write_bytes(raw)
    message = ""
    try:
        _use(tmp_path)
    except HeadraceError as error:
        message = str(error)
    assert str(tmp_path) not in message
