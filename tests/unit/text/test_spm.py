"""The native SentencePiece-style encoder against a plain twin, and its edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._native import SpmEncoder
from headrace.errors import ModelFormatError
from headrace.text.tokenizer import load_tokenizer
from headrace.text.vocabulary import VocabularyTokenizer
from headrace.weights.base import TokenizerSpec
from tests.support.text_specs import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    llama_spec,
    spm_spec,
)

SPACE = "\u2581"


def load(spec: TokenizerSpec) -> VocabularyTokenizer:
    return load_tokenizer(spec, len(spec.tokens))


def twin(spec: TokenizerSpec, text: str, *, parse_special: bool) -> list[int]:
    """sentencepiece's algorithm without an index, a queue or words: quadratic and plain."""
    stops = {CONTROL, UNKNOWN, USER_DEFINED} if parse_special else {USER_DEFINED}
    special = {
        token.decode(): i
        for i, token in enumerate(spec.tokens)
        if spec.token_types[i] in stops and token
    }
    ids: list[int] = []
    start = at = 0
    after_special = True
    while at <= len(text):
        found = max((s for s in special if text.startswith(s, at)), key=len, default=None)
        if found is None and at < len(text):
            at += 1
            continue
        if at > start:
            prefix = " " if spec.add_space_prefix and after_special else ""
            ids += twin_fragment(spec, (prefix + text[start:at]).replace(" ", SPACE))
            after_special = False
        if found is None:
            break
        ids.append(special[found])
        after_special = True
        at += len(found)
        start = at
    return ids


def twin_fragment(spec: TokenizerSpec, text: str) -> list[int]:
    pieces = {
        token.decode(): i
        for i, token in enumerate(spec.tokens)
        if spec.token_types[i] in (NORMAL, USER_DEFINED, UNUSED) and token
    }
    symbols = list(text)
    origins: dict[str, tuple[str, str]] = {}
    while True:
        best: tuple[float, int] | None = None
        for i in range(len(symbols) - 1):
            found = pieces.get(symbols[i] + symbols[i + 1])
            if found is not None and (best is None or spec.scores[found] > best[0]):
                best = (spec.scores[found], i)
            if found is not None and spec.token_types[found] == UNUSED:
                origins[symbols[i] + symbols[i + 1]] = (symbols[i], symbols[i + 1])
        if best is None:
            break
        symbols[best[1] : best[1] + 2] = [symbols[best[1]] + symbols[best[1] + 1]]
    return [i for symbol in symbols for i in twin_ids(spec, pieces, origins, symbol)]


def twin_ids(
    spec: TokenizerSpec, pieces: dict[str, int], origins: dict[str, tuple[str, str]], symbol: str
) -> list[int]:
    if symbol in origins:
        return [i for part in origins[symbol] for i in twin_ids(spec, pieces, origins, part)]
    if symbol in pieces:
        return [pieces[symbol]]
    raw = [f"<0x{byte:02X}>".encode() for byte in symbol.encode()]
    if all(token in spec.tokens for token in raw):
        return [spec.tokens.index(token) for token in raw]
    assert spec.unk_id is not None
    return [spec.unk_id]


SMALL = "ab" + SPACE + "é"
piece_texts = st.text(alphabet=SMALL, min_size=1, max_size=6)


@st.composite
def vocabularies(draw: st.DrawFn) -> TokenizerSpec:
    """Few characters and many pieces, equal scores too, so that merges compete everywhere."""
    texts = draw(st.lists(piece_texts, min_size=1, max_size=24, unique=True))
    scores = [float(draw(st.integers(-4, 0))) for _ in texts]
    special = draw(st.sampled_from([(), (("<s>", CONTROL),), (("<s>", CONTROL), ("<b", 4))]))
    spec = spm_spec(
        list(zip(texts, scores, strict=True)),
        special=special,
        with_bytes=draw(st.booleans()),
        add_space_prefix=draw(st.booleans()),
    )
    first = len(spec.tokens) - len(texts)
    kinds = [draw(st.sampled_from([NORMAL, NORMAL, NORMAL, UNUSED])) for _ in texts]
    return replace(spec, token_types=spec.token_types[:first] + kinds)


