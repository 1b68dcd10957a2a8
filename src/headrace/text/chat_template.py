"""Chat prompts: messages through the model's template, or the usual one of its vocabulary."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import RequestError, TemplateError
from headrace.text.base import ChatTemplate, Tokenizer
from headrace.text.vocabulary import VocabularyTokenizer

if TYPE_CHECKING:
    import jinja2

_MAX_MESSAGE_LEN = 500

_CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""
# The system message goes before the first of the user's: the format has no turn for it.
_GEMMA = """\
{{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = message.content + '\\n\\n' -%}
{%- else -%}
{%- set role = 'model' if message.role == 'assistant' else message.role -%}
{{ '<start_of_turn>' + role + '\\n' + ns.system + (message.content or '') | trim }}
{{- '<end_of_turn>\\n' -}}
{%- set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif -%}
"""


def load_chat_template(source: str | None, tokenizer: Tokenizer) -> ChatTemplate:
    """The template of the file, or the default one that fits the vocabulary.

    Nothing is compiled, and jinja2 not imported, before the first rendering. The prompt already
    holds BOS where the model wants it: encode it with add_special=False.
    """
    if source is None:
        source = _default_source(tokenizer)
    return JinjaChatTemplate(source, _special_texts(tokenizer))


def _default_source(tokenizer: Tokenizer) -> str | None:
    for mark, source in (("<|im_start|>", _CHATML), ("<start_of_turn>", _GEMMA)):
        ids = tokenizer.encode(mark, add_special=False, parse_special=True)
        if len(ids) == 1 and tokenizer.token_text(ids[0]) == mark:
            return source
    return None


def _special_texts(tokenizer: Tokenizer) -> dict[str, str]:
    """The variables by which templates write special tokens."""
    eos_id = tokenizer.eos_id if isinstance(tokenizer, VocabularyTokenizer) else None
    if eos_id is None:
        eos_id = min(tokenizer.eos_ids, default=None)
    ids = {"bos_token": tokenizer.bos_id, "eos_token": eos_id}
    return {name: "" if i is None else tokenizer.token_text(i) for name, i in ids.items()}


class JinjaChatTemplate:
    """`source` None: a model without a chat format. Safe to use from several threads."""

    def __init__(self, source: str | None, special_texts: Mapping[str, str]) -> None:
        self._source = source
        self._special_texts = dict(special_texts)
        self._lock = threading.Lock()
        self._compiled: jinja2.Template | TemplateError | None = None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text. Takes at most about a second, also if the template is hostile.

        Raises TemplateError if the template raises, fails or exceeds its limits, and RequestError
        for a message whose content is not text or a reserved name in `kwargs`.
        """
        variables: dict[str, Any] = {
            **self._special_texts,
            "messages": [_plain_message(message, i) for i, message in enumerate(messages)],
            "tools": None if tools is None else list(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        for name, value in (kwargs or {}).items():
            if name in variables or name.startswith("_"):
                raise RequestError(
                    f"{name!r} is not for the request to set.",
                    param=f"chat_template_kwargs.{name}",
                    code="invalid_value",
                )
            variables[name] = value
        template = self._template()
        from headrace.text.template_sandbox import run_template

        try:
            return run_template(template, variables)
        except Exception as error:  # whatever a template can cause, and only that
            raise _template_error(error) from None

    def _template(self) -> jinja2.Template:
        if self._source is None:
            raise TemplateError(
                "This model has no chat template; send a plain prompt to /v1/completions instead.",
                param="messages",
            )
        with self._lock:
            if self._compiled is None:
                from headrace.text.template_sandbox import compile_template

                try:
                    self._compiled = compile_template(self._source)
                except Exception as error:  # a damaged template fails the same way every time
                    self._compiled = _template_error(error)
        if isinstance(self._compiled, TemplateError):
            raise TemplateError(str(self._compiled), param="messages")
        return self._compiled


def _template_error(error: Exception) -> TemplateError:
    """The template's own message, or what went wrong in it."""
    from headrace.text.template_builtins import RaisedError
    from headrace.text.template_meter import LimitError

    text = str(error)[:_MAX_MESSAGE_LEN].rstrip(".")
    if isinstance(error, RaisedError):
        message = str(error)[:_MAX_MESSAGE_LEN]
    elif isinstance(error, LimitError):
        message = f"The model's chat template {text}."
    elif isinstance(error, RecursionError):
        message = "The model's chat template is nested too deep."
    else:
        message = f"The model's chat template failed: {text or type(error).__name__}."
    return TemplateError(message, param="messages")


def _plain_message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Content as one string, the arguments of tool calls as objects, and no empty fields.

    Templates are written for that: they test for a field with `is defined`, and write arguments
    with `tojson`, where the API has a string of JSON.
    """
    plain = {name: value for name, value in message.items() if value is not None}
    content = plain.get("content")
    if content is not None and not isinstance(content, str):
        plain["content"] = _joined_parts(content, f"messages.{index}.content")
    if isinstance(plain.get("tool_calls"), list | tuple):
        plain["tool_calls"] = [_plain_tool_call(call) for call in plain["tool_calls"]]
    elif "content" not in plain:
        plain["content"] = ""
    return plain


def _joined_parts(parts: Any, param: str) -> str:
    texts = []
    for i, part in enumerate(parts if isinstance(parts, list | tuple) else [parts]):
        text = (
            part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else part
        )
        if not isinstance(text, str):
            raise RequestError(
                "Only content of type text is supported.",
                param=f"{param}.{i}",
                code="unsupported_parameter",
            )
        texts.append(text)
    return "".join(texts)


def _plain_tool_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
