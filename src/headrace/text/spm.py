"""SentencePiece-style tokenizer of a GGUF file: the native encoder and the bytes of its pieces."""

from __future__ import annotations

import sys

from headrace._native import SpmEncoder
from headrace.errors import ModelFormatError
from headrace.text.pieces import SPACE_MARK, byte_token_value
from headrace.text.vocabulary import SpecialIds, TokenKind, VocabularyTokenizer
from headrace.weights.base import TokenizerSpec

_SPACE_MARK = SPACE_MARK.encode()
_NO_TOKEN = -1
# Between two such slices other threads get their turn.
_IDS_AT_ONCE = 1 << 16


def load_gguf_spm(spec: TokenizerSpec, vocab_size: int) -> SpmTokenizer:
    """Raises ModelFormatError for a vocabulary that contradicts itself."""
    try:
        encoder = SpmEncoder(
            spec.tokens,
            spec.scores,
            spec.token_types,
            unk_id=_NO_TOKEN if spec.unk_id is None else spec.unk_id,
            add_space_prefix=spec.add_space_prefix,
        )
    except ValueError as error:
        raise ModelFormatError(f"The tokenizer cannot be used: {error}.") from None
    return SpmTokenizer(encoder, spec, vocab_size)


class SpmTokenizer(VocabularyTokenizer):
    """Text to ids in `native/text/spm.h`; ids to bytes here."""

    def __init__(self, encoder: SpmEncoder, spec: TokenizerSpec, vocab_size: int) -> None:
        def control_id(text: str) -> int | None:
            found = encoder.find(text.encode())
            is_control = found >= 0 and encoder.token_type(found) == TokenKind.CONTROL
            return found if is_control else None

        super().__init__(
            vocab_size,
            SpecialIds.of(spec, control_id),
            space_prefixed=spec.add_space_prefix,
        )
        self._encoder = encoder
        self._num_tokens = len(spec.tokens)
        self._max_token_bytes = encoder.max_token_bytes

    @property
    def max_token_bytes(self) -> int:
        return self._max_token_bytes

    def token_id(self, text: str) -> int | None:
        found = self._encoder.find(text.encode())
        if found < 0 or self._kind(found) in (TokenKind.NORMAL, TokenKind.BYTE):
            return None
        return found

    def _kind(self, token_id: int) -> TokenKind:
        if token_id >= self._num_tokens:
            return TokenKind.UNUSED
        return TokenKind(self._encoder.token_type(token_id))

    def _stored_bytes(self, token_id: int) -> bytes:
        if token_id >= self._num_tokens:
            return b""
        stored = self._encoder.token_bytes(token_id)
        kind = self._kind(token_id)
        if kind == TokenKind.NORMAL:
            return stored.replace(_SPACE_MARK, b" ")
        value = byte_token_value(stored.decode()) if kind == TokenKind.BYTE else None
        return stored if value is None else bytes([value])

    def _encode_text(self, text: str, parse_special: bool, limit: int | None) -> list[int] | None:
        packed = self._encoder.encode(
            text, parse_special=parse_special, limit=sys.maxsize if limit is None else limit
        )
        if packed is None:
            return None
        view = memoryview(packed).cast("i")
        ids: list[int] = []
        for start in range(0, len(view), _IDS_AT_ONCE):
            ids += view[start : start + _IDS_AT_ONCE].tolist()
        return ids
