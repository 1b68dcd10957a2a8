"""Builds a byte-level BPE tokenizer from the vocabulary of a GGUF file."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.errors import ModelFormatError
from headrace.text.library import LibraryTokenizer
from headrace.text.pieces import byte_alphabet, byte_level_bytes
from headrace.text.splits import SPLITS, make_pre_tokenizer
from headrace.text.vocabulary import SpecialIds, TokenKind
from headrace.weights.base import TokenizerSpec

if TYPE_CHECKING:
    from tokenizers.models import BPE

_SPECIAL_KINDS = (
    TokenKind.UNKNOWN,
    TokenKind.CONTROL,
    TokenKind.USER_DEFINED,
    TokenKind.UNUSED,
)


def load_gguf_bpe(spec: TokenizerSpec, vocab_size: int) -> LibraryTokenizer:
    """Raises ModelFormatError for an unknown split, or a vocabulary that contradicts itself."""
    from tokenizers import AddedToken, Tokenizer

    split = SPLITS.get(spec.pre)
    if split is None:
        raise ModelFormatError(
            f"The tokenizer splits words in a way named {spec.pre!r}; supported are "
            f"{', '.join(SPLITS)}."
        )
    with _collector_paused():
        texts = _decoded(spec.tokens, "token")
        vocab = {text: i for i, text in enumerate(texts)}
        model = _build_model(vocab, spec.merges, split.ignore_merges)
    if len(vocab) != len(texts):
        raise ModelFormatError("Two tokens of the vocabulary have the same text.")
    kinds = {
        i: TokenKind(kind) for i, kind in enumerate(spec.token_types) if kind in _SPECIAL_KINDS
    }

    def build(skipped: tuple[TokenKind, ...]) -> Tokenizer:
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = make_pre_tokenizer(split)
        tokenizer.add_special_tokens(
            [
                AddedToken(texts[i], normalized=False)
                for i, kind in kinds.items()
                if kind not in skipped and texts[i]
            ]
        )
        return tokenizer

    alphabet = byte_alphabet()
    spells_wide = all(alphabet[byte] in vocab for byte in range(0x80, 0xC0))
    # A character of the alphabet is a byte, so len() counts bytes.
    longest_word = max(map(len, texts))
    longest_special = max((len(texts[i].encode()) for i in kinds), default=1)
    return LibraryTokenizer(
        build((TokenKind.UNUSED,)),
        build((TokenKind.UNUSED, TokenKind.CONTROL, TokenKind.UNKNOWN)),
        vocab_size=vocab_size,
        ids=SpecialIds.of(spec, lambda text: _control_id(text, vocab, kinds)),
        kinds=kinds,
        to_bytes=byte_level_bytes,
        longest_bytes=max(longest_word, longest_special) if spells_wide else None,
        dropped="".join(chr(byte) for byte in range(0x80) if alphabet[byte] not in vocab),
        cuttable=True,
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Tens of thousands of new tuples make the garbage collector a third of the loading time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _build_model(vocab: dict[str, int], merges: list[bytes], ignore_merges: bool) -> BPE:
    from tokenizers.models import BPE

    texts = _decoded(merges, "merge")
    try:
        pairs = [(left, right) for left, right in map(str.split, texts)]
    except ValueError:
        raise ModelFormatError("A merge of the tokenizer is not two tokens and a space.") from None
    try:
        return BPE(vocab, pairs, ignore_merges=ignore_merges)
    except Exception as error:  # the library raises plain Exception
        raise ModelFormatError(
            f"The merges of the tokenizer do not fit its vocabulary: {str(error)[:200]}."
        ) from None


def _control_id(text: str, vocab: dict[str, int], kinds: dict[int, TokenKind]) -> int | None:
    found = vocab.get(text)
    return found if found is not None and kinds.get(found) == TokenKind.CONTROL else None


def _decoded(items: list[bytes], what: str) -> list[str]:
    try:
        return [item.decode() for item in items]
    except UnicodeDecodeError:
        raise ModelFormatError(f"A {what} of the vocabulary is not UTF-8.") from None
