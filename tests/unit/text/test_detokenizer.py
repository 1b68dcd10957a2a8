"""Incremental detokenizing: whole characters, and together exactly the one-shot decode."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.text.detokenizer import make_detokenizer
from headrace.text.tokenizer import load_tokenizer
from headrace.text.vocabulary import VocabularyTokenizer
from tests.support.hard_strings import HARD_STRINGS
from tests.support.text_specs import gpt2_spec, llama_spec

NAMES = ["gpt2", "llama", "llama-plain"]


@cache
def tiny(name: str) -> VocabularyTokenizer:
    if name == "gpt2":
        return load_tokenizer(gpt2_spec(), 330)
    return load_tokenizer(llama_spec(add_space_prefix=name == "llama"), 420)


def deltas(tokenizer: VocabularyTokenizer, ids: list[int], skip_special: bool = True) -> list[str]:
    detokenizer = make_detokenizer(tokenizer, skip_special=skip_special)
    out = [detokenizer.push(i) for i in ids]
    return [*out, detokenizer.flush()]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), skip_special=st.booleans())
def test_deltas_join_to_the_decode(name: str, data: st.DataObject, skip_special: bool) -> None:
    """For any ids, so also for bytes in any order."""
    tokenizer = tiny(name)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=60))
    joined = "".join(deltas(tokenizer, ids, skip_special))
    assert joined == tokenizer.decode(ids, skip_special=skip_special)
    if ids[:1] != [tokenizer.bos_id]:
        raw = b"".join(tokenizer.decode_bytes(i, skip_special=skip_special) for i in ids)
        assert joined == raw.decode("utf-8", "replace")


@given(
    st.lists(st.sampled_from([0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 0x41]))
)
def test_broken_bytes(values: list[int]) -> None:
    """Every way to break a character in two, where random ids seldom find one."""
    tokenizer = tiny("llama")
    ids = [5 + value for value in values]
    assert "".join(deltas(tokenizer, ids)) == bytes(values).decode("utf-8", "replace")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["é€😀", "👨‍👩‍👧‍👦 a", "你好。", "e\u0301"])
def test_only_whole_characters(name: str, text: str) -> None:
    tokenizer = tiny(name)
    out = deltas(tokenizer, tokenizer.encode(text, add_special=False))
    assert "\ufffd" not in "".join(out)
    assert "".join(out).lstrip() == text
    assert out[-1] == ""


def test_an_unfinished_character_comes_with_the_flush() -> None:
    tokenizer = tiny("llama")
    detokenizer = make_detokenizer(tokenizer)
    assert [detokenizer.push(5 + byte) for byte in b"\xf0\x9f\x98"] == ["", "", ""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_space_after_bos() -> None:
    """A whole text begins after BOS, with a space that encoding added; an answer's own stays."""
    tokenizer = tiny("llama")
    ids = tokenizer.encode("the mill")
    assert ids[0] == tokenizer.bos_id
    assert "".join(deltas(tokenizer, ids)) == tokenizer.decode(ids) == "the mill"
    assert "".join(deltas(tokenizer, ids[1:])) == tokenizer.decode(ids[1:]) == " the mill"
    assert tokenizer.decode(ids, skip_special=False) == "<s>the mill"
    assert "".join(deltas(tokenizer, ids, skip_special=False)) == "<s>the mill"


def test_control_tokens_are_left_out() -> None:
    tokenizer = tiny("gpt2")
    ids = tokenizer.encode("a<|im_end|>b")
    assert "".join(deltas(tokenizer, ids)) == "ab"
    assert "".join(deltas(tokenizer, ids, skip_special=False)) == "a<|im_end|>b"


@settings(max_examples=200)
@given(data=st.data())
def test_real_vocabulary(smollm2: VocabularyTokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, smollm2.vocab_size - 1), max_size=80))
    assert "".join(deltas(smollm2, ids)) == smollm2.decode(ids)


def test_real_vocabulary_on_hard_strings(smollm2: VocabularyTokenizer) -> None:
    for text in HARD_STRINGS:
        ids = smollm2.encode(text)
        assert "".join(deltas(smollm2, ids)) == smollm2.decode(ids)
