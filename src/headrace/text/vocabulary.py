"""What all tokenizers share: special ids around a text, bytes of a token, ends of generation."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.errors import RequestError
from headrace.weights.base import TokenizerSpec

# Control tokens that end a generation, by their text: llama-vocab.cpp, special_eog_ids. The last
# three separate files and repositories in the training data of code models.
_END_OF_GENERATION = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
# A vocabulary with both of the first two ends its messages, not its answers, with the third.
_CHANNEL_ENDS = ("<|return|>", "<|call|>", "<|end|>")


class TokenKind(enum.IntEnum):
    """GGUF's token types."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def end_of_generation(
    eos_ids: Iterable[int], control_id: Callable[[str], int | None]
) -> frozenset[int]:
    """The file's own end tokens and every known end-of-turn token among its control tokens.

    `control_id` gives the id of a control token by its text.
    """
    found = {text: control_id(text) for text in _END_OF_GENERATION}
    if all(found[text] is not None for text in _CHANNEL_ENDS):
        del found["<|end|>"]
    return frozenset(eos_ids).union(i for i in found.values() if i is not None)


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Special ids of a model. `eos_id` is the file's own; `prefix`, `suffix` surround a text."""

    bos_id: int | None
    eos_id: int | None
    eos_ids: frozenset[int]
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    @classmethod
    def of(cls, spec: TokenizerSpec, control_id: Callable[[str], int | None]) -> SpecialIds:
        """`control_id` gives the id of a control token by its text."""
        eos_id = spec.eos_id
        if eos_id is None and spec.eos_ids:
            eos_id = spec.eos_ids[0]
        return cls(
            bos_id=spec.bos_id,
            eos_id=eos_id,
            eos_ids=end_of_generation(spec.eos_ids, control_id),
            prefix=(spec.bos_id,) if spec.add_bos and spec.bos_id is not None else (),
            suffix=(eos_id,) if spec.add_eos and eos_id is not None else (),
        )


class VocabularyTokenizer(ABC):
    """`text.base.Tokenizer`, short of how a plain text becomes ids and where a token's bytes are.

    `space_prefixed`: the encoding of a text begins with a space that is not in it; decoding takes
    it away again after BOS, where a whole text begins (elsewhere it is a space between tokens).
    """

    def __init__(self, vocab_size: int, ids: SpecialIds, *, space_prefixed: bool = False) -> None:
        self._vocab_size = vocab_size
        self._ids = ids
        self.space_prefixed = space_prefixed
        self._plain_bytes: dict[int, bytes] = {}

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def bos_id(self) -> int | None:
        return self._ids.bos_id

    @property
    def eos_id(self) -> int | None:
        """The end token that the file itself names, for templates."""
        return self._ids.eos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._ids.eos_ids

    @property
    def add_bos(self) -> bool:
        return bool(self._ids.prefix)

    @property
    @abstractmethod
    def max_token_bytes(self) -> int: ...

    def _is_surely_longer(self, text: str, limit: int) -> bool:
        """True if `text`, unread, has more than `limit` tokens."""
        return len(text) > limit * self.max_token_bytes

    @abstractmethod
    def token_id(self, text: str) -> int | None:
        """The id of the special token with this text, or None."""

    @abstractmethod
    def _encode_text(self, text: str, parse_special: bool, limit: int | None) -> list[int] | None:
        """Ids of a text without special ids around it; None when there are more than `limit`."""

    @abstractmethod
    def _kind(self, token_id: int) -> TokenKind:
        """UNUSED for ids that have an embedding row but no token."""

    @abstractmethod
    def _stored_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, or the text of a special one."""

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        ids = self._encode_text(_well_formed(text), parse_special, None)
        if ids is None:
            raise AssertionError("an encoding without a limit has no reason to give up")
        return [*self._ids.prefix, *ids, *self._ids.suffix] if add_special else ids

    def encode_bounded(
        self, text: str, limit: int, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int] | None:
        num_added = len(self._ids.prefix) + len(self._ids.suffix) if add_special else 0
        room = limit - num_added
        if room < 0 or self._is_surely_longer(text, room):
            return None
        ids = self._encode_text(_well_formed(text), parse_special, room)
        if ids is None or not add_special:
            return ids
        return [*self._ids.prefix, *ids, *self._ids.suffix]

    def decode_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        plain = self._plain_bytes.get(token_id)
        if plain is None:
            if not 0 <= token_id < self._vocab_size:
                raise RequestError(
                    f"There is no token {token_id}: ids go from 0 to {self._vocab_size - 1}.",
                    code="invalid_value",
                )
            hidden = self._kind(token_id) in (
                TokenKind.CONTROL,
                TokenKind.UNKNOWN,
                TokenKind.UNUSED,
            )
            plain = b"" if hidden else self._stored_bytes(token_id)
            self._plain_bytes[token_id] = plain
        if plain or skip_special:
            return plain
        return self._stored_bytes(token_id)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        data = b"".join([self.decode_bytes(i, skip_special=skip_special) for i in ids])
        if self.space_prefixed and ids and ids[0] == self._ids.bos_id:
            head = self.decode_bytes(ids[0], skip_special=skip_special)
            data = head + data[len(head) :].removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        return self.decode_bytes(token_id, skip_special=False).decode("utf-8", "replace")


def _well_formed(text: str) -> str:
    """A lone surrogate has no UTF-8 form: it becomes U+FFFD, and the rest stays as it is."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
