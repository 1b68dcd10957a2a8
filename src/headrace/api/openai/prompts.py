"""Prompts of every form as token ids: checked, rendered, tokenized, held to the context length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.api.openai.types import MAX_PROMPTS, ChatMessage
from headrace.engine.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.gateway.text import ModelText

# Clients of OpenAI's newer models say "developer"; templates know "system".
_ROLES = {"developer": "system"}


class Room:
    """How many prompt tokens a request may have."""

    def __init__(self, params: SamplingParams, max_model_len: int) -> None:
        self.max_model_len = max_model_len
        self._max_tokens = params.max_tokens
        # Without max_tokens there must be room for one token at least.
        self.limit = max_model_len - (1 if params.max_tokens is None else params.max_tokens)
        if params.max_tokens is not None and params.min_tokens > params.max_tokens:
            raise RequestError(
                f"min_tokens {params.min_tokens} is above max_tokens {params.max_tokens}.",
                param="min_tokens",
                code="invalid_value",
            )
        if self.limit < 1:
            raise self.too_long("max_tokens")

    def too_long(self, param: str) -> RequestError:
        """The error for a request that does not fit."""
        asked = "" if self._max_tokens is None else f" and {self._max_tokens} tokens were asked for"
        return RequestError(
            f"This model's maximum context length is {self.max_model_len} tokens{asked}, so the "
            f"prompt may have at most {max(0, self.limit)}; it has more.",
            param=param,
            code="context_length_exceeded",
        )


def encode_text(text: ModelText, prompt: str, room: Room, param: str) -> list[int]:
    """Ids of one text. Costs what the room holds, not what the text holds."""
    ids = text.tokenizer.encode_bounded(prompt, room.limit, add_special=True, parse_special=True)
    if ids is None:
        raise room.too_long(param)
    if not ids:
        raise RequestError("The prompt is empty.", param=param, code="invalid_value")
    return ids


def completion_prompts(
    text: ModelText, prompt: str | list[str | int | list[int]], room: Room
) -> list[list[int]]:
    """Ids of every prompt of a completion request."""
    if isinstance(prompt, str):
        return [encode_text(text, prompt, room, "prompt")]
    if not prompt:
        raise RequestError("prompt holds nothing.", param="prompt", code="invalid_value")
    if isinstance(prompt[0], int):
        return [_checked_ids(text, prompt, room, "prompt")]
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(
            f"prompt holds {len(prompt)} prompts; at most {MAX_PROMPTS} are allowed.",
            param="prompt",
            code="invalid_value",
        )
    encoded = []
    for i, item in enumerate(prompt):
        if isinstance(item, str):
            encoded.append(encode_text(text, item, room, f"prompt.{i}"))
        elif isinstance(item, list):
            encoded.append(_checked_ids(text, item, room, f"prompt.{i}"))
        else:
            raise _not_a_prompt(f"prompt.{i}")
    return encoded


def _not_a_prompt(param: str) -> RequestError:
    return RequestError(
        f"{param} must be a text or a list of token ids.", param=param, code="invalid_value"
    )


def _checked_ids(text: ModelText, given: Sequence[object], room: Room, param: str) -> list[int]:
    if not given:
        raise RequestError(f"{param} is empty.", param=param, code="invalid_value")
    if len(given) > room.limit:
        raise room.too_long(param)
    ids = [token for token in given if isinstance(token, int)]
    if len(ids) != len(given):
        raise _not_a_prompt(param)
    vocab_size = text.tokenizer.vocab_size
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise RequestError(
            f"{param} holds a token id outside 0 to {vocab_size - 1}.",
            param=param,
            code="invalid_value",
        )
    return ids


def render_chat(
    text: ModelText, messages: Sequence[ChatMessage], add_generation_prompt: bool
) -> str:
    """The prompt text of a conversation. Raises TemplateError with the template's own message."""
    plain = [_plain_message(message, i) for i, message in enumerate(messages)]
    return text.template.render(plain, add_generation_prompt=add_generation_prompt)


def encode_chat(
    text: ModelText, messages: Sequence[ChatMessage], add_generation_prompt: bool, room: Room
) -> list[int]:
    """Ids of a conversation. The template writes BOS itself where the model wants it."""
    rendered = render_chat(text, messages, add_generation_prompt)
    ids = text.tokenizer.encode_bounded(rendered, room.limit, add_special=False, parse_special=True)
    if ids is None:
        raise room.too_long("messages")
    if not ids:
        raise RequestError("The chat template rendered nothing.", param="messages")
    return ids


def _plain_message(message: ChatMessage, at: int) -> Mapping[str, Any]:
    """The message as templates know it; the template itself reads parts and tool calls."""
    content = message.content
    if content is None and message.role != "assistant":
        param = f"messages.{at}.content"
        raise RequestError(f"messages.{at} has no content.", param=param, code="invalid_value")
    plain: dict[str, Any] = {"role": _ROLES.get(message.role, message.role), "content": content}
    if isinstance(content, list):
        plain["content"] = [{"type": part.type, "text": part.text} for part in content]
    for name in ("name", "tool_calls", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            plain[name] = value
    return plain
