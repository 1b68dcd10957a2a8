"""The worker's loop: frames in, an engine step, frames out. One thread; it waits only when idle."""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.engine.base import (
    ChoiceDelta,
    EngineAPI,
    Event,
    PromptDelta,
    RequestDone,
    RequestFailed,
)
from headrace.engine.base import TokenLogprob as EngineLogprob
from headrace.errors import OverloadedError, RequestError
from headrace.worker.frames import (
    Abandon,
    Cancel,
    Delta,
    Failed,
    Finished,
    Progress,
    PromptLogprobs,
    Submit,
    Timings,
    ToGateway,
    TokenLogprob,
    ToWorker,
)
from headrace.worker.loaded import TokenBytes

logger = logging.getLogger("headrace.worker")

IDLE_S = 1.0
# What expires while nothing runs goes on time, but an idle process does not wake more often for it.
LEAST_IDLE_S = 0.05
_INTERNAL = "The model failed while it ran this request; the server's log has the reason."


class Channel(Protocol):
    """See worker.channel.WorkerChannel."""

    def receive(self, timeout_s: float) -> list[ToWorker]: ...

    def send(self, batch: Sequence[ToGateway]) -> None: ...


class EngineLoop:
    """Drives an engine from a channel until it is drained. Owns which requests are alive."""

    def __init__(
        self,
        engine: EngineAPI,
        tokenizer: TokenBytes,
        channel: Channel,
        *,
        should_drain: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._channel = channel
        self._should_drain = should_drain
        self._clock = clock
        self._alive: set[str] = set()
        self._deadlines: list[tuple[float, str]] = []
        self._draining = False
        self._out: list[ToGateway] = []

    def run(self) -> None:
        """Serve until a Drain frame or `should_drain`, and until everything admitted has ended."""
        while True:
            busy = self._engine.has_work()
            self._draining = self._draining or self._should_drain()
            if self._draining and not busy:
                return
            for frame in self._channel.receive(0.0 if busy else self._idle_s()):
                self._handle(frame)
            self._expire()
            if self._engine.has_work():
                self._step()
            self._out.append(self._progress())
            out, self._out = self._out, []
            self._channel.send(out)

    def _idle_s(self) -> float:
        if self._draining:
            return LEAST_IDLE_S
        return min(IDLE_S, max(LEAST_IDLE_S, self._engine.expire()))

    # ---- frames in ----

    def _handle(self, frame: ToWorker) -> None:
        if isinstance(frame, Submit):
            self._submit(frame)
        elif isinstance(frame, Cancel):
            self._alive.discard(frame.request_id)
            self._engine.abort(frame.request_id)
        elif isinstance(frame, Abandon):
            self._engine.abandon(frame.prefix, frame.tails, frame.salt)
        else:
            self._draining = True

    def _submit(self, frame: Submit) -> None:
        request_id = frame.request_id
        if request_id in self._alive:
            logger.warning("dropped a second submission of request %s", request_id)
            return
        try:
            self._engine.add(request_id, frame.prompt_ids, frame.params, frame.options)
        except RequestError as error:
            self._fail(request_id, error)
        except Exception:
            logger.exception("request %s could not be added", request_id)
            self._fail(request_id, RequestError(_INTERNAL, status=500))
        else:
            self._alive.add(request_id)
            if frame.deadline_s is not None:
                heapq.heappush(self._deadlines, (self._clock() + frame.deadline_s, request_id))

    def _fail(self, request_id: str, error: RequestError) -> None:
        retry_after_s = error.retry_after_s if isinstance(error, OverloadedError) else None
        self._out.append(
            Failed(
                request_id=request_id,
                message=str(error),
                status=error.status,
                code=error.code,
                param=error.param,
                retry_after_s=retry_after_s,
            )
        )

    def _expire(self) -> None:
        """End what has run past its deadline."""
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            _, request_id = heapq.heappop(self._deadlines)
            if request_id in self._alive:
                self._alive.discard(request_id)
                self._engine.abort(request_id)
                message = "The request took longer than it may; ask for fewer tokens or try later."
                error = RequestError(message, status=504, code="deadline_exceeded")
                self._fail(request_id, error)

    # ---- one step ----

    def _step(self) -> None:
        try:
            events = self._engine.step()
        except Exception:
            logger.exception("a step failed; every request in the engine is ended")
            self._fail_all()
            return
        for event in events:
            self._emit(event)

    def _fail_all(self) -> None:
        """A step broke: nobody knows whose fault it was. Start again from an empty engine.

        Raises (and so ends the process) when the engine is not clean after that.
        """
        for request_id in sorted(self._alive):
            self._engine.abort(request_id)
            self._fail(request_id, RequestError(_INTERNAL, status=500))
        self._alive.clear()
        if self._engine.has_work():
            raise RuntimeError("the engine still has work after all requests were aborted")
        self._engine.check()

    def _emit(self, event: Event) -> None:
        if event.request_id not in self._alive:
            return
        if isinstance(event, ChoiceDelta):
            self._out.append(self._delta(event))
        elif isinstance(event, PromptDelta):
            entries = [None if entry is None else self._logprob(entry) for entry in event.entries]
            self._out.append(
                PromptLogprobs(request_id=event.request_id, start=event.start, entries=entries)
            )
        elif isinstance(event, RequestDone):
            self._alive.discard(event.request_id)
            self._out.append(_finished(event))
        else:
            self._alive.discard(event.request_id)
            self._out.append(_failed(event))

    def _delta(self, event: ChoiceDelta) -> Delta:
        logprobs = event.logprobs
        return Delta(
            request_id=event.request_id,
            choice=event.choice,
            text=event.text,
            token_ids=event.token_ids,
            logprobs=None if logprobs is None else [self._logprob(entry) for entry in logprobs],
            finish_reason=event.finish_reason,
            stop_reason=event.stop_reason,
            num_output=event.num_output,
            num_cached=event.num_cached,
        )

    def _logprob(self, entry: EngineLogprob) -> TokenLogprob:
        text, raw = self._tokenizer.token_text, self._tokenizer.decode_bytes
        token = entry.token_id
        top = [(i, text(i), raw(i), value) for i, value in entry.top]
        return TokenLogprob(token, text(token), raw(token), entry.logprob, top)

    def _progress(self) -> Progress:
        stats = self._engine.stats
        return Progress(
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_free_blocks=stats.num_free_blocks,
            num_blocks=stats.num_blocks,
            num_steps=stats.num_steps,
            num_preemptions=stats.num_preemptions,
            prompt_tokens=stats.prompt_tokens,
            output_tokens=stats.output_tokens,
            last_step_s=stats.last_step_s,
            last_step_rows=stats.last_step_rows,
            lease_wait_s=stats.lease_wait_s,
            last_chunks=list(stats.last_chunks),
            num_passes=stats.num_passes,
            step_time_error=stats.step_time_error,
            step_time_margin=stats.step_time_margin,
            itl_target_s=stats.itl_target_s,
            num_cached_blocks=stats.num_cached_blocks,
            num_idle_blocks=stats.num_idle_blocks,
            num_inserted_blocks=stats.num_inserted_blocks,
            num_evicted_blocks=dict(stats.num_evicted_blocks),
            allocation=stats.allocation,
        )


def _finished(event: RequestDone) -> Finished:
    return Finished(
        request_id=event.request_id,
        num_prompt=event.num_prompt,
        num_output=event.num_output,
        num_cached=event.num_cached,
        num_preemptions=event.num_preemptions,
        seeds=event.seeds,
        timings=Timings(event.queue_s, event.prefill_s, event.decode_s),
    )


def _failed(event: RequestFailed) -> Failed:
    return Failed(
        request_id=event.request_id, message=event.message, status=event.status, code=event.code
    )
