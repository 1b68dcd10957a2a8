"""One served model: admission, submission, routing of events, what a worker's death means."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Sequence

from headrace.engine.base import DEFAULT_OPTIONS, RequestOptions
from headrace.engine.sampling import SamplingParams
from headrace.errors import OverloadedError
from headrace.gateway.config import ModelSpec, ServeConfig
from headrace.gateway.errors import UnavailableError
from headrace.gateway.poison import MAX_DEATHS, PoisonList, digest_of
from headrace.gateway.streams import Part, RequestStream
from headrace.gateway.supervisor import State, Supervisor
from headrace.gateway.text import ModelText
from headrace.observe.metrics import ModelMetrics
from headrace.worker.frames import (
    Abandon,
    Cancel,
    Delta,
    Failed,
    Finished,
    Progress,
    PromptLogprobs,
    Ready,
    Submit,
    ToGateway,
)

logger = logging.getLogger("headrace.gateway")

_HOLD_S = 120.0


class ModelService:
    """Implements supervisor.WorkerEvents. Everything runs on the event loop.

    A part (one prompt) is open from admission until its Finished or Failed, or until its stream
    is closed. Open parts that are not sent wait in `_unsent` (no worker yet) or in `_suspects`:
    those were in a worker that died before they had any output. They are sent again one at a time,
    so that a second death has one culprit.
    """

    def __init__(self, spec: ModelSpec, config: ServeConfig, metrics: ModelMetrics) -> None:
        self.spec = spec
        self.names: tuple[str, ...] = (spec.name,)
        self.text: ModelText | None = None
        self.ready: Ready | None = None
        self.supervisor: Supervisor | None = None
        self.metrics = metrics
        self._config = config
        self._changed = asyncio.Event()
        self._parts: dict[str, Part] = {}
        self._open_tokens = 0
        self._unsent: deque[Part] = deque()
        self._suspects: deque[Part] = deque()
        self._on_trial: Part | None = None
        self._poison = PoisonList()
        self._num_held = 0
        self._text_error: str | None = None

    @property
    def load_error(self) -> str | None:
        """Why the model could not be loaded: one sentence, or None."""
        supervisor = self.supervisor
        if self._text_error is not None or supervisor is None:
            return self._text_error
        if supervisor.load_error is None and supervisor.last_reason is not None:
            return f"Its worker process did not come up: {supervisor.last_reason}."
        return supervisor.load_error

    @property
    def state(self) -> State:
        """READY only when text and worker both are."""
        if self._text_error is not None:
            return State.FAILED
        if self.supervisor is None:
            return State.LOADING
        state = self.supervisor.state
        return State.LOADING if state is State.READY and self.text is None else state

    @property
    def num_open(self) -> int:
        return len(self._parts)

    def set_text(self, text: ModelText) -> None:
        """The tokenizer is loaded."""
        self.text = text
        self._notify()

    def fail_text(self, message: str) -> None:
        """The tokenizer cannot be loaded: the model cannot be served."""
        self._text_error = message
        self._notify()

    async def wait_settled(self) -> None:
        """Return when the first load has ended, well or not."""
        while self.state is State.LOADING:
            await self._changed.wait()

    async def wait_servable(self) -> tuple[ModelText, Ready]:
        """Hold a request while the model loads. Raises UnavailableError when it cannot serve."""
        if self.state is State.LOADING:
            await self._hold()
        state = self.state
        if state is State.READY and self.text is not None and self.ready is not None:
            return self.text, self.ready
        if state is State.LOADING:
            raise UnavailableError(
                f"The model {self.spec.name} is still loading; retry soon.",
                code="model_loading",
                retry_after_s=5.0,
            )
        if state is State.RESTARTING:
            raise UnavailableError(
                f"The model {self.spec.name} is restarting; retry soon.",
                code="engine_dead",
                retry_after_s=1.0,
            )
        raise UnavailableError(
            f"The model {self.spec.name} is not available.",
            code="draining" if state is State.STOPPED else "engine_dead",
            retry_after_s=30.0,
        )

    async def _hold(self) -> None:
        if self._num_held >= self._config.max_waiting:
            raise OverloadedError(
                f"Too many requests wait for {self.spec.name} to load.", retry_after_s=5.0
            )
        self._num_held += 1
        try:
            async with asyncio.timeout(_HOLD_S):
                while self.state is State.LOADING:
                    await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self._num_held -= 1

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # ---- admission ----

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        options: RequestOptions = DEFAULT_OPTIONS,
        *,
        deadline_s: float | None = None,
    ) -> RequestStream:
        """Admit all prompts of one HTTP request, or none of them.

        Raises OverloadedError or UnavailableError. The caller owns the stream and must close it.
        """
        self._check_room(len(prompts), sum(map(len, prompts)))
        now = _now()
        stream = RequestStream(self._config.limits.pending_bytes, self.close)
        base = secrets.token_hex(12)
        parts = [
            Part(f"{base}-{i}", i, ids, params, stream, options) for i, ids in enumerate(prompts)
        ]
        for part in parts:
            part.arrived_s = now
            part.deadline_s = deadline_s
            self._check_poison(part, now)
        stream.open(parts)
        for part in parts:
            self._parts[part.request_id] = part
            self._open_tokens += len(part.prompt_ids)
            self.metrics.on_admission(params.n, params.max_tokens)
            self._unsent.append(part)
        self._flush()
        self._report_open()
        return stream

    def _check_room(self, num_prompts: int, num_tokens: int) -> None:
        config = self._config
        limit = config.max_num_seqs + config.max_waiting
        token_limit = config.max_waiting_tokens
        if self.ready is not None:
            token_limit += self.ready.kv_tokens
        num_open = len(self._parts)
        if num_open + num_prompts > limit or (
            num_open and self._open_tokens + num_tokens > token_limit
        ):
            self.metrics.rejected.inc()
            raise OverloadedError(
                f"The server is busy with {num_open} requests of {self._open_tokens} prompt "
                "tokens; retry later.",
                retry_after_s=min(30.0, 1.0 + num_open / 64),
            )

    def _check_poison(self, part: Part, now: float) -> None:
        if self._poison.is_empty:
            return
        part.digest = digest_of(part.prompt_ids, part.params)
        if self._poison.num_deaths(part.digest, now) >= MAX_DEATHS:
            self.metrics.poisoned.inc()
            raise UnavailableError(_POISON, code="request_refused", status=500)

    # ---- to the worker ----

    def _flush(self) -> None:
        """Send what may be sent."""
        supervisor = self.supervisor
        if supervisor is None or supervisor.state is not State.READY:
            return
        batch: list[Submit] = []
        while self._unsent:
            batch.append(self._mark_sent(self._unsent.popleft()))
        if self._on_trial is None and self._suspects:
            self._on_trial = self._suspects.popleft()
            batch.append(self._mark_sent(self._on_trial))
        if batch:
            supervisor.send(batch)

    @staticmethod
    def _mark_sent(part: Part) -> Submit:
        part.is_sent = True
        return Submit(
            request_id=part.request_id,
            prompt_ids=list(part.prompt_ids),
            params=part.params,
            options=part.options,
            deadline_s=part.deadline_s,
        )

    def close(self, stream: RequestStream, reason: str = "abort") -> None:
        """Forget a stream's open parts and free what they hold in the worker."""
        cancels: list[Cancel] = []
        for part in stream.parts:
            if self._parts.pop(part.request_id, None) is None:
                continue
            self._open_tokens -= len(part.prompt_ids)
            self.metrics.count_end(reason)
            if part.is_sent:
                cancels.append(Cancel(request_id=part.request_id))
            elif part in self._unsent:
                self._unsent.remove(part)
            elif part in self._suspects:
                self._suspects.remove(part)
            self._acquit(part)
        if cancels and self.supervisor is not None:
            self.supervisor.send(cancels)
        self._report_open()

    def abandon(self, prefix: list[int], tails: list[list[int]], salt: str = "") -> None:
        """Pass the hint of EngineAPI.abandon on; without a worker there is nobody to take it."""
        if self.supervisor is not None and self.supervisor.state is State.READY:
            self.supervisor.send([Abandon(prefix=prefix, tails=tails, salt=salt)])

    def _acquit(self, part: Part) -> None:
        """The part on trial has had output or is gone: the next suspect may run."""
        if part is self._on_trial:
            self._on_trial = None
            self._flush()

    def _report_open(self) -> None:
        self.metrics.set_open(len(self._parts), self._open_tokens)

    # ---- from the worker (WorkerEvents) ----

    def on_ready(self, ready: Ready) -> None:
        """A worker serves."""
        self.ready = ready
        self.metrics.on_ready(ready)
        self._flush()
        self._notify()

    def on_frames(self, batch: list[ToGateway]) -> None:
        """Route events to their streams."""
        for frame in batch:
            if isinstance(frame, Delta):
                part = self._parts.get(frame.request_id)
                if part is not None:
                    self._on_delta(part, frame)
            elif isinstance(frame, Progress):
                self.metrics.on_progress(frame)
            elif isinstance(frame, PromptLogprobs):
                part = self._parts.get(frame.request_id)
                if part is not None:
                    part.stream.push(part.index, frame)
            elif isinstance(frame, Finished):
                self._on_finished(frame)
            elif isinstance(frame, Failed):
                self._on_failed(frame)

    def _on_delta(self, part: Part, frame: Delta) -> None:
        now = _now()
        last_s = part.last_s
        if part.first_s == 0.0:
            part.first_s = now
            self.metrics.ttft.observe(now - part.arrived_s)
            self._acquit(part)
        elif frame.choice in last_s:
            self.metrics.itl.observe(now - last_s[frame.choice])
        last_s[frame.choice] = now
        if frame.finish_reason is not None:
            self.metrics.count_end(frame.finish_reason)
        stream = part.stream
        stream.push(part.index, frame)
        if stream.is_behind:
            self._fail_stream(stream, _failed("The client reads too slowly.", 500, "slow_reader"))

    def _on_finished(self, frame: Finished) -> None:
        part = self._parts.pop(frame.request_id, None)
        if part is None:
            return
        self._open_tokens -= len(part.prompt_ids)
        self._poison.note_success(part.digest)
        self.metrics.on_lengths(frame.num_prompt, frame.num_output, frame.num_cached)
        times = frame.timings
        e2e_s = _now() - part.arrived_s
        self.metrics.on_times(e2e_s, times.queue_s, times.prefill_s, times.decode_s)
        part.stream.push(part.index, frame)
        self._acquit(part)
        self._report_open()

    def _on_failed(self, frame: Failed) -> None:
        part = self._parts.pop(frame.request_id, None)
        if part is None:
            return
        self._open_tokens -= len(part.prompt_ids)
        self.metrics.count_end("error")
        part.stream.push(part.index, frame)
        self.close(part.stream, "error")
        self._acquit(part)
        self._report_open()

    def _fail_stream(self, stream: RequestStream, failure: Failed) -> None:
        """End a stream with an error, whatever its parts are doing."""
        if not stream.is_failed and stream.parts:
            stream.push(stream.parts[0].index, failure)
        self.close(stream, "error")

    def fail_all(self, message: str, code: str) -> None:
        """End every open stream with an error."""
        failure = _failed(message, 503, code, retry_after_s=1.0)
        for part in list(self._parts.values()):
            if part.request_id in self._parts:
                self._fail_stream(part.stream, failure)

    def on_down(self, reason: str) -> None:
        """The worker is gone. Streams with output end; the others are tried once more."""
        now = _now()
        self.metrics.on_down()
        self._on_trial = None
        gone = f"The model's worker process is gone ({reason}); the answer is incomplete."
        is_final = self.state not in (State.RESTARTING, State.LOADING)
        # One death, however many equal requests were in it.
        deaths_of: dict[bytes, int] = {}
        for part in list(self._parts.values()):
            if part.request_id not in self._parts:
                continue
            if part.is_sent:
                part.is_sent = False
                part.digest = part.digest or digest_of(part.prompt_ids, part.params)
                if part.digest not in deaths_of:
                    deaths_of[part.digest] = self._poison.note_death(part.digest, now)
                if deaths_of[part.digest] >= MAX_DEATHS:
                    self.metrics.poisoned.inc()
                    self._fail_stream(part.stream, _failed(_POISON, 500, "request_refused"))
                elif part.stream.has_output:
                    self._fail_stream(part.stream, _failed(gone, 503, "engine_dead", 1.0))
                else:
                    self._suspects.append(part)
            if is_final:
                self._fail_stream(part.stream, _failed(gone, 503, "engine_dead", 30.0))
        self._report_open()
        self._notify()


_POISON = (
    "This request was in the model's worker process both times it died; it will not be run again."
)


def _failed(message: str, status: int, code: str, retry_after_s: float | None = None) -> Failed:
    return Failed(
        request_id="", message=message, status=status, code=code, retry_after_s=retry_after_s
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
