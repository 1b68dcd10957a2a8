"""Runs a load: an open loop that never waits for answers, or a closed one of so many at once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.bench.load.client import REFUSED, UNFINISHED, Client, Outcome
from headrace.bench.load.prompts import PromptMaker
from headrace.bench.load.shapes import Shape
from headrace.errors import HeadraceError
from headrace.urls import Target

# The server is gone when it has refused every connection for so long.
PATIENCE_S = 10.0
PAUSE_S = 0.25  # of a closed loop that is refused
# Bodies made before they are needed, so that making them delays no request.
AHEAD_BYTES = 64 << 20
PROBE_WORDS = 24
TIMER_S = 0.001


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to send. `concurrency` None: an open loop, at the shapes' times."""

    shapes: Sequence[Shape]
    concurrency: int | None = None
    model: str | None = None
    seed: int = 0
    chat: bool = False
    ignore_eos: bool = True
    timeout_s: float = 600.0


@dataclass(slots=True)
class LoadRun:
    """What happened. `stopped`: why the run ended before its plan, or ""."""

    model: str
    outcomes: list[Outcome] = field(default_factory=list)
    duration_s: float = 0.0
    cpu_s: float = 0.0
    words_per_token: float = 1.0
    stopped: str = ""


class Bodies:
    """Request bodies in order, made ahead as memory allows."""

    def __init__(self, plan: LoadPlan, model: str, words_per_token: float) -> None:
        self._plan = plan
        self._model = model
        self._prompts = PromptMaker(plan.seed, words_per_token)
        self._made: deque[bytes] = deque()
        self._made_bytes = 0
        self._rest: Iterator[tuple[int, Shape]] = enumerate(plan.shapes)
        self._fill()

    def next(self) -> bytes:
        body = self._made.popleft()
        self._made_bytes -= len(body)
        self._fill()
        return body

    def _fill(self) -> None:
        """At least one, if there is one."""
        while not self._made or self._made_bytes < AHEAD_BYTES:
            item = next(self._rest, None)
            if item is None:
                return
            body = self._body(*item)
            self._made.append(body)
            self._made_bytes += len(body)

    def _body(self, index: int, shape: Shape) -> bytes:
        text = self._prompts.make(index, shape)
        return completion_body(self._plan, self._model, text, shape.output_len)


def completion_body(plan: LoadPlan, model: str, text: str, output_len: int) -> bytes:
    """A greedy, streamed completion of exactly `output_len` tokens, where servers know how."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": output_len,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if plan.chat:
        body["messages"] = [{"role": "user", "content": text}]
    else:
        body["prompt"] = text
    if plan.ignore_eos:
        body["ignore_eos"] = True
    return msgspec.json.encode(body)


def run_load(target: Target, plan: LoadPlan) -> LoadRun:
    """The whole run, from the first question to the server to the last answer.

    Raises HeadraceError when the server cannot be used at all; what happens later is counted. An
    interrupt ends the run and keeps what there is.
    """
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(target, plan))


async def _run(target: Target, plan: LoadPlan) -> LoadRun:
    client = Client(target, plan.timeout_s)
    ids = await client.models()
    if plan.model is None and not ids:
        raise HeadraceError(f"{target.url} has no model; name one with --model.")
    model = ids[0] if plan.model is None else plan.model
    run = LoadRun(model)
    run.words_per_token = await _words_per_token(client, plan, model)
    load = _Load(client, plan, Bodies(plan, model, run.words_per_token), run)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, load.stop, "It was interrupted.")
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        cpu_s = time.process_time()
        await load.go()
        run.cpu_s = time.process_time() - cpu_s
    finally:
        gc.enable()
        gc.unfreeze()
        loop.remove_signal_handler(signal.SIGINT)
    return run


async def _words_per_token(client: Client, plan: LoadPlan, model: str) -> float:
    """How many words make a prompt of so many tokens; also the warm-up. 1 if it is not told."""
    text = PromptMaker(plan.seed).make(-1, Shape(0.0, PROBE_WORDS, 1))
    probe = Outcome(-1, 0.0, PROBE_WORDS, 1)
    start_s = time.monotonic()
    await client.complete(path_of(plan), completion_body(plan, model, text, 2), probe, start_s)
    if probe.error:
        parts = [probe.error, probe.message.rstrip(".")]
        hint = "; is it the right --model?" if probe.error == "HTTP 404" else "."
        raise HeadraceError(f"The first request failed: {', '.join(filter(None, parts))}{hint}")
    return PROBE_WORDS / probe.prompt_tokens if probe.prompt_tokens else 1.0


def path_of(plan: LoadPlan) -> str:
    return "/v1/chat/completions" if plan.chat else "/v1/completions"


class _Load:
    """The requests of one run."""

    def __init__(self, client: Client, plan: LoadPlan, bodies: Bodies, run: LoadRun) -> None:
        self._client = client
        self._plan = plan
        self._bodies = bodies
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._start_s = time.monotonic()
        self._shapes = iter(plan.shapes)
        self._refused_since_s: float | None = None
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self, reason: str) -> None:
        """End the run now; what is under way stays unfinished."""
        self._run.stopped = self._run.stopped or reason
        self._stopped.set()

    async def go(self) -> None:
        self._start_s = time.monotonic()
        if self._plan.concurrency is None:
            await self._open_loop()
        else:
            for _ in range(min(self._plan.concurrency, len(self._plan.shapes))):
                self._begin(self._closed_loop())
        stopped = self._loop.create_task(self._stopped.wait())
        while self._tasks and not self._stopped.is_set():
            await asyncio.wait({*self._tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._run.duration_s = time.monotonic() - self._start_s

    async def _open_loop(self) -> None:
        for shape in self._shapes:
            body = self._bodies.next()
            await self._wait_until(self._start_s + shape.at_s)
            if self._stopped.is_set():
                return
            self._begin(self._one(shape, body, shape.at_s))

    async def _wait_until(self, due_s: float) -> None:
        """Timers are only as fine as a millisecond, and may fire early: the rest is turns of the
        loop, in which answers are read. One turn even when the generator is late."""
        while not self._stopped.is_set():
            delay_s = due_s - time.monotonic() - TIMER_S
            if delay_s <= 0:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), delay_s)
        await asyncio.sleep(0)
        while time.monotonic() < due_s and not self._stopped.is_set():
            await asyncio.sleep(0)

    async def _closed_loop(self) -> None:
        for shape in self._shapes:
            body = self._bodies.next()
            outcome = await self._one(shape, body, time.monotonic() - self._start_s)
            if outcome.error == REFUSED:
                await asyncio.sleep(PAUSE_S)

    def _begin(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _one(self, shape: Shape, body: bytes, scheduled_s: float) -> Outcome:
        outcome = Outcome(len(self._run.outcomes), scheduled_s, shape.prompt_len, shape.output_len)
        outcome.error = UNFINISHED
        self._run.outcomes.append(outcome)
        await self._client.complete(path_of(self._plan), body, outcome, self._start_s)
        self._watch(outcome)
        return outcome

    def _watch(self, outcome: Outcome) -> None:
        now_s = time.monotonic()
        if outcome.error != REFUSED:
            self._refused_since_s = None
        elif self._refused_since_s is None:
            self._refused_since_s = now_s
        elif now_s - self._refused_since_s > PATIENCE_S:
            self.stop(f"The server has refused every connection for {PATIENCE_S:g} s.")
