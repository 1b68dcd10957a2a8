"""Ids to text, one at a time: whole characters only, joined equal to the one-shot decode."""

from __future__ import annotations

from codecs import utf_8_decode

from headrace.text.base import Detokenizer, Tokenizer
from headrace.text.vocabulary import VocabularyTokenizer


def make_detokenizer(tokenizer: Tokenizer, *, skip_special: bool = True) -> Detokenizer:
    """A detokenizer for one choice. `skip_special` leaves control tokens out of the text."""
    return IncrementalDetokenizer(tokenizer, skip_special=skip_special)


class IncrementalDetokenizer:
    """Holds back the bytes of an unfinished character (three at most)."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._pending = b""
        self._at_start = True
        # As in VocabularyTokenizer.decode: the space after BOS that encoding put there.
        self._drops_space = False

    def push(self, token_id: int) -> str:
        data = self._tokenizer.decode_bytes(token_id, skip_special=self._skip_special)
        if self._at_start:
            self._at_start = False
            tokenizer = self._tokenizer
            self._drops_space = (
                isinstance(tokenizer, VocabularyTokenizer)
                and tokenizer.space_prefixed
                and token_id == tokenizer.bos_id
            )
        elif self._drops_space and data:
            self._drops_space = False
            data = data.removeprefix(b" ")
        if self._pending:
            data = self._pending + data
        text, used_len = utf_8_decode(data, "replace", False)
        self._pending = data[used_len:]
        return text

    def flush(self) -> str:
        text = self._pending.decode("utf-8", "replace")
        self._pending = b""
        return text
