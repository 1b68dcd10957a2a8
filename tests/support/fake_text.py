"""A tokenizer of bytes and a chat template of three lines: text without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import TemplateError
from headrace.gateway.config import ModelSpec
from headrace.gateway.text import ModelText

BOS, EOS, IM_START, IM_END = 256, 257, 258, 259
VOCAB_SIZE = 260
_SPECIALS = {BOS: "<bos>", EOS: "<eos>", IM_START: "<|im_start|>", IM_END: "<|im_end|>"}


class FakeTokenizer:
    """Ids 0 to 255 are bytes, 256 to 259 special. Implements text.base.Tokenizer."""

    vocab_size = VOCAB_SIZE
    bos_id: int | None = BOS
    eos_ids = frozenset({EOS, IM_END})
    add_bos = False
    max_token_bytes = 12

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        ids: list[int] = []
        rest = text
        while parse_special and "<" in rest:
            found = [(rest.find(name), token) for token, name in _SPECIALS.items() if name in rest]
            if not found:
                break
            at, token = min(found)
            ids += rest[:at].encode()
            ids.append(token)
            rest = rest[at + len(_SPECIALS[token]) :]
        return ids + list(rest.encode())

    def encode_bounded(
        self, text: str, limit: int, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int] | None:
        if len(text) > limit * self.max_token_bytes:
            return None
        ids = self.encode(text, add_special=add_special, parse_special=parse_special)
        return ids if len(ids) <= limit else None

    def decode_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return b"" if skip_special else _SPECIALS[token_id].encode()

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        raw = b"".join(self.decode_bytes(i, skip_special=skip_special) for i in ids)
        return raw.decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        return self.decode_bytes(token_id, skip_special=False).decode("utf-8", "replace")


class FakeTemplate:
    """Every message as `<|im_start|>role`, content, `<|im_end|>`. Implements ChatTemplate."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        if any(message["content"] == "!template" for message in messages):
            raise TemplateError("The chat template says no.", param="messages")
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        return text + "<|im_start|>assistant\n" * add_generation_prompt


def load_fake_text(spec: ModelSpec) -> ModelText:
    """A TextLoader. The model `base` carries no chat template."""
    return ModelText(FakeTokenizer(), FakeTemplate(), spec.name != "base")
