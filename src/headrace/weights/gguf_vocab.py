"""GGUF metadata to TokenizerSpec."""

from __future__ import annotations

import math

from headrace.weights.base import TokenizerSpec
from headrace.weights.gguf_metadata import Metadata

_NORMAL, _CONTROL = 1, 3
# Control tokens that end a turn, whatever the file's eos key says (llama.cpp's llama-vocab.cpp):
# many files name only one of the two ends of their model.
END_OF_TURN = frozenset(
    {
        b"<|im_end|>",
        b"<|endoftext|>",
        b"<|eot_id|>",
        b"<|eom_id|>",
        b"<|end_of_text|>",
        b"<|end|>",
        b"<end_of_turn>",
    }
)
_PRE_WITH_BOS = frozenset({"llama-bpe", "llama3", "llama-v3"})


def read_vocabulary(meta: Metadata, vocab_size: int) -> TokenizerSpec:
    """Raises ModelFormatError if there is no vocabulary, or one that contradicts itself."""
    model = meta.text("tokenizer.ggml.model", "")
    if not model:
        raise meta.fail("it carries no tokenizer; use a file that does.")
    if model not in ("gpt2", "llama"):
        raise meta.fail(f"its tokenizer is of the kind {model!r}; gpt2 and llama are supported.")
    num_tokens = meta.array_len("tokenizer.ggml.tokens")
    if not 1 <= num_tokens <= vocab_size:
        raise meta.fail(f"it has {num_tokens} tokens for {vocab_size} embedding rows.")
    tokens = meta.strings("tokenizer.ggml.tokens")
    types = [_NORMAL] * num_tokens
    if _has_one_per_token(meta, "tokenizer.ggml.token_type", num_tokens):
        types = meta.integers("tokenizer.ggml.token_type")
    scores: list[float] = []
    if _has_one_per_token(meta, "tokenizer.ggml.scores", num_tokens):
        scores = list(meta.numbers("tokenizer.ggml.scores"))
    pre = meta.text("tokenizer.ggml.pre", "")
    if model == "llama" and not scores:
        raise meta.fail("its tokenizer has no scores.")
    if not math.isfinite(sum(scores)):
        raise meta.fail("a score of its tokenizer is not a finite number.")
    has_merges = model == "gpt2" or "tokenizer.ggml.merges" in meta
    spm = model == "llama"
    return TokenizerSpec(
        model=model,
        pre=pre,
        tokens=tokens,
        scores=scores,
        token_types=types,
        merges=meta.strings("tokenizer.ggml.merges") if has_merges else [],
        bos_id=_token_id(meta, "bos", num_tokens),
        eos_ids=_eos_ids(meta, tokens, types),
        eos_id=_token_id(meta, "eos", num_tokens),
        unk_id=_token_id(meta, "unknown", num_tokens),
        pad_id=_token_id(meta, "padding", num_tokens),
        add_bos=meta.boolean("tokenizer.ggml.add_bos_token", spm or pre in _PRE_WITH_BOS),
        add_eos=meta.boolean("tokenizer.ggml.add_eos_token", False),
        add_space_prefix=meta.boolean("tokenizer.ggml.add_space_prefix", spm),
    )


def _has_one_per_token(meta: Metadata, key: str, num_tokens: int) -> bool:
    if key not in meta:
        return False
    if meta.array_len(key) != num_tokens:
        raise meta.fail(f"{key!r} has {meta.array_len(key)} entries for {num_tokens} tokens.")
    return True


def _token_id(meta: Metadata, role: str, num_tokens: int) -> int | None:
    """None if the key is absent or holds one of the "no such token" values, -1 and 2^32 - 1."""
    key = f"tokenizer.ggml.{role}_token_id"
    value = meta.integer(key, -1)
    if value in (-1, 0xFFFFFFFF):
        return None
    if not 0 <= value < num_tokens:
        raise meta.fail(f"{key!r} is {value}, but there are {num_tokens} tokens.")
    return value


def _eos_ids(meta: Metadata, tokens: list[bytes], types: list[int]) -> tuple[int, ...]:
    keys = (_token_id(meta, role, len(tokens)) for role in ("eos", "eot", "eom"))
    ids = {token_id for token_id in keys if token_id is not None}
    ids |= {i for i, kind in enumerate(types) if kind == _CONTROL and tokens[i] in END_OF_TURN}
    return tuple(sorted(ids))
