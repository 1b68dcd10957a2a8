"""How byte-level BPE cuts a text into words before merging, and where a text may be cut at all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class Split:
    """`pattern` finds the words; `digits` first sets every number character apart.

    `ignore_merges`: a word that is a token is that token, whatever the merges make of it.
    """

    pattern: str
    digits: bool = False
    ignore_merges: bool = False


_GPT2 = Split(GPT2_PATTERN)
_SMOLLM = Split(GPT2_PATTERN, digits=True)
_QWEN2 = Split(f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}|{_MARKS_AND_SPACE}")
_LLAMA3 = Split(f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}{{1,3}}|{_MARKS_AND_SPACE}", ignore_merges=True)

# `tokenizer.ggml.pre` -> split: llama-vocab.cpp, llm_tokenizer_bpe and the table of names.
SPLITS = {
    "gpt-2": _GPT2,
    "smollm": _SMOLLM,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


def make_pre_tokenizer(split: Split) -> PreTokenizer:
    """The library's form of a split: cut, then write bytes in GPT-2's alphabet."""
    from tokenizers import Regex, pre_tokenizers

    words: list[PreTokenizer]
    if split.pattern == GPT2_PATTERN:
        words = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    else:
        words = [
            pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    if split.digits:
        words.insert(0, pre_tokenizers.Digits(individual_digits=True))
    return pre_tokenizers.Sequence(words)


# Where every split above ends a word, whatever stands around: no word holds a character and then a
# blank, nor a letter and then a mark, and no look-ahead of theirs can reach across. The letters
# are those that every version of Unicode knows as such.
_SAFE_CUT = re.compile(
    r"(?<=\S)(?=[ \t])"
    r"|(?<=[A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3])"
    r"(?=[,.!?;:()\u3001\u3002\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f])"
)


def may_be_cut(text: str) -> bool:
    """True if a safe cut lies inside `text` (a special token with one must not be cut there)."""
    return _SAFE_CUT.search(text, 1) is not None


def cut_safely(text: str, target_len: int, uncut: Sequence[str]) -> Iterator[str]:
    """Pieces of about `target_len` characters whose encodings, joined, are that of the text.

    A piece is longer where no safe cut is near. `uncut` are texts of special tokens that must stay
    whole. Linear time.
    """
    start = 0
    while len(text) - start > target_len:
        end = _next_cut(text, start + target_len, uncut)
        if end is None:
            break
        yield text[start:end]
        start = end
    yield text[start:]


def _next_cut(text: str, at: int, uncut: Sequence[str]) -> int | None:
    while (match := _SAFE_CUT.search(text, at)) is not None:
        cut = match.start()
        if not any(
            text.find(token, max(0, cut - len(token) + 1), cut + len(token) - 1) >= 0
            for token in uncut
        ):
            return cut
        at = cut + 1
    return None
