"""load_tokenizer: the tokenizer of a model, from whichever form its files give the vocabulary."""

from __future__ import annotations

from headrace.errors import ModelFormatError
from headrace.text.vocabulary import VocabularyTokenizer
from headrace.weights.base import TokenizerSpec


def load_tokenizer(spec: TokenizerSpec, vocab_size: int) -> VocabularyTokenizer:
    """A `text.base.Tokenizer` of `vocab_size` ids (the rows of the embedding table).

    Raises ModelFormatError for a vocabulary that is not supported, contradicts itself, or has ids
    beyond `vocab_size`.
    """
    if spec.json_bytes is not None:
        from headrace.text.tokenizer_json import load_tokenizer_json

        return load_tokenizer_json(spec, vocab_size)
    _check_vocabulary(spec, vocab_size)
    if spec.model == "gpt2":
        from headrace.text.gguf_bpe import load_gguf_bpe

        return load_gguf_bpe(spec, vocab_size)
    if spec.model == "llama":
        from headrace.text.spm import load_gguf_spm

        return load_gguf_spm(spec, vocab_size)
    raise ModelFormatError(
        f"The tokenizer is of the kind {spec.model!r}; supported are gpt2 and llama."
    )


def _check_vocabulary(spec: TokenizerSpec, vocab_size: int) -> None:
    num_tokens = len(spec.tokens)
    if not 1 <= num_tokens <= vocab_size:
        raise ModelFormatError(
            f"The tokenizer has {num_tokens} tokens, the embedding table {vocab_size} rows."
        )
    if len(spec.token_types) != num_tokens:
        raise ModelFormatError(
            f"The tokenizer has {num_tokens} tokens, but {len(spec.token_types)} token types."
        )
    for token_id in (spec.bos_id, spec.eos_id, spec.unk_id, spec.pad_id, *spec.eos_ids):
        if token_id is not None and not 0 <= token_id < num_tokens:
            raise ModelFormatError(f"Special token {token_id} is outside the vocabulary.")
    if spec.add_bos and spec.bos_id is None:
        raise ModelFormatError("The tokenizer asks for a BOS token and names none.")
    if spec.add_eos and not spec.eos_ids:
        raise ModelFormatError("The tokenizer asks for an EOS token and names none.")
