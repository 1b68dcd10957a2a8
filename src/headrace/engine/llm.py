"""LLM: the same engine in the caller's process, for scripts and batch work."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.backends.layout import DEFAULT_KV_DTYPE
from headrace.engine.base import (
    DEFAULT_OPTIONS,
    ChoiceDelta,
    EngineAPI,
    RequestFailed,
    RequestOptions,
)
from headrace.engine.driver import EngineDriver
from headrace.engine.inbox import CLOSED, Inbox, SharedEngine
from headrace.engine.load import LoadedEngine, LoadOptions, load_engine
from headrace.engine.output import (
    Choice,
    Output,
    StreamChunk,
    Timings,
    Usage,
    collect,
    empty_output,
)
from headrace.engine.sampling import SamplingParams
from headrace.errors import HeadraceError, RequestError
from headrace.text.base import ChatTemplate

__all__ = ["LLM", "Choice", "Output", "Prompt", "StreamChunk", "Timings", "Usage"]

Prompt = str | Sequence[int]


class LLM:
    """An engine for one model in this process. Close it, or use it as a context manager.

    `model`: a catalog name, a path, or a Hub id, as on the command line. Calls may overlap, from
    any thread and between the chunks of a stream: their requests run as one batch. `activations`:
    "quantized", or "float32" for more exact and slower products. `prefix_cache`: what was computed
    is kept for prompts that begin alike. `options` of a call: how its requests are queued, and what
    is kept of them (engine.base.RequestOptions).
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
        prefix_cache: bool = True,
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
            prefix_cache=prefix_cache,
        )
        self._loaded: LoadedEngine | None = load_engine(path, options)
        self._shared = SharedEngine(self._loaded.engine)
        self._driver = EngineDriver(self._shared)
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
        self._driver.close()
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
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> list[Output]:
        """Complete each prompt (text or token ids), all in one batch; results in prompt order."""
        prompt_list = _as_prompts(prompts)
        params_list = _as_params(params, len(prompt_list))
        outputs: dict[str, Output] = {}
        inbox = Inbox()
        try:
            for prompt, each in zip(prompt_list, params_list, strict=True):
                request_id, ids = self._add(inbox, prompt, each, options)
                outputs[request_id] = empty_output(ids, each)
            for event in self._shared.events(inbox):
                collect(outputs[event.request_id], event)
        finally:
            self._shared.drop(inbox)
        return list(outputs.values())

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Future[Output]:
        """Queue one prompt and return at once; cancelling the future aborts its request.

        A thread steps the engine for such requests while there are any. The future's `result`
        raises what `generate` would raise.
        """
        (one_params,) = _as_params(params, 1)
        request_id, ids = self._encode(prompt)
        return self._driver.submit(request_id, ids, one_params, options)

    def abandon(
        self, prefix: Sequence[int], tails: Sequence[Sequence[int]], salt: str = ""
    ) -> None:
        """Say that nobody will go on with these token ids: see EngineAPI.abandon.

        Raises RequestError for what are no ids.
        """
        try:
            ids = [[operator.index(i) for i in part] for part in (prefix, *tails)]
        except TypeError as error:
            raise RequestError(f"abandon takes lists of token ids ({error}).") from None
        if not isinstance(salt, str):
            raise RequestError(f"salt must be a string, not {type(salt).__name__}.", param="salt")
        self._driver.abandon(ids[0], ids[1:], salt)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Generator[StreamChunk]:
        """Complete one prompt, yielding text as it becomes certain. Closing it aborts it."""
        (one_params,) = _as_params(params, 1)
        inbox = Inbox()
        try:
            self._add(inbox, prompt, one_params, options)
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
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Output:
        """Answer a conversation through the model's chat template."""
        return self.generate([self.render(messages)], params, options=options)[0]

    def chat_stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Generator[StreamChunk]:
        """Like chat, streamed."""
        return self.stream(self.render(messages), params, options=options)

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

    def _add(
        self, inbox: Inbox, prompt: Prompt, params: SamplingParams, options: RequestOptions
    ) -> tuple[str, list[int]]:
        request_id, ids = self._encode(prompt)
        self._shared.add(inbox, request_id, ids, params, options)
        return request_id, ids

    def _encode(self, prompt: Prompt) -> tuple[str, list[int]]:
        """A new request's id and its prompt's token ids."""
        tokenizer = self._open.tokenizer
        ids = tokenizer.encode(prompt) if isinstance(prompt, str) else _as_ids(prompt)
        return f"llm-{next(self._ids)}", ids


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
