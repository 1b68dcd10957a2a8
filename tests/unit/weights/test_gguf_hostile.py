"""Hostile GGUF files: an error in bounded time and memory, never a wrong tensor, never a crash."""

from __future__ import annotations

import os
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError, ModelFormatError
from headrace.weights.base import DType
from headrace.weights.gguf import GgufSource
from headrace.weights.gguf_parse import MAX_HEADER_BYTES
from tests.support import gguf_writer as gw
from tests.support.make_model import make_gguf

GIB = 1 << 30
F32 = 0
# A bound that only a hang or a real gigabyte breaks, not a slow machine.
MAX_SECONDS = 5.0
MAX_GROWTH_KIB = 64 << 10


def _vector(name: str | bytes = "t", **changes: object) -> gw.Tensor:
    values = {"name": name, "dims": [8], "type_id": F32, "data": bytes(32)} | changes
    return gw.Tensor(**values)  # type: ignore[arg-type]  # Hostile values have any type.


def _open_and_use(path: Path) -> None:
    """Everything a caller may ask of a source; only HeadraceError may come out."""
    source = GgufSource(path)
    try:
        for name, info in source.tensors.items():
            assert len(source.data(name)) == info.num_bytes
        _ = source.chat_template
        _ = source.header_digest
        _ = source.config
        _ = source.tokenizer
    finally:
        source.close()


def _refused(path: Path, raw: bytes, match: str = "") -> None:
    path.write_bytes(raw)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    with pytest.raises(ModelFormatError, match=match) as failure:
        _open_and_use(path)
    assert time.monotonic() - started < MAX_SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH_KIB
    message = str(failure.value)
    assert path.name in message
    assert str(path.parent) not in message
    assert len(message) < 1000


def _header(version: int = 3, num_tensors: int = 0, num_keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys)


