"""From what a caller asks for to a checked RequestState, with all that decides its samples."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Sequence

from headrace.engine.base import RequestOptions
from headrace.engine.request import RequestState
from headrace.engine.sampling import SamplingParams, mix64
from headrace.errors import RequestError

_MASK64 = (1 << 64) - 1


def check_prompt(
    prompt_ids: Sequence[int],
    params: SamplingParams,
    vocab_size: int,
    max_model_len: int,
    max_num_seqs: int,
) -> None:
    """Raise RequestError for a prompt that can never run, with the true numbers."""
    if not prompt_ids:
        raise RequestError("The prompt is empty; send at least one token.", param="prompt")
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocab_size:
        raise RequestError(
            f"The prompt holds a token id outside 0 to {vocab_size - 1}.",
            param="prompt",
            code="invalid_value",
        )
    needed = len(prompt_ids) + (1 if params.max_tokens is None else params.max_tokens)
    if needed > max_model_len:
        asked = "" if params.max_tokens is None else f" and max_tokens {params.max_tokens}"
        raise RequestError(
            f"The prompt has {len(prompt_ids)} tokens{asked}, but this model serves at most "
            f"{max_model_len} tokens of prompt and output together.",
            param="prompt" if params.max_tokens is None else "max_tokens",
            code="context_length_exceeded",
        )
    if params.prompt_logprobs_from >= len(prompt_ids):
        raise RequestError(
            f"prompt_logprobs_from is {params.prompt_logprobs_from}, but the prompt has "
            f"{len(prompt_ids)} tokens; positions count from 0.",
            param="prompt_logprobs_from",
            code="invalid_value",
        )
    if params.n > max_num_seqs:
        raise RequestError(
            f"n is {params.n}; this server runs at most {max_num_seqs} sequences.",
            param="n",
            code="invalid_value",
        )


def make_request(
    request_id: str,
    prompt: array[int],
    params: SamplingParams,
    options: RequestOptions,
    *,
    eos_ids: frozenset[int],
    max_model_len: int,
    arrived_s: float,
) -> RequestState:
    """The state of a request that nothing has run of. Without a seed it gets one."""
    seed = secrets.randbits(53) if params.seed is None else params.seed & _MASK64
    stop_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        stop_ids |= eos_ids
    prompt_spec = None
    if params.prompt_logprobs is not None:
        prompt_spec = SamplingParams(logprobs=params.prompt_logprobs).spec(0)
    max_len = max_model_len
    if params.max_tokens is not None:
        max_len = len(prompt) + params.max_tokens
    return RequestState(
        request_id=request_id,
        params=params,
        options=options,
        prompt=prompt,
        max_len=max_len,
        seeds=[mix64(seed, i) for i in range(params.n)],
        stop_ids=stop_ids,
        prompt_spec=prompt_spec,
        arrived_s=arrived_s,
        prompt_done=params.prompt_logprobs_from,
    )
