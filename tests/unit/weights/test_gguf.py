"""The GGUF reader against the generator and against the `gguf` package on real files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader, GGUFValueType

from headrace.errors import ModelFormatError, ModelNotFoundError
from headrace.weights.base import DType
from headrace.weights.gguf import GgufSource
from headrace.weights.open import open_source
from tests.support import gguf_writer as gw
from tests.support.make_model import CHAT_TEMPLATE, make_gguf

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")


def _assert_equals_oracle(path: Path) -> None:
    """Every tensor's type, shape and bytes, and every metadata value, as the package reads them."""
    source, reader = GgufSource(path), GGUFReader(path)
    assert set(source.tensors) == {tensor.name for tensor in reader.tensors}
    for tensor in reader.tensors:
        info = source.tensors[tensor.name]
        assert info.dtype == int(tensor.tensor_type)
        assert info.shape == tuple(int(dim) for dim in reversed(tensor.shape))
        assert info.num_bytes == tensor.n_bytes
        start = tensor.data_offset
        assert source.data(tensor.name) == reader.data[start : start + info.num_bytes].tobytes()
    keys = [key for key in reader.fields if not key.startswith("GGUF.")]
    assert source.metadata.keys() == keys
    for key in keys:
        _assert_same_value(source, key, reader)
    source.close()


def _assert_same_value(source: GgufSource, key: str, reader: GGUFReader) -> None:
    field, meta = reader.fields[key], source.metadata
    kind = field.types[0]
    if kind == GGUFValueType.ARRAY:
        if field.types[-1] == GGUFValueType.STRING:
            assert meta.strings(key) == [bytes(field.parts[i]) for i in field.data]
        else:
            assert meta.numbers(key) == [field.parts[i][0] for i in field.data]
    elif kind == GGUFValueType.STRING:
        assert meta.text(key) == field.contents()
    elif kind == GGUFValueType.BOOL:
        assert meta.boolean(key, default=not field.contents()) == field.contents()
    else:
        assert meta.number(key) == field.contents()


def test_smollm2_equals_oracle(smollm2_path: Path) -> None:
    _assert_equals_oracle(smollm2_path)


def test_gemma3_equals_oracle(gemma3_path: Path) -> None:
    _assert_equals_oracle(gemma3_path)


def test_qwen25_equals_oracle(qwen25_path: Path) -> None:
    _assert_equals_oracle(qwen25_path)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [DType.F32, DType.Q4_1, DType.Q4_K, DType.BF16])
def test_what_was_written_is_read(tmp_path: Path, family: str, dtype: DType) -> None:
    made = make_gguf(tmp_path / "m.gguf", family=family, dtype=dtype, tied_head=False)
    source = open_source(made.path)
    assert set(source.tensors) == set(made.tensors)
    for name, tensor in made.tensors.items():
        info = source.tensors[name]
        assert (info.dtype, info.shape, info.num_bytes) == (
            tensor.dtype,
            tensor.shape,
            len(tensor.data),
        )
        assert source.data(name) == tensor.data
        assert source.data(name).readonly
    assert source.chat_template == CHAT_TEMPLATE
    assert source.name == "m"
    assert source.file_bytes == made.path.stat().st_size
    source.close()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_versions_and_alignments(tmp_path: Path, version: int, alignment: int) -> None:
    made = make_gguf(tmp_path / "m.gguf", version=version, alignment=alignment)
    source = open_source(made.path)
    assert all(source.data(name) == tensor.data for name, tensor in made.tensors.items())
    source.close()


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_shards_open_by_any_of_them(tmp_path: Path, opened: int) -> None:
    made = make_gguf(tmp_path / "big.gguf", num_shards=3, alignment=64)
    paths = sorted(tmp_path.glob("*.gguf"))
    assert [path.name for path in paths] == [f"big-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    source = open_source(paths[opened])
    assert all(source.data(name) == tensor.data for name, tensor in made.tensors.items())
    assert source.name == "big"
    assert source.config.num_layers == 2
    assert source.file_bytes == sum(path.stat().st_size for path in paths)
    source.close()


def test_shards_that_do_not_belong_together(tmp_path: Path) -> None:
    make_gguf(tmp_path / "big.gguf", num_shards=2)
    first, second = sorted(tmp_path.glob("*.gguf"))
    other = second.with_name("other.gguf")
    second.rename(other)
    with pytest.raises(ModelFormatError, match=r"its shard 'big-00002-of-00002\.gguf' is missing"):
        open_source(first)
    with pytest.raises(ModelFormatError, match="shard 2 of 2, but its name says 1 of 1"):
        open_source(other)
    second.write_bytes(first.read_bytes())
    with pytest.raises(ModelFormatError, match="two shards"):
        open_source(first)
    wrong = first.with_name("big-00003-of-00002.gguf")
    wrong.write_bytes(first.read_bytes())
    with pytest.raises(ModelFormatError, match="shard number"):
        open_source(wrong)


def test_missing_tensors_of_a_shard(tmp_path: Path) -> None:
    make_gguf(tmp_path / "big.gguf", num_shards=2, metadata={})
    first, second = sorted(tmp_path.glob("*.gguf"))
    keys = {
        "split.no": gw.Value(gw.UINT16, 1),
        "split.count": gw.Value(gw.UINT16, 2),
        "split.tensors.count": gw.Value(gw.INT32, 21),
    }
    second.write_bytes(gw.gguf_bytes(keys, []))
    with pytest.raises(ModelFormatError, match="tensors instead of"):
        open_source(first)


def test_a_truncated_file_is_noticed_after_mapping(tmp_path: Path) -> None:
    made = make_gguf(tmp_path / "m.gguf")
    source = GgufSource(made.path)
    source.check_unchanged()
    os.truncate(made.path, made.path.stat().st_size - 32)
    with pytest.raises(ModelFormatError, match="changed while"):
        source.check_unchanged()
    source.close()


def test_release_keeps_the_view_usable(tmp_path: Path) -> None:
    made = make_gguf(tmp_path / "m.gguf", hidden_dim=256, ffn_dim=1024, dtype=DType.F32)
    source = open_source(made.path)
    for name, tensor in made.tensors.items():
        view = source.data(name)
        source.release(name)
        assert view == tensor.data
        source.release(name)
    source.close()


def test_a_view_outlives_close(tmp_path: Path) -> None:
    made = make_gguf(tmp_path / "m.gguf")
    source = open_source(made.path)
    view = source.data("output_norm.weight")
    source.close()
    source.close()
    assert view == made.tensors["output_norm.weight"].data


def test_header_digest_sees_metadata_and_shapes(tmp_path: Path) -> None:
    def digest(**kwargs: Any) -> str:
        source = open_source(make_gguf(tmp_path / "m.gguf", **kwargs).path)
        value = source.header_digest
        source.close()
        return value

    base = digest()
    assert digest() == base
    assert len(base) == len(hashlib.sha256().hexdigest())
    assert digest(seed=1) == base  # Weights are not part of it.
    assert digest(metadata={"general.name": gw.text("other")}) != base
    assert digest(ffn_dim=160) != base


def test_opening_what_is_no_model_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no file or folder"):
        open_source(tmp_path / "none.gguf")
    with pytest.raises(ModelNotFoundError, match="no file or folder"):
        open_source("a\0b")
    with pytest.raises(ModelFormatError, match="must hold a config"):
        open_source(tmp_path)
    for name, message in (
        ("m.bin", "pickle"),
        ("m.pt", "pickle"),
        ("m.safetensors", "folder"),
        ("m.gguf", "is empty"),
    ):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(ModelFormatError, match=message):
            open_source(tmp_path / name)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFormatError, match="not a regular file"):
        open_source(tmp_path / "pipe.gguf")