U64_MAX = (1 << 64) - 1
HEADERS: dict[str, tuple[bytes, str]] = {
    "no magic": (b"GGML" + bytes(96), "not a GGUF file"),
    "three bytes": (b"GGU", "not a GGUF file"),
    "magic alone": (b"GGUF", "truncated"),
    "version 1": (_header(1) + bytes(8), "version 1 is not supported"),
    "version 4": (_header(4), "version 4"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "keys of GiB": (_header(num_keys=GIB) + bytes(76), "claims 1073741824 metadata keys"),
    "keys overflowing": (_header(num_keys=U64_MAX) + bytes(76), "metadata keys"),
    "tensors of GiB": (_header(num_tensors=GIB) + bytes(76), "claims 1073741824 tensors"),
    "tensors overflowing": (_header(num_tensors=U64_MAX) + bytes(76), "tensors"),
    "no key name": (_header(num_keys=1) + bytes(76), "metadata key has 0 bytes"),
    "key of GiB": (_header(num_keys=1) + struct.pack("<Q", GIB) + bytes(68), "truncated"),
    "key overflowing": (_header(num_keys=1) + struct.pack("<Q", U64_MAX) + bytes(68), "truncated"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_hostile_headers(tmp_path: Path, case: str) -> None:
    raw, match = HEADERS[case]
    _refused(tmp_path / "m.gguf", raw, match)


def _key(value: bytes, kind: int, name: bytes = b"k") -> bytes:
    raw = _header(num_keys=1) + gw.string_bytes(name) + struct.pack("<I", kind) + value
    return raw + bytes(max(0, 100 - len(raw)))


def _array(item_kind: int, count: int, rest: bytes = b"") -> bytes:
    return _key(struct.pack("<IQ", item_kind, count) + rest, gw.ARRAY)


VALUES: dict[str, tuple[bytes, str]] = {
    "unknown type": (_key(b"", 13), "unknown type 13"),
    "string of GiB": (_key(struct.pack("<Q", GIB), gw.STRING), "truncated"),
    "string overflowing": (_key(struct.pack("<Q", U64_MAX), gw.STRING), "truncated"),
    "string not UTF-8": (_key(gw.string_bytes(b"\xc3\x28"), gw.STRING), "not UTF-8"),
    "key not UTF-8": (_key(b"\1", gw.BOOL, b"\xff"), "metadata key is not UTF-8"),
    "key too long": (_key(b"\1", gw.BOOL, b"k" * 300), "metadata key has 300 bytes"),
    "boolean 2": (_key(b"\2", gw.BOOL), "boolean with the value 2"),
    "array of arrays": (_array(gw.ARRAY, 1), "array of arrays"),
    "array of unknown": (_array(99, 1), "unknown type 99"),
    "array of GiB": (_array(gw.UINT8, GIB), "truncated"),
    "array overflowing": (_array(gw.UINT64, (1 << 61) + 1), "truncated"),
    "strings of GiB": (_array(gw.STRING, GIB), "claims 1073741824 strings"),
    "strings overflowing": (_array(gw.STRING, U64_MAX), "strings"),
    "long element": (
        _array(gw.STRING, 3, struct.pack("<Q", GIB) + bytes(24)),
        "beyond the end",
    ),
    "element wrapping around": (
        _array(gw.STRING, 3, struct.pack("<Q", U64_MAX - 7) + bytes(24)),
        "beyond the end",
    ),
    "last element too long": (
        _array(gw.STRING, 1, struct.pack("<Q", 1000) + bytes(16)),
        "beyond the end",
    ),
}


@pytest.mark.parametrize("case", VALUES)
def test_hostile_values(tmp_path: Path, case: str) -> None:
    raw, match = VALUES[case]
    _refused(tmp_path / "m.gguf", raw, match)


TENSORS: dict[str, tuple[list[gw.Tensor], str]] = {
    "no dimensions": ([_vector(dims=[])], "has 0 dimensions"),
    "five dimensions": ([_vector(dims=[1] * 5)], "has 5 dimensions"),
    "empty": ([_vector(dims=[0])], "impossible"),
    "half a block": ([_vector(dims=[48], type_id=2)], "impossible for Q4_0"),
    "dimensions overflowing": ([_vector(dims=[1 << 32, 1 << 32])], "larger than the file"),
    "dimensions wrapping to 8": ([_vector(dims=[(1 << 61) + 1, 8])], "larger than the file"),
    "larger than the file": ([_vector(dims=[1 << 20])], "larger than the file"),
    "behind the end": ([_vector(offset=1 << 40)], "truncated"),
    "offset overflowing": ([_vector(offset=U64_MAX - 31)], "truncated"),
    "misaligned": ([_vector(offset=8)], "not aligned to 32"),
    "overlapping": ([_vector("a"), _vector("b", offset=0)], "overlap"),
    "twice": ([_vector("a"), _vector("a")], "appears twice"),
    "unsupported type": ([_vector(dims=[256], type_id=10)], "'t' is stored as Q2_K"),
    "IQ type": ([_vector(dims=[256], type_id=23)], "'t' is stored as IQ4_XS"),
    "unknown type": ([_vector(type_id=77)], "'t' is stored as type 77"),
    "no name": ([_vector("")], "tensor name has 0 bytes"),
    "name too long": ([_vector("n" * 257)], "tensor name has 257 bytes"),
    "name not UTF-8": ([_vector(b"\x80")], "not UTF-8"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_hostile_tensors(tmp_path: Path, case: str) -> None:
    tensors, match = TENSORS[case]
    meta = {"general.architecture": gw.text("llama")}
    _refused(tmp_path / "m.gguf", gw.gguf_bytes(meta, tensors), match)


@pytest.mark.parametrize("alignment", [0, 1, 4, 7, 33, 1 << 21, 1 << 31])
def test_hostile_alignment(tmp_path: Path, alignment: int) -> None:
    meta = {"general.alignment": gw.u32(alignment)}
    _refused(tmp_path / "m.gguf", gw.gguf_bytes(meta, [_vector()]), "general.alignment is")


def test_alignment_of_another_type(tmp_path: Path) -> None:
    meta = {"general.alignment": gw.text("32")}
    _refused(tmp_path / "m.gguf", gw.gguf_bytes(meta, [_vector()]), "must be an integer")


def test_duplicate_keys(tmp_path: Path) -> None:
    pairs: list[tuple[str | bytes, gw.Value]] = [("a", gw.u32(1)), ("a", gw.u32(1))]
    _refused(tmp_path / "m.gguf", gw.gguf_bytes(pairs, []), "'a' appears twice")


def _array_head(item_kind: int, count: int) -> bytes:
    key = gw.string_bytes(b"k")
    return _header(num_keys=1) + key + struct.pack("<IIQ", gw.ARRAY, item_kind, count)


def _sparse(path: Path, head: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)


def test_large_files_of_nothing(tmp_path: Path) -> None:
    """Counts that a sparse file of 8 GiB could hold still meet the limits on work and memory."""
    path = tmp_path / "m.gguf"
    for head, match in (
        (_array_head(gw.STRING, 5 << 20), "strings"),
        (_array_head(gw.UINT8, 2 * GIB), "larger than allowed"),
        (_key(struct.pack("<Q", 2 * GIB), gw.STRING)[:45], "larger than allowed"),
        (_header(num_keys=1 << 24), "metadata keys"),
        (_header(num_tensors=1 << 24), "tensors"),
    ):
        _sparse(path, head, 8 * GIB)
        started = time.monotonic()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(ModelFormatError, match=match):
            _open_and_use(path)
        assert time.monotonic() - started < MAX_SECONDS
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH_KIB


def test_many_string_arrays_share_one_limit(tmp_path: Path) -> None:
    """Empty strings up to the header limit, spread over arrays that are each small enough."""
    path = tmp_path / "m.gguf"
    count = 1 << 20
    raw = bytearray(_header(num_keys=5))
    for i in range(5):
        raw += gw.string_bytes(f"k{i}") + struct.pack("<IIQ", gw.ARRAY, gw.STRING, count)
        raw += bytes(8 * count)
    assert len(raw) < MAX_HEADER_BYTES
    _refused(path, bytes(raw), "more than 2097152 strings")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model small enough to be cut at every byte: no vocabulary to speak of."""
    made = make_gguf(
        tmp_path_factory.mktemp("tiny") / "m.gguf",
        tokenizer=None,
        num_layers=1,
        hidden_dim=8,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        ffn_dim=8,
        vocab_size=8,
        dtype=DType.F16,
    )
    return made.path.read_bytes()


def test_truncated_at_every_byte(tmp_path: Path, tiny: bytes) -> None:
    """No prefix of a model is a model, except without the padding behind the last tensor."""
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny)
    source = GgufSource(path)
    end = max(
        tiny.find(bytes(source.data(name))) + info.num_bytes
        for name, info in source.tensors.items()
    )
    source.close()
    for cut in range(end - 1, 0, -1):
        os.truncate(path, cut)
        with pytest.raises(ModelFormatError):
            GgufSource(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    made = make_gguf(tmp_path_factory.mktemp("whole") / "m.gguf", num_layers=1)
    return made.path.read_bytes()


Mutation = Callable[[bytearray], None]


def _overwrite(start: int, data: bytes) -> Mutation:
    def mutate(raw: bytearray) -> None:
        at = start % len(raw)
        raw[at : at + len(data)] = data[: len(raw) - at]

    return mutate


def _insert(start: int, data: bytes) -> Mutation:
    def mutate(raw: bytearray) -> None:
        at = start % len(raw)
        raw[at:at] = data

    return mutate


def _delete(start: int, length: int) -> Mutation:
    def mutate(raw: bytearray) -> None:
        at = start % len(raw)
        del raw[at : at + length]

    return mutate


# Most of the header is vocabulary; half of the mutations aim at the parts before and after it.
_starts = st.one_of(st.integers(0, 1500), st.integers(0, 1 << 20))
_words = st.sampled_from(
    [struct.pack("<Q", v) for v in (0, 1, 255, 1 << 31, 1 << 32, 1 << 61, 1 << 63, U64_MAX)]
)
_data = st.one_of(st.binary(min_size=1, max_size=16), _words)
_mutations = st.one_of(
    st.builds(_overwrite, _starts, _data),
    st.builds(_insert, _starts, _data),
    st.builds(_delete, _starts, st.integers(1, 64)),
)


@given(st.lists(_mutations, min_size=1, max_size=4))
@settings(
    max_examples=400,
    deadline=int(MAX_SECONDS * 1000),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_mutated_files(tmp_path: Path, whole: bytes, mutations: list[Mutation]) -> None:
    raw = bytearray(whole)
    for mutate in mutations:
        mutate(raw)
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message = ""
    try:
        _open_and_use(path)
    except HeadraceError as error:
        message = str(error)
    assert str(tmp_path) not in message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH_KIB


@given(st.binary(max_size=300))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_bytes(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(_header()[:8] + raw)
    with pytest.raises(ModelFormatError):
        _open_and_use(path)
