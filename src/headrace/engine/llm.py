"""LLM: the same engine in the caller's process, for scripts and batch work."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.backends.layout import DEFAULT_KV_DTYPE
from headrace.engine.base import (
    ChoiceDelta,
    EngineAPI,
    PromptDelta,
    RequestDone,
    RequestFailed,
    TokenLogprob,
)
from headrace.engine.inbox import CLOSED, Inbox, SharedEngine
from headrace.engine.load import LoadedEngine, LoadOptions, load_engine
from headrace.engine.sampling import SamplingParams
from headrace.errors import HeadraceError, RequestError
from headrace.text.base import ChatTemplate

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request, summed over its choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds a request waited, prefilled (to its first token) and decoded."""

    queue_s: float
    prefill_s: float
    decode_s: float


@dataclass(slots=True)
class Choice:
    """One completion. `logprobs` has one entry per token id when asked for. n = 1 with `seed`
    gives the same text."""

    index: int
    seed: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str = ""
    stop_reason: str | int | None = None


@dataclass(slots=True)
class Output:
    """Result of one prompt; `text`, `token_ids` and the like are the first choice's.

    `prompt_logprobs` begin with position `prompt_logprobs_from`; position 0 is None.
    """

    prompt_token_ids: list[int]
    choices: list[Choice]
    prompt_logprobs: list[TokenLogprob | None] | None = None
    usage: Usage = Usage(0, 0, 0)
    timings: Timings = Timings(0.0, 0.0, 0.0)

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> list[TokenLogprob] | None:
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """News of one choice; the last chunk of a choice has a finish_reason."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    finish_reason: str | None


class LLM:
    """An engine for one model in this process. Close it, or use it as a context manager.

    `model`: a catalog name, a path, or a Hub id, as on the command line. Calls may overlap, from
    any thread and between the chunks of a stream: their requests run as one batch. `activations`:
    "quantized", or "float32" for more exact and slower products.
    Raises HeadraceError for a model that cannot be found, read or held.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        kv_cache_bytes: int | None = None,
        max_num_seqs: int = 64,
        threads: int | None = None,
        max_model_len: int | None = None,
        max_step_tokens: int = 512,
        packing: str | None = None,
        kv_dtype: str = DEFAULT_KV_DTYPE,
        activations: str = "quantized",
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        from headrace.weights.resolve import resolve

        counts = {
            "kv_cache_bytes": kv_cache_bytes,
            "max_num_seqs": max_num_seqs,
            "threads": threads,
            "max_model_len": max_model_len,
            "max_step_tokens": max_step_tokens,
        }
        for name, value in counts.items():
            if value is not None and (type(value) is not int or value < 1):
                raise HeadraceError(f"{name} is {value!r}; it must be a whole number above 0.")
        path = resolve(str(model), progress=progress)
        options = LoadOptions(
            kv_cache_bytes=kv_cache_bytes,
            max_num_seqs=max_num_seqs,
            max_step_tokens=max_step_tokens,
            max_waiting=1 << 30,
            max_waiting_tokens=1 << 62,
            max_model_len=max_model_len,
            threads=threads,
            packing=packing,
            kv_dtype=kv_dtype,
            activations=activations,
        )
        self._loaded: LoadedEngine | None = load_engine(path, options)
        self._shared = SharedEngine(self._loaded.engine)
        self._template: ChatTemplate | None = None
        self._ids = itertools.count()

    # ---- life ----

    @property
    def _open(self) -> LoadedEngine:
        if self._loaded is None:
            raise HeadraceError(CLOSED)
        return self._loaded

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer (text.base.Tokenizer)."""
        return self._open.tokenizer

    @property
    def max_model_len(self) -> int:
        return self._open.engine.max_model_len

    @property
    def has_chat_template(self) -> bool:
        """False for a base model: it completes text, and `chat` raises."""
        return self._open.chat_template is not None

    @property
    def engine(self) -> EngineAPI:
        """The engine below, for a caller that adds and steps requests itself."""
        return self._open.engine

    def close(self) -> None:
        """Free weights, KV and threads; a second call does nothing."""
        self._shared.close()
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- generation ----

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Output]:
        """Complete each prompt (text or token ids), all in one batch; results in prompt order."""
        prompt_list = _as_prompts(prompts)
        params_list = _as_params(params, len(prompt_list))
        outputs: dict[str, Output] = {}
        inbox = Inbox()
        try:
            for prompt, each in zip(prompt_list, params_list, strict=True):
                request_id, ids = self._add(inbox, prompt, each)
                outputs[request_id] = _empty_output(ids, each)
            for event in self._shared.events(inbox):
                _collect(outputs, event)
        finally:
            self._shared.drop(inbox)
        return list(outputs.values())

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Generator[StreamChunk]:
        """Complete one prompt, yielding text as it becomes certain. Closing it aborts it."""
        (one_params,) = _as_params(params, 1)
        inbox = Inbox()
        try:
            self._add(inbox, prompt, one_params)
            for event in self._shared.events(inbox):
                if isinstance(event, ChoiceDelta):
                    yield StreamChunk(
                        event.choice,
                        event.text,
                        event.token_ids,
                        event.logprobs,
                        event.finish_reason,
                    )
                elif isinstance(event, RequestFailed):
                    raise HeadraceError(event.message)
        finally:
            self._shared.drop(inbox)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None
    ) -> Output:
        """Answer a conversation through the model's chat template."""
        return self.generate([self.render(messages)], params)[0]

    def chat_stream(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None
    ) -> Generator[StreamChunk]:
        """Like chat, streamed."""
        return self.stream(self.render(messages), params)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation, up to where the model's answer begins."""
        if not isinstance(messages, list | tuple) or not all(
            isinstance(message, Mapping) for message in messages
        ):
            raise RequestError("messages must be a list of mappings with a role and a content.")
        if self._template is None:
            from headrace.text.chat_template import load_chat_template

            self._template = load_chat_template(self._open.chat_template, self._open.tokenizer)
        text = self._template.render(messages)
        return self._open.tokenizer.encode(text, add_special=False)

    def _add(self, inbox: Inbox, prompt: Prompt, params: SamplingParams) -> tuple[str, list[int]]:
        tokenizer = self._open.tokenizer
        ids = tokenizer.encode(prompt) if isinstance(prompt, str) else _as_ids(prompt)
        request_id = f"llm-{next(self._ids)}"
        self._shared.add(inbox, request_id, ids, params)
        return request_id, ids


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt (a string, or a list of ids) or several."""
    if isinstance(prompts, str):
        return [prompts]
    items: list[Any] = list(_items(prompts))
    if items and all(hasattr(item, "__index__") for item in items):
        return [items]
    return items


def _as_ids(prompt: object) -> list[int]:
    """Token ids of any integer type. Raises RequestError."""
    try:
        return [operator.index(token) for token in _items(prompt)]
    except TypeError:
        raise RequestError("A prompt is a text or a list of token ids.") from None


def _items(value: object) -> Iterable[Any]:
    """What a list holds. Raises RequestError for what only looks like one."""
    if isinstance(value, bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        kind = type(value).__name__
        raise RequestError(f"A prompt is a text or a list of token ids, not of type {kind}.")
    return value


def _as_params(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    each: list[Any] = list(params) if isinstance(params, list | tuple) else [params]
    if not all(isinstance(one, SamplingParams) for one in each):
        raise RequestError("params must be SamplingParams, or a list of them.")
    if len(each) != count:
        raise RequestError(f"{len(each)} sampling parameters were given for {count} prompts.")
    return each


def _empty_output(ids: list[int], params: SamplingParams) -> Output:
    choices = [
        Choice(index, logprobs=None if params.logprobs is None else []) for index in range(params.n)
    ]
    return Output(ids, choices, None if params.prompt_logprobs is None else [])


def _collect(outputs: dict[str, Output], event: object) -> None:
    """Add one engine event to the outputs. Raises HeadraceError when a request failed."""
    if isinstance(event, ChoiceDelta):
        choice = outputs[event.request_id].choices[event.choice]
        choice.text += event.text
        choice.token_ids += event.token_ids
        if choice.logprobs is not None and event.logprobs is not None:
            choice.logprobs += event.logprobs
        if event.finish_reason is not None:
            choice.finish_reason = event.finish_reason
            choice.stop_reason = event.stop_reason
    elif isinstance(event, PromptDelta):
        entries = outputs[event.request_id].prompt_logprobs
        if entries is not None:
            entries += event.entries
    elif isinstance(event, RequestDone):
        output = outputs[event.request_id]
        output.usage = Usage(event.num_prompt, event.num_output, event.num_cached)
        output.timings = Timings(event.queue_s, event.prefill_s, event.decode_s)
        for choice, seed in zip(output.choices, event.seeds, strict=True):
            choice.seed = seed
    elif isinstance(event, RequestFailed):
        raise HeadraceError(event.message)