@given(vocabularies(), st.text(alphabet=SMALL + " <s>cd😀", max_size=40), st.booleans())
def test_equals_the_twin(spec: TokenizerSpec, text: str, parse_special: bool) -> None:
    if UNUSED in spec.token_types and len(set(spec.scores)) != len(spec.scores):
        # An unused piece that can be taken apart in two ways follows the order of the queue.
        spec = replace(spec, token_types=[NORMAL if k == UNUSED else k for k in spec.token_types])
    got = load(spec).encode(text, add_special=False, parse_special=parse_special)
    assert got == twin(spec, text, parse_special=parse_special)


@given(st.text(max_size=60), st.booleans())
def test_tiny_model_equals_the_twin(text: str, add_space_prefix: bool) -> None:
    spec = llama_spec(add_space_prefix=add_space_prefix)
    got = load(spec).encode(text, add_special=False)
    assert got == twin(spec, text, parse_special=True)


def test_ties_go_to_the_left() -> None:
    # Any order of the two ways to make aaa would give a, aaa, a a here or there.
    spec = spm_spec([("a", -9.0), ("aa", -1.0), ("aaa", -2.0)])
    ids = load(spec).encode("aaaaaaa", add_special=False)
    assert [spec.tokens[i] for i in ids] == [b"aa", b"aa", b"aaa"]


def test_a_better_pair_further_right_goes_first() -> None:
    spec = spm_spec([("ab", -2.0), ("bc", -1.0), ("a", -9.0), ("b", -9.0), ("c", -9.0)])
    ids = load(spec).encode("abc", add_special=False)
    assert [spec.tokens[i] for i in ids] == [b"a", b"bc"]


def test_pieces_across_words() -> None:
    """A piece may hold a space after another character: gemma's vocabulary has one."""
    pieces = [(f">{SPACE}</", -1.0), (f">{SPACE}", -0.5), ("</", -0.4)]
    spec = spm_spec([*pieces, (">", -9.0), (SPACE, -9.0), ("<", -9.0), ("/", -9.0)])
    ids = load(spec).encode("> </", add_special=False)
    assert [spec.tokens[i].decode() for i in ids] == [f">{SPACE}</"]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", []),
        ("a", ["_a"]),
        (" a", ["_", "_a"]),
        ("a a", ["_a", "_a"]),
        ("<s>a", ["<s>", "_a"]),
        ("a<s>a", ["_a", "<s>", "_a"]),
        ("a<u>a", ["_a", "<u>", "_a"]),
        ("<s><s>", ["<s>", "<s>"]),
    ],
)
def test_space_prefix(text: str, want: list[str]) -> None:
    """Before the text and after each special token, not before one: llama.cpp does the same."""
    spec = spm_spec(
        [(f"{SPACE}a", -1.0), (SPACE, -2.0), ("a", -3.0)],
        special=[("<s>", CONTROL), ("<u>", USER_DEFINED)],
        add_space_prefix=True,
    )
    ids = load(spec).encode(text, add_special=False)
    assert [spec.tokens[i].decode().replace(SPACE, "_") for i in ids] == want


def test_no_space_prefix() -> None:
    spec = spm_spec([(f"{SPACE}a", -1.0), (SPACE, -2.0), ("a", -3.0)])
    ids = load(spec).encode("a a", add_special=False)
    assert [spec.tokens[i].decode() for i in ids] == ["a", f"{SPACE}a"]


def test_byte_fallback() -> None:
    tokenizer = load(spm_spec([("a", -1.0)]))
    ids = tokenizer.encode("a€", add_special=False)
    assert [tokenizer.token_text(i) for i in ids] == ["a", "\ufffd", "\ufffd", "\ufffd"]
    assert tokenizer.decode(ids) == "a€"
    assert b"".join(map(tokenizer.decode_bytes, ids)) == "a€".encode()


