"""Byte-level BPE from a GGUF vocabulary: merges, special tokens, bounds, and what is refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ModelFormatError, RequestError
from headrace.text import library
from headrace.text.pieces import byte_alphabet, byte_level_bytes
from headrace.text.splits import SPLITS, cut_safely
from headrace.text.tokenizer import load_tokenizer
from headrace.text.vocabulary import VocabularyTokenizer
from headrace.weights.base import TokenizerSpec
from tests.support.hard_strings import HARD_STRINGS
from tests.support.text_specs import CONTROL, UNUSED, USER_DEFINED, bpe_spec, gpt2_spec

NAMES = sorted(SPLITS)


@cache
def tiny(pre: str = "gpt-2") -> VocabularyTokenizer:
    return load(gpt2_spec(pre))


def load(spec: TokenizerSpec) -> VocabularyTokenizer:
    return load_tokenizer(spec, len(spec.tokens))


def words(tokenizer: VocabularyTokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, add_special=False)]


def test_merges_go_by_rank() -> None:
    tokenizer = load(bpe_spec([("b", "c"), ("a", "b"), ("a", "bc")]))
    assert words(tokenizer, "abc") == ["abc"]
    assert words(tokenizer, "abab") == ["ab", "ab"]
    tokenizer = load(bpe_spec([("a", "b"), ("b", "c")]))
    assert words(tokenizer, "abc") == ["ab", "c"]


def test_only_llama3_takes_a_word_that_no_merge_makes() -> None:
    # x, y and z can each be joined with nothing, but the whole word is a token.
    spec = bpe_spec([("a", "b")])
    spec = replace(
        spec, tokens=[*spec.tokens, b"xyz"], token_types=[*spec.token_types, 1], pre="llama-bpe"
    )
    assert words(load(spec), "xyz") == ["xyz"]
    assert words(load(replace(spec, pre="gpt-2")), "xyz") == ["x", "y", "z"]


@pytest.mark.parametrize("pre", NAMES)
def test_round_trip(pre: str) -> None:
    tokenizer = tiny(pre)
    for text in HARD_STRINGS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special=False) == text
        assert all(0 <= i < tokenizer.vocab_size for i in ids)


@given(st.text(), st.sampled_from(NAMES), st.booleans())
def test_round_trip_of_any_text(text: str, pre: str, parse_special: bool) -> None:
    tokenizer = tiny(pre)
    ids = tokenizer.encode(text, parse_special=parse_special)
    assert tokenizer.decode(ids, skip_special=False) == text


PARTS = [
    " ",
    "  ",
    "\n",
    "\t",
    "a",
    "the",
    "1",
    "22",
    ".",
    "!",
    "'s",
    "é",
    "你",
    "。",
    "<|im_end|>",
]
texts = st.lists(st.sampled_from(PARTS), max_size=60).map("".join)


@given(texts, st.sampled_from(NAMES), st.integers(1, 9), st.booleans())
def test_pieces_make_no_difference(
    text: str, pre: str, piece_len: int, parse_special: bool
) -> None:
    tokenizer = tiny(pre)
    whole = tokenizer.encode(text, parse_special=parse_special)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "PIECE_LEN", piece_len)
        assert tokenizer.encode(text, parse_special=parse_special) == whole
        for limit in (0, len(whole) - 1, len(whole), len(whole) + 3):
            got = tokenizer.encode_bounded(text, limit, parse_special=parse_special)
            assert got == (whole if len(whole) <= limit else None)


def test_a_special_token_that_could_be_cut_is_not() -> None:
    spec = bpe_spec(special=[("<a b,c>", CONTROL), ("x y", USER_DEFINED)])
    tokenizer = load(spec)
    text = "<a b,c>x y x yx y, <a b,c" * 5
    whole = tokenizer.encode(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "PIECE_LEN", 1)
        assert tokenizer.encode(text) == whole
        assert tokenizer.decode(whole, skip_special=False) == text


def test_special_tokens() -> None:
    tokenizer = load(bpe_spec(special=[("<s>", CONTROL), ("<t>", USER_DEFINED), ("<p>", UNUSED)]))
    control, user, unused = 256, 257, 258
    ids = tokenizer.encode("<s><t><p>")
    assert ids[:2] == [control, user]
    assert unused not in ids
    plain = tokenizer.encode("<s><t><p>", parse_special=False)
    assert control not in plain
    assert user in plain
    assert tokenizer.decode(plain) == "<s><t><p>"
    assert tokenizer.decode(ids) == "<t><p>"
    assert tokenizer.decode(ids, skip_special=False) == "<s><t><p>"
    assert tokenizer.decode_bytes(unused) == b""
    assert tokenizer.token_text(control) == "<s>"
    assert tokenizer.token_id("<s>") == control
    assert tokenizer.token_id("a") is None


def test_ids_around_the_text() -> None:
    spec = replace(gpt2_spec(), add_bos=True, add_eos=True)
    tokenizer = load(spec)
    ids = tokenizer.encode("a")
    assert (ids[0], ids[-1]) == (spec.bos_id, spec.eos_ids[0])
    assert tokenizer.add_bos
    assert tokenizer.encode("a", add_special=False) == ids[1:-1]
    assert tokenizer.encode_bounded("a", 3) == ids
    assert tokenizer.encode_bounded("a", 2) is None
    assert tokenizer.encode_bounded("", 1) is None
    assert tokenizer.encode_bounded("", 2) == [spec.bos_id, spec.eos_ids[0]]


def test_ends_of_generation() -> None:
    control = ["<|im_end|>", "<|eot_id|>", "</s>", "<|end|>", "<other>"]
    special = [*((text, CONTROL) for text in control), ("<|endoftext|>", USER_DEFINED)]
    tokenizer = load(bpe_spec(special=special))
    # Only control tokens: a vocabulary of code may hold </s> as text.
    assert {tokenizer.token_text(i) for i in tokenizer.eos_ids} == set(control) - {"<other>"}
    assert tokenizer.bos_id is None


def test_ends_of_a_vocabulary_with_channels() -> None:
    """Where messages end with <|end|>, answers end with <|return|> or <|call|>."""
    special = [(text, CONTROL) for text in ("<|return|>", "<|call|>", "<|end|>")]
    tokenizer = load(bpe_spec(special=special))
    assert {tokenizer.token_text(i) for i in tokenizer.eos_ids} == {"<|return|>", "<|call|>"}


def test_the_files_own_end_comes_first() -> None:
    spec = replace(bpe_spec(special=[("<|im_end|>", CONTROL), ("<x>", 3)]), eos_ids=(256, 257))
    assert load(spec).eos_id == 256
    assert load(replace(spec, eos_id=257)).eos_id == 257


def test_lone_surrogates_become_replacement_characters() -> None:
    tokenizer = tiny()
    ids = tokenizer.encode("a\ud800b\udc00")
    assert tokenizer.decode(ids) == "a\ufffdb\ufffd"
    # A pair of them is the character that it stands for in UTF-16.
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00")) == "😀"
    assert tokenizer.encode_bounded("\udfff", 10) == tokenizer.encode("\ufffd")


def test_long_text_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny()
    monkeypatch.setattr(library, "cut_safely", None)  # reading would fail
    longest = tokenizer.max_token_bytes
    assert tokenizer.encode_bounded("a" * (10 * longest + 1), 10) is None
    assert tokenizer.encode_bounded("word " * 1_000_000, 8192) is None


def test_work_ends_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long text that could fit, no more is read than shows that it does not."""
    read: list[str] = []

    def watched(*args: object) -> object:
        for piece in cut_safely(*args):  # type: ignore[arg-type]  # passed through
            read.append(piece)
            yield piece

    monkeypatch.setattr(library, "cut_safely", watched)
    tokenizer = tiny()
    text = "word " * 100_000
    assert tokenizer.encode_bounded(text, len(text) // tokenizer.max_token_bytes + 1) is None
    assert sum(map(len, read)) < len(text) // 2


def test_vocabulary_without_some_bytes() -> None:
    """SmolLM2's lacks six control characters: a text of them has no tokens at all."""
    alphabet = [char for byte, char in enumerate(byte_alphabet()) if byte not in (4, 0xF5)]
    tokenizer = load(bpe_spec(alphabet=alphabet))
    assert tokenizer.encode("\x04" * 1000) == []
    assert tokenizer.encode_bounded("\x04" * 100_000, 0) == []
    assert tokenizer.encode_bounded("\x04" * 100_000 + "a", 1) == tokenizer.encode("a")
    assert tokenizer.encode_bounded("\x04" * 100_000 + "a b", 1) is None
    assert tokenizer.decode(tokenizer.encode("a\x04b")) == "ab"


def test_other_threads_run_while_a_text_is_encoded() -> None:
    tokenizer = tiny()
    text = "the wheel " * 30_000
    turns = 0
    running = threading.Event()
    done = threading.Event()

    def count() -> None:
        nonlocal turns
        running.set()
        while not done.is_set():
            turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    running.wait()
    before = turns
    tokenizer.encode(text)
    during = turns - before
    done.set()
    thread.join()
    assert during > 1000


def test_ids_out_of_range() -> None:
    tokenizer = tiny()
    for token_id in (-1, tokenizer.vocab_size):
        with pytest.raises(RequestError, match=f"There is no token {token_id}"):
            tokenizer.decode([token_id])
    wide = load_tokenizer(gpt2_spec(), 400)
    assert wide.decode_bytes(399, skip_special=False) == b""


@pytest.mark.parametrize("pre", ["", "default", "deepseek-llm", "gpt2", "Smollm"])
def test_unknown_split_is_not_guessed(pre: str) -> None:
    with pytest.raises(ModelFormatError, match=f"named '{pre}'; supported are gpt-2, smollm"):
        load(gpt2_spec(pre))


def changed(**changes: object) -> TokenizerSpec:
    return replace(gpt2_spec(), **changes)  # type: ignore[arg-type]  # names come from the tests


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (changed(model="bert"), "of the kind 'bert'"),
        (changed(tokens=[b"\xff"] * 320), "token of the vocabulary is not UTF-8"),
        (changed(tokens=[b"a"] * 320, merges=[]), "Two tokens of the vocabulary"),
        (changed(merges=[b"\xff a"]), "merge of the vocabulary is not UTF-8"),
        (changed(merges=[b"ab"]), "not two tokens and a space"),
        (changed(merges=[b"a b c"]), "not two tokens and a space"),
        (changed(merges=[b""]), "not two tokens and a space"),
        (changed(merges=[b"zz yy"]), "do not fit its vocabulary"),
        (changed(token_types=[]), "320 tokens, but 0 token types"),
        (changed(unk_id=320), "Special token 320 is outside"),
    ],
)
def test_hostile_vocabulary(spec: TokenizerSpec, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        load_tokenizer(spec, 320)


def test_alphabet() -> None:
    assert len(set(byte_alphabet())) == 256
    assert byte_level_bytes("".join(byte_alphabet())) == bytes(range(256))
    assert byte_level_bytes("Ġa€") == b" a" + "€".encode()
