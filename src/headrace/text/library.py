"""A tokenizer that runs in the `tokenizers` library."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from headrace.text.splits import cut_safely, may_be_cut
from headrace.text.vocabulary import SpecialIds, TokenKind, VocabularyTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

# Characters per call of the library: reading the ids of one call holds the GIL, here about 1 ms.
PIECE_LEN = 1 << 15
# As many bytes for one token as any text can have: nothing can be refused unread.
UNBOUNDED_BYTES = 1 << 40

# Only its batch calls release the GIL. A batch of one needs no pool of threads, and a process that
# is forked later would inherit that pool, broken.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class LibraryTokenizer(VocabularyTokenizer):
    """`special` knows the control tokens, `plain` takes their texts for plain text.

    `kinds` holds the tokens that are not normal; `to_bytes` reads the stored form of the others.
    A token stands for at most `longest_bytes` of the text, if that is known, not counting the
    characters in `dropped`, which a vocabulary without tokens for them leaves out.
    `cuttable`: a long text may be encoded in pieces (`splits.cut_safely`).
    """

    def __init__(
        self,
        special: Library,
        plain: Library,
        *,
        vocab_size: int,
        ids: SpecialIds,
        kinds: Mapping[int, TokenKind],
        to_bytes: Callable[[str], bytes],
        longest_bytes: int | None,
        dropped: str = "",
        cuttable: bool,
        space_prefixed: bool = False,
    ) -> None:
        super().__init__(vocab_size, ids, space_prefixed=space_prefixed)
        self._special = special
        self._plain = plain
        self._kinds = kinds
        self._to_bytes = to_bytes
        self._longest_bytes = longest_bytes or UNBOUNDED_BYTES
        self._dropped = dropped
        self._cuttable = cuttable

    @property
    def max_token_bytes(self) -> int:
        return UNBOUNDED_BYTES if self._dropped else self._longest_bytes

    def _is_surely_longer(self, text: str, limit: int) -> bool:
        longest_len = limit * self._longest_bytes
        num_kept = 0
        for start in range(0, len(text) if len(text) > longest_len else 0, PIECE_LEN):
            piece = text[start : start + PIECE_LEN]
            num_kept += len(piece) - sum(piece.count(char) for char in self._dropped)
            if num_kept > longest_len:
                return True
        return False

    def token_id(self, text: str) -> int | None:
        found = self._special.token_to_id(text)
        return found if found in self._kinds else None

    def _kind(self, token_id: int) -> TokenKind:
        kind = self._kinds.get(token_id)
        if kind is not None:
            return kind
        known = self._special.id_to_token(token_id) is not None
        return TokenKind.NORMAL if known else TokenKind.UNUSED

    def _stored_bytes(self, token_id: int) -> bytes:
        text = self._special.id_to_token(token_id)
        if text is None:
            return b""
        return text.encode() if token_id in self._kinds else self._to_bytes(text)

    @cached_property
    def _uncut(self) -> Sequence[str]:
        """Texts of special tokens that a safe cut could divide."""
        texts = (self._special.id_to_token(i) for i in self._kinds)
        return [text for text in texts if text and may_be_cut(text)]

    def _encode_text(self, text: str, parse_special: bool, limit: int | None) -> list[int] | None:
        library = self._special if parse_special else self._plain
        pieces = cut_safely(text, PIECE_LEN, self._uncut) if self._cuttable else [text]
        ids: list[int] = []
        for piece in pieces:
            ids += library.encode_batch_fast([piece], add_special_tokens=False)[0].ids
            if limit is not None and len(ids) > limit:
                return None
        return ids