def test_unknown_characters_without_byte_tokens() -> None:
    spec = spm_spec([("a", -1.0)], with_bytes=False)
    assert load(spec).encode("a€€a", add_special=False) == [1, 0, 0, 1]


def test_control_text_is_never_merged_into_the_control_token() -> None:
    """llama.cpp would find `<s>` by merging; a request could then forge a turn."""
    pieces = [("<", -1.0), ("s", -1.0), (">", -1.0), ("<s", -0.1)]
    spec = spm_spec(pieces, special=[("<s>", CONTROL)])
    tokenizer = load(spec)
    control = spec.tokens.index(b"<s>")
    assert tokenizer.encode("<s>", add_special=False) == [control]
    assert control not in tokenizer.encode("<s>", add_special=False, parse_special=False)
    assert tokenizer.decode(tokenizer.encode("<s>", parse_special=False)) == "<s>"


def test_longest_special_token_wins() -> None:
    spec = spm_spec(
        [("\n", -1.0)],
        special=[("\n\n", USER_DEFINED), ("\n\n\n", USER_DEFINED), ("x", USER_DEFINED)],
    )
    ids = load(spec).encode("\n" * 8 + "x", add_special=False)
    assert [spec.tokens[i] for i in ids] == [b"\n\n\n", b"\n\n\n", b"\n\n", b"x"]


@given(st.text(alphabet="ab <s>\n€", max_size=60), st.integers(0, 70))
def test_bounded(text: str, limit: int) -> None:
    tokenizer = load(llama_spec())
    ids = tokenizer.encode(text)
    assert tokenizer.encode_bounded(text, limit) == (ids if len(ids) <= limit else None)


def damaged(**changes: object) -> TokenizerSpec:
    return replace(llama_spec(), **changes)  # type: ignore[arg-type]  # names come from the tests


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (damaged(scores=[0.0]), "one score and one type"),
        (damaged(token_types=[1]), "416 tokens, but 1 token types"),
        (damaged(scores=[float("nan")] * 416), "not a finite number"),
        (damaged(scores=[float("inf")] * 416), "not a finite number"),
        (damaged(token_types=[9] * 416), "token types is not known"),
        (damaged(token_types=[-1] * 416), "token types is not known"),
        (damaged(tokens=[b"x"] * 416, token_types=[1] * 416), "repeats the text"),
        (damaged(token_types=[BYTE] * 416), "byte token without a byte"),
        (damaged(tokens=[], scores=[], token_types=[]), "0 tokens"),
        (damaged(bos_id=416), "Special token 416 is outside"),
        (damaged(eos_ids=(-1,)), "Special token -1 is outside"),
        (damaged(bos_id=None), "asks for a BOS token"),
        (damaged(add_eos=True, eos_ids=()), "asks for an EOS token"),
        (spm_spec([("a", 0.0)], with_bytes=False, unk=False), "neither a token for each byte"),
    ],
)
def test_hostile_vocabulary(spec: TokenizerSpec, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        load_tokenizer(spec, 416)


def test_more_tokens_than_rows() -> None:
    with pytest.raises(ModelFormatError, match="416 tokens, the embedding table 415 rows"):
        load_tokenizer(llama_spec(), 415)


def test_rows_without_a_token() -> None:
    tokenizer = load_tokenizer(llama_spec(), 420)
    assert tokenizer.vocab_size == 420
    assert tokenizer.decode_bytes(419) == tokenizer.decode_bytes(419, skip_special=False) == b""


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=20), st.text(max_size=30))
def test_any_bytes_as_tokens(tokens: Sequence[bytes], text: str) -> None:
    """Tokens need not be UTF-8, and empty ones stand for nothing."""
    unique = list(dict.fromkeys(tokens))
    encoder = SpmEncoder(
        [b"<unk>", *unique],
        [0.0] * (len(unique) + 1),
        [UNKNOWN] + [NORMAL] * len(unique),
        unk_id=0,
        add_space_prefix=False,
    )
    packed = encoder.encode(text, parse_special=True, limit=1000)
    assert packed is not None
    for i in memoryview(packed).cast("i"):
        assert 0 <= i <= len(unique)
