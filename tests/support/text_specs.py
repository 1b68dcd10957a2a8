"""TokenizerSpecs made by hand, with what a test needs, and the tokenizer of a model file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace.text.tokenizer import load_tokenizer
from headrace.text.vocabulary import VocabularyTokenizer
from headrace.weights.base import TokenizerSpec
from headrace.weights.open import open_source
from tests.support.vocab import Vocabulary, byte_alphabet, gpt2_vocabulary, llama_vocabulary

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def spec_of(vocab: Vocabulary, pre: str = "gpt-2") -> TokenizerSpec:
    return TokenizerSpec(
        model=vocab.model,
        pre=pre if vocab.model == "gpt2" else "",
        tokens=[token.encode() for token in vocab.tokens],
        scores=vocab.scores,
        token_types=vocab.token_types,
        merges=[merge.encode() for merge in vocab.merges],
        bos_id=vocab.bos_id,
        eos_ids=(vocab.eos_id,),
        unk_id=vocab.unk_id,
        pad_id=vocab.pad_id,
        add_bos=vocab.model == "llama",
        add_space_prefix=vocab.model == "llama",
    )


def gpt2_spec(pre: str = "gpt-2") -> TokenizerSpec:
    return spec_of(gpt2_vocabulary(), pre)


def llama_spec(*, add_space_prefix: bool = True) -> TokenizerSpec:
    return replace(spec_of(llama_vocabulary()), add_space_prefix=add_space_prefix)


def bpe_spec(
    merges: Sequence[tuple[str, str]] = (),
    *,
    pre: str = "gpt-2",
    special: Sequence[tuple[str, int]] = (),
    alphabet: Sequence[str] | None = None,
) -> TokenizerSpec:
    """All byte characters, then one token for each merge, then (text, type) of the special ones."""
    characters = byte_alphabet() if alphabet is None else alphabet
    merged = list(dict.fromkeys(left + right for left, right in merges))
    tokens = [*characters, *merged, *(text for text, _ in special)]
    types = [NORMAL] * (len(tokens) - len(special)) + [kind for _, kind in special]
    return TokenizerSpec(
        model="gpt2",
        pre=pre,
        tokens=[token.encode() for token in tokens],
        token_types=types,
        merges=[f"{left} {right}".encode() for left, right in merges],
    )


def spm_spec(
    pieces: Sequence[tuple[str, float]],
    *,
    special: Sequence[tuple[str, int]] = (),
    with_bytes: bool = True,
    unk: bool = True,
    add_space_prefix: bool = False,
) -> TokenizerSpec:
    """`<unk>`, the byte tokens, (text, type) of the special ones, then (piece, score)."""
    head = [("<unk>", UNKNOWN)] if unk else []
    raw = [(f"<0x{byte:02X}>", BYTE) for byte in range(256)] if with_bytes else []
    fixed = [*head, *raw, *special]
    return TokenizerSpec(
        model="llama",
        tokens=[text.encode() for text, _ in fixed] + [piece.encode() for piece, _ in pieces],
        scores=[0.0] * len(fixed) + [score for _, score in pieces],
        token_types=[kind for _, kind in fixed] + [NORMAL] * len(pieces),
        unk_id=0 if unk else None,
        add_space_prefix=add_space_prefix,
    )


def load_model_tokenizer(path: Path) -> VocabularyTokenizer:
    source = open_source(path)
    try:
        return load_tokenizer(source.tokenizer, source.config.vocab_size)
    finally:
        source.close()
