"""SamplingParams: what a request asks of the engine, in the API's field names, with limits."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from headrace.backends.base import SamplingSpec
from headrace.errors import RequestError

MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_LEN = 256
MAX_LOGIT_BIAS = 1024
_MASK64 = (1 << 64) - 1


def mix64(seed: int, choice: int) -> int:
    """Seed of choice i: i = 0 keeps the seed, others are splitmix64 of seed + i * golden ratio.

    (Steele, Lea, Flood 2014.) Returned per choice, so that n = 1 with it gives the same text;
    53 bits of it, so that clients whose numbers are doubles can send it back unharmed.
    """
    if choice == 0:
        return seed
    z = (seed + choice * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return (z ^ (z >> 31)) >> 11


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling and stopping of one request. Field names and meanings are the OpenAI API's.

    `max_tokens` None: up to the context length. `seed` None: the engine draws one and reports it.
    `logprobs`: number of alternatives per output token (0: only the chosen one), None: none.
    `prompt_logprobs`: the same for prompt tokens, from position `prompt_logprobs_from` on (KV of
    those before may come from a cache). `ignore_eos`: end-of-sequence tokens are ordinary.
    `min_tokens`: such tokens (and stop ids) cannot be drawn before. `stop` strings never appear in
    the text unless `include_stop_str_in_output`. `logit_bias`: token id -> [-100, 100].
    As in the API, `stop` may be one string, and the ids of `logit_bias` may be strings of digits.
    """

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 0

    def __post_init__(self) -> None:
        set_field = msgspec.structs.force_setattr
        stop: Any = self.stop  # what a caller wrote, whatever the annotations say
        if isinstance(stop, str | list):
            set_field(self, "stop", (stop,) if isinstance(stop, str) else tuple(stop))
        bias: Any = self.logit_bias
        if isinstance(bias, dict) and any(isinstance(token, str) for token in bias):
            ids = {int(t) if isinstance(t, str) and t.isdecimal() else t: bias[t] for t in bias}
            set_field(self, "logit_bias", ids)

    def validate(self, vocab_size: int) -> None:
        """Raise RequestError naming the first field of a wrong type or out of its range."""
        try:
            msgspec.convert(msgspec.structs.asdict(self), type(self))
        except msgspec.ValidationError as error:
            problem, _, place = str(error).removesuffix("`").rpartition(" - at `")
            name = place.rpartition("$.")[2]
            raise RequestError(f"{name}: {problem}.", param=name, code="invalid_type") from None
        _check_int("n", self.n, 1, MAX_CHOICES)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 0, 1 << 30)
        _check_int("min_tokens", self.min_tokens, 0, 1 << 30)
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, 0.0, 1.0)
        _check_int("top_k", self.top_k, -1, 1 << 30)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None and not -(1 << 63) <= self.seed < 1 << 64:
            raise _out_of_range("seed", self.seed, "a 64-bit integer")
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if value is not None:
                _check_int(name, value, 0, MAX_TOP_LOGPROBS)
        _check_int("prompt_logprobs_from", self.prompt_logprobs_from, 0, 1 << 30)
        if self.prompt_logprobs_from and self.prompt_logprobs is None:
            raise RequestError(
                "prompt_logprobs_from says where prompt_logprobs begin; ask for those, too.",
                param="prompt_logprobs_from",
                code="invalid_value",
            )
        self._validate_stops(vocab_size)
        self._validate_bias(vocab_size)

    def _validate_stops(self, vocab_size: int) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise _out_of_range("stop", len(self.stop), f"at most {MAX_STOP_STRINGS} strings")
        for text in self.stop:
            if not 0 < len(text) <= MAX_STOP_LEN:
                limit = f"strings of 1 to {MAX_STOP_LEN} characters"
                raise _out_of_range("stop", text if len(text) < 40 else f"{text[:40]}…", limit)
        if len(self.stop_token_ids) > MAX_LOGIT_BIAS:
            limit = f"at most {MAX_LOGIT_BIAS} ids"
            raise _out_of_range("stop_token_ids", len(self.stop_token_ids), limit)
        for token in self.stop_token_ids:
            _check_id("stop_token_ids", token, vocab_size)

    def _validate_bias(self, vocab_size: int) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            limit = f"at most {MAX_LOGIT_BIAS} entries"
            raise _out_of_range("logit_bias", len(self.logit_bias), limit)
        for token, bias in self.logit_bias.items():
            _check_id("logit_bias", token, vocab_size)
            _check_float("logit_bias", bias, -100.0, 100.0)

    def spec(self, choice_seed: int) -> SamplingSpec:
        """The numbers a backend needs for one choice. `choice_seed` = mix64(seed, choice)."""
        return SamplingSpec(
            temperature=float(self.temperature),
            top_k=max(self.top_k, 0),
            top_p=float(self.top_p),
            min_p=float(self.min_p),
            repetition_penalty=float(self.repetition_penalty),
            presence_penalty=float(self.presence_penalty),
            frequency_penalty=float(self.frequency_penalty),
            logit_bias=tuple(sorted((t, float(b)) for t, b in self.logit_bias.items())),
            seed=choice_seed,
            num_top=-1 if self.logprobs is None else self.logprobs,
        )


def _out_of_range(name: str, value: object, allowed: str) -> RequestError:
    return RequestError(
        f"{name} is {value!r}; it must be {allowed}.", param=name, code="invalid_value"
    )


def _check_int(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise _out_of_range(name, value, f"from {low} to {high}")


def _check_float(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise _out_of_range(name, value, f"from {low:g} to {high:g}")


def _check_id(name: str, token: int, vocab_size: int) -> None:
    if not 0 <= token < vocab_size:
        raise _out_of_range(name, token, f"token ids from 0 to {vocab_size - 1}")
