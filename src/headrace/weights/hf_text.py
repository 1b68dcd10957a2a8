"""The text side of a Hugging Face folder: tokenizer.json, special tokens, chat template."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import ModelFormatError
from headrace.weights.base import TokenizerSpec
from headrace.weights.gguf_vocab import END_OF_TURN
from headrace.weights.json_fields import Fields, read_bounded

MAX_TOKENIZER_BYTES = 64 << 20
MAX_TEMPLATE_BYTES = 4 << 20


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _TokenizerHead(msgspec.Struct):
    """The parts of tokenizer.json that are read here; the decoder skips the vocabulary."""

    added_tokens: list[_AddedToken] = []
    post_processor: dict[str, Any] | None = None


def read_tokenizer(folder: Path, config: Fields, vocab_size: int) -> TokenizerSpec:
    """Raises ModelFormatError if there is no tokenizer.json or a special token is impossible."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelFormatError(
            f"{folder.name!r} has no tokenizer.json; save the tokenizer as a fast one."
        )
    raw = read_bounded(path, MAX_TOKENIZER_BYTES)
    try:
        head = msgspec.json.decode(raw, type=_TokenizerHead)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise ModelFormatError("'tokenizer.json' is not a tokenizer file.") from None
    settings = Fields.read_optional(folder / "tokenizer_config.json")
    generation = Fields.read_optional(folder / "generation_config.json")
    ids = {token.content: token.id for token in head.added_tokens}
    bos = _special(settings, "bos_token", ids)
    bos_ids = [bos] if bos is not None else _ids(config, "bos_token_id")
    eos_ids = {*_ids(config, "eos_token_id"), *_ids(generation, "eos_token_id")}
    eos_ids |= {
        token.id
        for token in head.added_tokens
        if token.special and token.content.encode() in END_OF_TURN
    }
    eos = _special(settings, "eos_token", ids)
    if eos is not None:
        eos_ids.add(eos)
    for token_id in (*bos_ids, *eos_ids):
        if not 0 <= token_id < vocab_size:
            raise config.fail(f"special token {token_id} is outside the vocabulary.")
    adds = set(_template_specials(head.post_processor))
    bos_text = next((text for text, i in ids.items() if bos_ids and i == bos_ids[0]), None)
    return TokenizerSpec(
        json_bytes=raw,
        bos_id=bos_ids[0] if bos_ids else None,
        eos_ids=tuple(sorted(eos_ids)),
        eos_id=eos if eos is not None else next(iter(_ids(config, "eos_token_id")), None),
        unk_id=_special(settings, "unk_token", ids),
        pad_id=_special(settings, "pad_token", ids),
        add_bos=settings.boolean("add_bos_token", bos_text in adds),
        add_eos=settings.boolean("add_eos_token", False),
    )


def read_chat_template(folder: Path) -> str | None:
    """chat_template.jinja, or the (default) template of tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return read_bounded(path, MAX_TEMPLATE_BYTES).decode()
        except UnicodeDecodeError:
            raise ModelFormatError("'chat_template.jinja' is not UTF-8.") from None
    settings = Fields.read_optional(folder / "tokenizer_config.json")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = [item for item in template if isinstance(item, dict)]
        template = next((t.get("template") for t in named if t.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        raise settings.fail("'chat_template' must be a string.")
    return template


def _ids(fields: Fields, key: str) -> list[int]:
    """A token id, a list of them, or nothing."""
    value = fields.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int for item in values):
        raise fields.fail(f"{key!r} must be a token id or a list of them.")
    return values


def _special(settings: Fields, key: str, ids: dict[str, int]) -> int | None:
    """The id of a token given as text or as an AddedToken object."""
    value = settings.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    return ids.get(value) if isinstance(value, str) else None


def _template_specials(processor: Any, depth: int = 0) -> Iterator[str]:
    """Texts that the post-processor puts in front of a single sequence."""
    if not isinstance(processor, dict) or depth > 4:
        return
    for inner in processor.get("processors") or ():
        yield from _template_specials(inner, depth + 1)
    for item in processor.get("single") or ():
        special = item.get("SpecialToken") if isinstance(item, dict) else None
        if not isinstance(special, dict):
            return
        yield str(special.get("id"))
