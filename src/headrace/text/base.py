"""The seam of text: what API and engine need of a tokenizer, and how text leaves token by token.

Contract
- `Tokenizer` is immutable and safe to call from several threads; `encode` releases the GIL while it
  works. It never raises on any `str`: lone surrogates are refused earlier, at the API's door.
- Ids are ints in [0, vocab_size). `decode_bytes(id)` gives the exact bytes of one token (empty for
  control tokens when `skip_special`); text is the UTF-8 decoding of the concatenation, so that
  deltas joined equal the one-shot decode.
- `Detokenizer` (one per choice) takes ids one at a time and returns only whole characters; invalid
  bytes become U+FFFD exactly where `bytes.decode("utf-8", "replace")` of the whole would put them.
- `StopMatcher` (one per choice) takes text deltas and returns what may be sent; no byte of a stop
  string ever leaves (unless it is asked to include it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Tokenizer(Protocol):
    """See the module docstring."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a generation: eos and end-of-turn tokens of the vocabulary."""
        ...

    @property
    def add_bos(self) -> bool: ...

    @property
    def max_token_bytes(self) -> int:
        """Bytes of the longest token: a text of n bytes has at least n / max_token_bytes tokens."""
        ...

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids. `add_special` adds BOS/EOS as the model wants; `parse_special` turns the text
        of special tokens into their ids (chat templates need it); otherwise they are plain text."""
        ...

    def encode_bounded(
        self, text: str, limit: int, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int] | None:
        """Like encode, or None as soon as it is certain that there are more than `limit` tokens;
        work and memory are bounded by `limit`, not by the text."""
        ...

    def decode_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes: ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...

    def token_text(self, token_id: int) -> str:
        """How the token is shown in logprobs: U+FFFD for broken UTF-8, never `bytes:\\xNN`."""
        ...


class Detokenizer(Protocol):
    """Incremental decoding of one choice. Leading-space handling matches the one-shot decode."""

    def push(self, token_id: int) -> str:
        """Text that became certain with this token (may be empty)."""
        ...

    def flush(self) -> str:
        """The end: whatever was held back, broken bytes as U+FFFD."""
        ...


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`text` may be sent; `stopped` is the stop string that matched, or None."""

    text: str
    stopped: str | None


class StopMatcher(Protocol):
    """Streaming search for stop strings (linear time in the text)."""

    def push(self, delta: str) -> StopMatch: ...

    def flush(self) -> str:
        """Held-back text when the generation ends for another reason."""
        ...


class ChatTemplate(Protocol):
    """Renders a chat prompt; raises TemplateError (a RequestError) with the template's message."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str: ...
