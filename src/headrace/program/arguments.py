"""What a program asks of a prompt: checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from headrace.engine.sampling import SamplingParams
from headrace.errors import RequestError

MAX_OPTIONS = 256
DEFAULT_MAX_TOKENS = 128
_ANY_ID = 1 << 31  # the vocabulary's own limit is the runtime's to know


class GenOptions(TypedDict, total=False):
    """Options of `gen`: fields of SamplingParams. `logprobs`: keep those of the answer's tokens."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    ignore_eos: bool
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: dict[int, float]
    logprobs: bool


def text_of(what: str, value: object) -> str:
    """The value, if it is text that every runtime can take. Raises RequestError."""
    if not isinstance(value, str):
        raise RequestError(f"{what} is a string, not of type {type(value).__name__}.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{what} holds half of a surrogate pair.") from None
    return value


def params_of(options: GenOptions, seed: int) -> SamplingParams:
    """The request of a gen. Raises RequestError that names the option."""
    known = GenOptions.__annotations__
    for name in options:
        if name not in known:
            raise RequestError(
                f"gen has no option {name!r}; it has: {', '.join(known)}.",
                param=name,
                code="invalid_value",
            )
    fields: dict[str, Any] = {"max_tokens": DEFAULT_MAX_TOKENS, "seed": seed, **options}
    fields["logprobs"] = 0 if fields.get("logprobs") else None
    for name in ("max_tokens", "seed"):
        if type(fields[name]) is not int:
            raise RequestError(f"{name} is a whole number.", param=name, code="invalid_type")
    ids = fields.get("stop_token_ids")
    if isinstance(ids, list):
        fields["stop_token_ids"] = tuple(ids)
    params = SamplingParams(**fields)
    params.validate(_ANY_ID)
    for stop in params.stop:
        text_of("A stop string", stop)
    if params.min_tokens > fields["max_tokens"]:
        raise RequestError(
            f"min_tokens {params.min_tokens} is above max_tokens {params.max_tokens}.",
            param="min_tokens",
            code="invalid_value",
        )
    return params


def options_of(options: Sequence[str], end: str) -> tuple[str, ...]:
    """The options of a select. Raises RequestError for what cannot be chosen from."""

    def refused(message: str) -> RequestError:
        return RequestError(message, param="options", code="invalid_value")

    if isinstance(options, str) or not isinstance(options, Sequence):
        raise refused("The options of select are a list of strings.")
    if not 1 <= len(options) <= MAX_OPTIONS:
        raise refused(f"select takes 1 to {MAX_OPTIONS} options, not {len(options)}.")
    for i, option in enumerate(options):
        text_of(f"Option {i} of select", option)
        if not option + end:
            raise refused(f"Option {i} of select is empty; give select an end that follows it.")
    return tuple(options)


def check_tails(prefix_len: int, options: Sequence[str], tails: Sequence[Sequence[int]]) -> None:
    """Raise RequestError if an option cannot be scored."""
    if prefix_len == 0:
        raise RequestError(
            "select needs a prompt before it: the first token of a text has no likelihood.",
            param="options",
            code="invalid_value",
        )
    for option, tail in zip(options, tails, strict=True):
        if not tail:
            raise RequestError(
                f"The option {option[:40]!r} has no tokens in this model's vocabulary.",
                param="options",
                code="invalid_value",
            )
