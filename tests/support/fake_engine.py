"""A deterministic engine without a model, and the builder that puts it into a real worker process.

The text of a choice depends on its prompt, its seed and nothing else. Words in the prompt make it
misbehave: `!crash` (SIGKILL in the first step), `!late-crash` (after three tokens), `!hang`,
`!raise` (the step raises), `!fail` (only this request fails), `!refuse` (add raises 429), `!slow`
(20 ms a step), `!utf8` (the text is of many-byte characters).
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.engine.base import (
    DEFAULT_OPTIONS,
    ChoiceDelta,
    EngineStats,
    Event,
    PromptDelta,
    RequestDone,
    RequestFailed,
    RequestOptions,
    TokenLogprob,
)
from headrace.engine.sampling import SamplingParams, mix64
from headrace.errors import ModelFormatError, OverloadedError, RequestError
from headrace.worker.config import WorkerConfig
from headrace.worker.frames import Ready
from headrace.worker.loaded import WorkerEngine
from tests.support.fake_text import EOS, VOCAB_SIZE, FakeTokenizer

BLOCK_LEN = 16
NUM_BLOCKS = 4096
CHUNK_LEN = 512
MAX_MODEL_LEN = 4096
DEFAULT_OUTPUT_LEN = 24
NUMERICS_ID = "fake-0123456789abcdef"
_WORDS = ["!crash", "!late-crash", "!hang", "!raise", "!fail", "!refuse", "!slow", "!utf8"]
_UTF8 = "żółw 漢字 🦀 "


def output_ids(prompt: Sequence[int], seed: int, choice: int) -> list[int]:
    """What the choice would say: DEFAULT_OUTPUT_LEN letters, then EOS; repeats under ignore_eos."""
    if b"!utf8" in _text(prompt):
        return [*_UTF8.encode(), EOS]
    key = repr((list(prompt), mix64(seed, choice))).encode()
    digest = hashlib.blake2b(key, digest_size=DEFAULT_OUTPUT_LEN).digest()
    return [*(97 + byte % 26 for byte in digest), EOS]


def _text(prompt: Sequence[int]) -> bytes:
    return bytes(token for token in prompt if token < 256)


@dataclass
class _Choice:
    index: int
    script: list[int]
    num_output: int = 0
    pending: bytes = b""
    text: str = ""
    reason: str | None = None


@dataclass
class _Request:
    request_id: str
    prompt: list[int]
    params: SamplingParams
    words: set[str]
    choices: list[_Choice]
    computed: int = 0
    arrived_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None
    first_s: float | None = None


class FakeEngine:
    """Implements engine.base.EngineAPI. At most `max_num_seqs` requests run, in order."""

    def __init__(self, max_num_seqs: int = 64, max_model_len: int = MAX_MODEL_LEN) -> None:
        self.max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self.abandoned: list[tuple[Sequence[int], Sequence[Sequence[int]], str]] = []
        self._requests: dict[str, _Request] = {}
        self._stats = EngineStats(num_blocks=NUM_BLOCKS)
        self._tokenizer = FakeTokenizer()
        self.expires_in_s = math.inf
        self.num_expired = 0

    def add(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> None:
        params.validate(VOCAB_SIZE)
        text = _text(prompt_ids).decode("utf-8", "replace")
        words = {word for word in _WORDS if word in text}
        if "!refuse" in words:
            raise OverloadedError("The fake queue is full.", retry_after_s=3.0)
        if len(prompt_ids) + (params.max_tokens or 1) > self.max_model_len:
            raise RequestError("Too long.", param="prompt", code="context_length_exceeded")
        seed = params.seed or 0
        choices = [_Choice(i, output_ids(prompt_ids, seed, i)) for i in range(params.n)]
        request = _Request(request_id, list(prompt_ids), params, words, choices)
        self._requests[request_id] = request

    def abort(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def abandon(
        self, prefix: Sequence[int], tails: Sequence[Sequence[int]], salt: str = ""
    ) -> None:
        self.abandoned.append((prefix, tails, salt))

    def expire(self) -> float:
        self.num_expired += 1
        return self.expires_in_s

    def has_work(self) -> bool:
        return bool(self._requests)

    def step(self) -> list[Event]:
        assert self._requests, "step without work"
        started_s = time.monotonic()
        events: list[Event] = []
        rows = 0
        for request in list(self._requests.values())[: self._max_num_seqs]:
            _misbehave(request)
            if "!fail" in request.words:
                events.append(RequestFailed(request.request_id, "The fake model failed."))
                del self._requests[request.request_id]
                continue
            rows += self._advance(request, events)
        stats = self._stats
        stats.num_steps += 1
        stats.last_step_rows = rows
        stats.last_step_s = time.monotonic() - started_s
        return events

    def _advance(self, request: _Request, events: list[Event]) -> int:
        if request.started_s is None:
            request.started_s = time.monotonic()
        if request.computed < len(request.prompt):
            rows = min(CHUNK_LEN, len(request.prompt) - request.computed)
            self._prefill(request, rows, events)
            if request.computed < len(request.prompt):
                return rows
        rows = 0
        for choice in request.choices:
            if choice.reason is None:
                rows += 1
                events.append(self._draw(request, choice))
        if all(choice.reason is not None for choice in request.choices):
            events.append(_done(request))
            del self._requests[request.request_id]
        return rows

    def _prefill(self, request: _Request, rows: int, events: list[Event]) -> None:
        start = request.computed
        request.computed += rows
        self._stats.prompt_tokens += rows
        num_top = request.params.prompt_logprobs
        if num_top is not None:
            first = max(start, request.params.prompt_logprobs_from)
            tokens = request.prompt[first : start + rows]
            entries = [_logprob(t, num_top) if first + i else None for i, t in enumerate(tokens)]
            if entries:
                events.append(PromptDelta(request.request_id, first, entries))

    def _draw(self, request: _Request, choice: _Choice) -> ChoiceDelta:
        params = request.params
        if request.first_s is None:
            request.first_s = time.monotonic()
        if params.max_tokens == 0:
            choice.reason = "length"
            return ChoiceDelta(request.request_id, choice.index, "", [], None, "length", None, 0)
        token = self._next_token(params, choice)
        choice.num_output += 1
        self._stats.output_tokens += 1
        stop_ids = set() if params.ignore_eos else set(self._tokenizer.eos_ids)
        stop_reason: str | int | None = None
        text = self._decode(choice, token)
        if token in stop_ids | set(params.stop_token_ids):
            choice.reason = "stop"
            stop_reason = token if token in params.stop_token_ids else None
        elif (found := _find_stop(choice.text, text, params.stop)) is not None:
            text, stop_reason = found
            choice.reason = "stop"
        elif (
            choice.num_output == params.max_tokens
            or len(request.prompt) + choice.num_output >= self.max_model_len
        ):
            choice.reason = "length"
        if choice.reason is not None and choice.pending:
            text += choice.pending.decode("utf-8", "replace")
        choice.text += text
        logprobs = None if params.logprobs is None else [_logprob(token, params.logprobs)]
        return ChoiceDelta(
            request.request_id,
            choice.index,
            text,
            [token],
            logprobs,
            choice.reason,
            stop_reason,
            choice.num_output,
        )

    def _next_token(self, params: SamplingParams, choice: _Choice) -> int:
        script = choice.script
        token = script[choice.num_output % len(script)]
        if token == EOS and (params.ignore_eos or choice.num_output < params.min_tokens):
            return 33
        return token

    def _decode(self, choice: _Choice, token: int) -> str:
        """Whole characters only, as the real detokenizer gives them."""
        data = choice.pending + self._tokenizer.decode_bytes(token)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            choice.pending = data
            return ""
        choice.pending = b""
        return text

    @property
    def stats(self) -> EngineStats:
        running = min(len(self._requests), self._max_num_seqs)
        used = sum(
            (r.computed + sum(c.num_output for c in r.choices) + BLOCK_LEN - 1) // BLOCK_LEN
            for r in self._requests.values()
        )
        self._stats.num_running = running
        self._stats.num_waiting = len(self._requests) - running
        self._stats.num_free_blocks = NUM_BLOCKS - used
        return self._stats

    def check(self) -> None:
        if not self._requests:
            assert self.stats.num_free_blocks == NUM_BLOCKS


def _misbehave(request: _Request) -> None:
    words = request.words
    if "!crash" in words:
        os.kill(os.getpid(), signal.SIGKILL)
    if "!late-crash" in words and request.choices[0].num_output >= 3:
        # What was sent is still in the socket's own thread.
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    if "!hang" in words:
        time.sleep(3600)
    if "!raise" in words:
        raise RuntimeError("the fake step raised")
    if "!slow" in words:
        time.sleep(0.02)


def _find_stop(before: str, text: str, stops: Sequence[str]) -> tuple[str, str] | None:
    """The text up to a stop string that ends in this delta (stop strings of one character)."""
    for stop in stops:
        at = (before + text).find(stop)
        if at >= 0:
            return (before + text)[len(before) : max(at, len(before))], stop
    return None


def _logprob(token: int, num_top: int) -> TokenLogprob:
    top = tuple(((token + i) % 256, -0.5 - i) for i in range(num_top))
    return TokenLogprob(token, -0.5, top)


def _done(request: _Request) -> RequestDone:
    now = time.monotonic()
    started_s = request.started_s or now
    first_s = request.first_s or now
    return RequestDone(
        request.request_id,
        len(request.prompt),
        sum(choice.num_output for choice in request.choices),
        0,
        0,
        [mix64(request.params.seed or 0, i) for i in range(request.params.n)],
        started_s - request.arrived_s,
        first_s - started_s,
        now - first_s,
    )


def build(config: WorkerConfig) -> WorkerEngine:
    """A builder (see worker.config). A path that names `corrupt` or `crash` does not load."""
    if "corrupt" in config.model_path:
        raise ModelFormatError("The fake model is corrupt.")
    if "crash" in config.model_path:
        os.kill(os.getpid(), signal.SIGKILL)
    max_model_len = min(config.max_model_len or MAX_MODEL_LEN, MAX_MODEL_LEN)
    engine = FakeEngine(config.max_num_seqs, max_model_len)
    ready = Ready(
        model_name=config.model_name,
        numerics_id=NUMERICS_ID,
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
        num_blocks=NUM_BLOCKS,
        block_len=BLOCK_LEN,
        kv_bytes=NUM_BLOCKS << 10,
        kv_tokens=NUM_BLOCKS * BLOCK_LEN,
        weights_bytes=0,
        load_s=0.0,
        isa="fake",
        threads=1,
    )
    return WorkerEngine(engine, FakeTokenizer(), ready)
