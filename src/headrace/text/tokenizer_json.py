"""Reads a tokenizer.json: what the `tokenizers` library runs, and how its tokens spell bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.errors import ModelFormatError
from headrace.text.library import LibraryTokenizer
from headrace.text.pieces import SPACE_MARK, byte_alphabet, byte_level_bytes, byte_token_value
from headrace.text.splits import SPLITS
from headrace.text.vocabulary import SpecialIds, TokenKind
from headrace.weights.base import TokenizerSpec

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

# The same words as `splits.SPLITS`, as tokenizer.json files write them.
_KNOWN_PATTERNS = {split.pattern for split in SPLITS.values()} | {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    + repeat
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for repeat in ("", "{1,3}")
}
# NFC makes a text at most three times shorter, in bytes.
_NFC_FACTOR = 4


def load_tokenizer_json(spec: TokenizerSpec, vocab_size: int) -> LibraryTokenizer:
    """Raises ModelFormatError for a damaged file, or tokens that do not spell bytes or pieces."""
    from tokenizers import Tokenizer

    try:
        special = Tokenizer.from_buffer(spec.json_bytes or b"")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # plain Exception, or a panic, which is no Exception
        raise ModelFormatError(f"tokenizer.json cannot be read: {str(error)[:200]}.") from None
    special.no_truncation()
    special.no_padding()
    added = special.get_added_tokens_decoder()
    vocab = special.get_vocab(with_added_tokens=True)
    last_id = max(vocab.values(), default=-1)
    if not 0 <= last_id < vocab_size:
        raise ModelFormatError(
            f"tokenizer.json has token {last_id}, but the embedding table {vocab_size} rows."
        )
    kinds = {
        i: TokenKind.CONTROL if token.special else TokenKind.USER_DEFINED
        for i, token in added.items()
    }
    decoders = _components(special.decoder)
    words = _components(special.pre_tokenizer)
    exact_added = not any(
        token.lstrip or token.rstrip or token.single_word for token in added.values()
    )
    lossless = exact_added and _keeps_every_byte(special, vocab)
    longest = max(len(text.encode()) for text in vocab)
    return LibraryTokenizer(
        special,
        _plain_twin(special, list(added.values())),
        vocab_size=vocab_size,
        ids=SpecialIds.of(spec, lambda text: _control_id(text, vocab, kinds)),
        kinds=kinds,
        to_bytes=_spelling(decoders),
        longest_bytes=longest * _NFC_FACTOR if lossless else None,
        cuttable=lossless and _cuts_known_words(words),
        space_prefixed=any(_strips_first_space(part) for part in decoders),
    )


def _components(component: Any) -> list[dict[str, Any]]:
    """A normalizer, pre-tokenizer or decoder as the JSON objects of its steps, in order."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    if state["type"] != "Sequence":
        return [state]
    parts: list[dict[str, Any]] = next(v for v in state.values() if isinstance(v, list))
    return parts


def _spelling(decoders: list[dict[str, Any]]) -> Callable[[str], bytes]:
    types = {part["type"] for part in decoders}
    if "ByteLevel" in types:
        return byte_level_bytes
    if types & {"ByteFallback", "Metaspace"}:
        return _piece_bytes
    raise ModelFormatError(
        f"The decoder of tokenizer.json ({', '.join(sorted(types)) or 'none'}) is not supported; "
        "ByteLevel, ByteFallback and Metaspace are."
    )


def _piece_bytes(text: str) -> bytes:
    value = byte_token_value(text)
    return text.replace(SPACE_MARK, " ").encode() if value is None else bytes([value])


def _strips_first_space(part: dict[str, Any]) -> bool:
    if part["type"] == "Strip":
        return bool(part["content"] == " " and part["start"])
    is_metaspace = part["type"] == "Metaspace"
    return is_metaspace and bool(part.get("prepend_scheme", "always") != "never")


def _keeps_every_byte(tokenizer: Tokenizer, vocab: dict[str, int]) -> bool:
    """True if no part of a text is dropped, and none but NFC makes it shorter."""
    for part in _components(tokenizer.normalizer):
        spaces_only = part["type"] == "Replace" and part["content"] == SPACE_MARK
        if not spaces_only and part["type"] not in ("NFC", "Prepend"):
            return False
    if all(char in vocab for char in byte_alphabet()):
        return True
    fallback = getattr(tokenizer.model, "byte_fallback", False)
    return bool(fallback) and all(f"<0x{byte:02X}>" in vocab for byte in range(256))


def _cuts_known_words(words: list[dict[str, Any]]) -> bool:
    """True if the words are cut as one of `splits.SPLITS` does, so that `cut_safely` holds."""
    head, last = words[:-1], words[-1] if words else {"type": ""}
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return False
    splits = [part for part in head if part["type"] != "Digits"]
    if last["use_regex"]:
        return not splits
    return len(splits) == 1 and bool(
        splits[0]["type"] == "Split"
        and splits[0]["pattern"].get("Regex") in _KNOWN_PATTERNS
        and splits[0]["behavior"] == "Isolated"
    )


def _plain_twin(special: Tokenizer, added: list[AddedToken]) -> Tokenizer:
    """Shares the vocabulary of `special`, and takes the text of control tokens as plain text."""
    from tokenizers import Tokenizer

    plain = Tokenizer(special.model)
    if special.normalizer is not None:
        plain.normalizer = special.normalizer
    if special.pre_tokenizer is not None:
        plain.pre_tokenizer = special.pre_tokenizer
    plain.add_tokens([token for token in added if not token.special])
    return plain


def _control_id(text: str, vocab: dict[str, int], kinds: dict[int, TokenKind]) -> int | None:
    found = vocab.get(text)
    return found if found is not None and kinds.get(found) == TokenKind.CONTROL else None