def test_a_folder_with_one_gguf_model(tmp_path: Path) -> None:
    make_gguf(tmp_path / "big.gguf", num_shards=2)
    (tmp_path / "mmproj-big.gguf").write_bytes(b"projector")
    source = open_source(tmp_path)
    assert source.name == "big"
    source.close()
    make_gguf(tmp_path / "other.gguf")
    with pytest.raises(ModelFormatError, match=r"big-00001-of-00002\.gguf, other\.gguf"):
        open_source(tmp_path)


def test_tokenizer_of_the_file(tmp_path: Path) -> None:
    made = make_gguf(tmp_path / "m.gguf")
    assert made.vocab is not None
    source = open_source(made.path)
    spec = source.tokenizer
    assert (spec.model, spec.pre, spec.json_bytes) == ("gpt2", "smollm", None)
    assert [token.decode() for token in spec.tokens] == made.vocab.tokens
    assert [merge.decode() for merge in spec.merges] == made.vocab.merges
    assert spec.token_types == made.vocab.token_types
    assert (spec.bos_id, spec.eos_ids, spec.unk_id, spec.pad_id) == (1, (0, 2), 0, 2)
    assert (spec.add_bos, spec.add_eos, spec.add_space_prefix) == (False, False, False)
    source.close()


def test_sentencepiece_defaults(tmp_path: Path) -> None:
    made = make_gguf(
        tmp_path / "m.gguf",
        family="gemma3",
        metadata={
            "tokenizer.ggml.add_bos_token": None,
            "tokenizer.ggml.add_space_prefix": None,
            "tokenizer.ggml.padding_token_id": gw.u32(0xFFFFFFFF),
            "tokenizer.ggml.eot_token_id": gw.u32(4),
        },
    )
    assert made.vocab is not None
    source = open_source(made.path)
    spec = source.tokenizer
    assert (spec.model, spec.scores, spec.merges) == ("llama", made.vocab.scores, [])
    assert (spec.add_bos, spec.add_space_prefix, spec.pad_id) == (True, True, None)
    assert spec.eos_ids == (2, 4)
    source.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": None}, "carries no tokenizer"),
        ({"tokenizer.ggml.model": gw.text("bert")}, "kind 'bert'"),
        ({"tokenizer.ggml.tokens": None}, "'tokenizer.ggml.tokens' is missing"),
        ({"tokenizer.ggml.merges": None}, "'tokenizer.ggml.merges' is missing"),
        ({"tokenizer.ggml.token_type": gw.array(gw.INT32, [1])}, "1 entries for 320 tokens"),
        (
            {"tokenizer.ggml.token_type": gw.array(gw.FLOAT32, [1.0] * 320)},
            "must be an array of integers",
        ),
        ({"tokenizer.ggml.eos_token_id": gw.u32(320)}, "is 320, but there are 320 tokens"),
        ({"tokenizer.ggml.merges": gw.array(gw.STRING, [b"\xff\xfe"])}, "not UTF-8"),
        ({"tokenizer.ggml.add_bos_token": gw.u32(1)}, "must be a boolean"),
        ({"tokenizer.ggml.model": gw.text("llama")}, "no scores"),
        (
            {
                "tokenizer.ggml.model": gw.text("llama"),
                "tokenizer.ggml.scores": gw.array(gw.FLOAT32, [float("nan")] * 320),
            },
            "not a finite number",
        ),
    ],
)
def test_broken_vocabularies(
    tmp_path: Path, changes: dict[str, gw.Value | None], message: str
) -> None:
    source = open_source(make_gguf(tmp_path / "m.gguf", metadata=changes).path)
    assert source.config.vocab_size == 320
    with pytest.raises(ModelFormatError, match=message):
        _ = source.tokenizer
    source.close()
