"""tokenizer.json files: the same ids as the GGUF form, pieces, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import ModelFormatError
from headrace.text import library
from headrace.text.tokenizer import load_tokenizer
from headrace.text.vocabulary import VocabularyTokenizer
from headrace.weights.base import TokenizerSpec
from tests.support.hard_strings import HARD_STRINGS
from tests.support.text_specs import gpt2_spec
from tests.support.vocab import gpt2_vocabulary, tokenizer_json

SPACE = "\u2581"
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(tokenizer_json(gpt2_vocabulary()))
    return loaded


def load(content: dict[str, Any], **changes: Any) -> VocabularyTokenizer:
    spec = TokenizerSpec(json_bytes=json.dumps(content).encode(), bos_id=1, eos_ids=(2,))
    return load_tokenizer(replace(spec, **changes), 320)


def pieces_document() -> dict[str, Any]:
    """A small model as Llama 2 and Gemma files have it: pieces, byte fallback, spaces replaced."""
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *raw, SPACE, "a", "b", f"{SPACE}a", "ab"]
    content = document()
    content["model"] |= {
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": [[SPACE, "a"], ["a", "b"]],
        "unk_token": "<unk>",
        "byte_fallback": True,
        "fuse_unk": True,
    }
    content["added_tokens"] = [
        entry | {"id": i, "content": tokens[i]}
        for i, entry in enumerate(document()["added_tokens"])
    ]
    content["pre_tokenizer"] = None
    content["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": SPACE},
            {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        ],
    }
    content["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    return content


def test_equals_the_gguf_form() -> None:
    ours = load(document())
    gguf = load_tokenizer(gpt2_spec(), 320)
    for text in HARD_STRINGS:
        for parse_special in (True, False):
            ids = ours.encode(text, parse_special=parse_special)
            assert ids == gguf.encode(text, parse_special=parse_special)
            assert ours.decode(ids) == gguf.decode(ids)
    assert (ours.eos_ids, ours.max_token_bytes) == (gguf.eos_ids, 4 * gguf.max_token_bytes)


def test_special_ids_follow_the_spec() -> None:
    tokenizer = load(document(), add_bos=True, add_eos=True)
    ids = tokenizer.encode("a")
    assert (ids[0], ids[-1], tokenizer.add_bos) == (1, 2, True)


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
def test_known_words_are_encoded_in_pieces(
    monkeypatch: pytest.MonkeyPatch, normalizer: dict[str, Any] | None
) -> None:
    content = document()
    content["normalizer"] = normalizer
    content["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": QWEN2_PATTERN},
                "behavior": "Isolated",
                "invert": False,
            },
            document()["pre_tokenizer"] | {"use_regex": False},
        ],
    }
    tokenizer = load(content)
    whole = [tokenizer.encode(text) for text in HARD_STRINGS]
    monkeypatch.setattr(library, "PIECE_LEN", 3)
    assert [tokenizer.encode(text) for text in HARD_STRINGS] == whole
    text = "one two, three"
    assert tokenizer.encode_bounded(text, 2) is None
    assert tokenizer.encode_bounded(text, 100) == tokenizer.encode(text)


def test_unknown_words_are_encoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "cut_safely", None)  # a cut would fail
    content = document()
    content["pre_tokenizer"]["add_prefix_space"] = True
    load(content).encode("a b " * 100)
    content = document()
    content["added_tokens"][0]["lstrip"] = True
    load(content).encode("a b " * 100)
    content = document()
    content["normalizer"] = {"type": "Lowercase"}
    tokenizer = load(content)
    assert tokenizer.encode("A b") == tokenizer.encode("a B")
    assert tokenizer.encode_bounded("a" * 10_000, 9) is None


def test_pieces() -> None:
    tokenizer = load(pieces_document(), add_bos=True)
    ids = tokenizer.encode("ab é")
    assert [tokenizer.token_text(i) for i in ids] == ["<s>", " a", "b", " ", "\ufffd", "\ufffd"]
    assert tokenizer.decode(ids) == "ab é"
    assert tokenizer.decode(ids[1:]) == " ab é"
    assert tokenizer.decode(ids, skip_special=False) == "<s>ab é"
    assert tokenizer.decode_bytes(3 + 0xC3) == b"\xc3"
    assert tokenizer.encode_bounded("a" * 100_000, 10) is None
    plain = tokenizer.encode("<s>", add_special=False, parse_special=False)
    assert 1 not in plain
    assert tokenizer.decode(plain) == " <s>"


def test_metaspace() -> None:
    content = pieces_document()
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first"}
    content |= {"normalizer": None, "pre_tokenizer": metaspace, "decoder": metaspace}
    tokenizer = load(content, add_bos=True)
    ids = tokenizer.encode("ab a")
    assert tokenizer.decode(ids) == "ab a"
    assert tokenizer.space_prefixed
    content["decoder"] = metaspace | {"prepend_scheme": "never"}
    assert not load(content).space_prefixed


def test_truncation_and_padding_are_ignored() -> None:
    content = document()
    content["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    content["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    text = "one two three"
    assert load(content).encode(text) == load(document()).encode(text)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "tokenizer.json cannot be read"),
        (b"{}", "tokenizer.json cannot be read"),
        (b"\xff\xfe", "tokenizer.json cannot be read"),
        (b"[" * 100_000, "tokenizer.json cannot be read"),
        (b'{"model": {"type": "BPE"}}', "cannot be read"),
    ],
)
def test_damaged(raw: bytes, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        load_tokenizer(TokenizerSpec(json_bytes=raw), 320)


def test_a_file_that_makes_the_library_panic() -> None:
    content = document()
    content["model"]["continuing_subword_prefix"] = "longer than any token"
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json cannot be read"):
        load(content)


def test_ids_beyond_the_embedding() -> None:
    with pytest.raises(ModelFormatError, match="has token 319, but the embedding table 319 rows"):
        load_tokenizer(TokenizerSpec(json_bytes=tokenizer_json(gpt2_vocabulary())), 319)


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
def test_decoder_that_spells_no_bytes(decoder: dict[str, Any] | None) -> None:
    content = document()
    content["decoder"] = decoder
    with pytest.raises(ModelFormatError, match=r"decoder of tokenizer\.json"):
        load(content)
