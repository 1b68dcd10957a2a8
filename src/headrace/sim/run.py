"""Runs jobs through the real engine in virtual time. Same jobs, same result, to the last bit."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from headrace.backends.base import Backend
from headrace.backends.layout import KVLayout
from headrace.engine.base import (
    DEFAULT_OPTIONS,
    ChoiceDelta,
    EngineConfig,
    EngineStats,
    RequestDone,
    RequestOptions,
)
from headrace.engine.engine import Engine
from headrace.engine.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.sim.backend import SimBackend, SimTokenizer, VirtualClock
from headrace.sim.machine import Machine


@dataclass(frozen=True, slots=True)
class Job:
    """One request to come at `at_s`, whose answer will have `output_len` tokens. The engine knows
    only `max_tokens`; None tells it the true length."""

    at_s: float
    prompt: array[int]
    output_len: int
    max_tokens: int | None = None
    options: RequestOptions = DEFAULT_OPTIONS


@dataclass(slots=True)
class JobOutcome:
    """What became of a job. Moments in virtual seconds; `error` "" is success."""

    arrived_s: float
    prompt_len: int
    token_times: list[float] = field(default_factory=list)
    num_cached: int = 0
    num_preemptions: int = 0
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.token_times[0] - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first; None for answers of one token."""
        times = self.token_times
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    @property
    def gaps_s(self) -> list[float]:
        """Times between two tokens."""
        return [later - earlier for earlier, later in pairwise(self.token_times)]


@dataclass(slots=True)
class SimRun:
    """`computed_rows` counts recomputation, too. `duration_s` ends with the last token."""

    outcomes: list[JobOutcome]
    stats: EngineStats
    duration_s: float
    busy_s: float
    computed_rows: int

    @property
    def good(self) -> list[JobOutcome]:
        """Those that succeeded."""
        return [outcome for outcome in self.outcomes if not outcome.error]

    @property
    def output_tokens(self) -> int:
        return sum(len(outcome.token_times) for outcome in self.good)

    @property
    def recomputed_rows(self) -> int:
        """Rows beyond those that every answer needs once (none for its last token)."""
        needed = sum(o.prompt_len - o.num_cached + len(o.token_times) - 1 for o in self.good)
        return self.computed_rows - needed

    def goodput(self, ttft_s: float, tpot_s: float) -> float:
        """Answers per second that met both objectives."""
        met = sum(o.ttft_s <= ttft_s and (o.tpot_s or 0.0) <= tpot_s for o in self.good)
        return met / self.duration_s


@dataclass(frozen=True, slots=True)
class Site:
    """What jobs run on."""

    machine: Machine
    num_blocks: int
    config: EngineConfig
    context_len: int = 1 << 17
    layout: KVLayout | None = None


class Clock(Protocol):
    """Tells the time of a run, from 0."""

    @property
    def now_s(self) -> float: ...

    def __call__(self) -> float: ...

    def wait_until(self, moment_s: float) -> None: ...


class EndingBackend(Backend, Protocol):
    """A backend whose choice with seed s ends with its `outputs[s]`-th token, which counts what it
    has done."""

    outputs: dict[int, int]
    num_rows: int
    busy_s: float


class Play:
    """Jobs on an engine, step by step, so that a caller may look at it in between."""

    def __init__(
        self,
        engine: Engine,
        backend: EndingBackend,
        clock: Clock,
        jobs: Iterable[Job],
        clients: int | None = None,
    ) -> None:
        """`clients`: so many send the jobs, each the next one when it has its answer."""
        self.clock = clock
        self.backend = backend
        self.engine = engine
        self.outcomes: list[JobOutcome] = []
        self._clients = clients
        self._num_open = 0
        # The next is the last; of one instant, the first is.
        self._pending = sorted(jobs, key=lambda job: job.at_s)[::-1]

    def steps(self) -> Iterator[None]:
        """Until everything has ended; yields after every step. At its end every block is free."""
        engine, clock = self.engine, self.clock
        while self._pending or engine.has_work():
            if not engine.has_work():
                clock.wait_until(self._pending[-1].at_s)
            while self._is_due():
                self._add(self._pending.pop())
            if not engine.has_work():
                continue  # all that came were refused
            for event in engine.step():
                outcome = self.outcomes[int(event.request_id)]
                if isinstance(event, ChoiceDelta):
                    outcome.token_times.append(clock.now_s)
                elif isinstance(event, RequestDone):
                    outcome.num_cached = event.num_cached
                    outcome.num_preemptions = event.num_preemptions
                    self._num_open -= 1
            yield
        engine.check()

    def _is_due(self) -> bool:
        if not self._pending or self._clients == self._num_open:
            return False
        return self._pending[-1].at_s <= self.clock.now_s

    def result(self) -> SimRun:
        """What has happened so far."""
        return SimRun(
            self.outcomes,
            self.engine.stats,
            self.clock.now_s,
            self.backend.busy_s,
            self.backend.num_rows,
        )

    def _add(self, job: Job) -> None:
        number = len(self.outcomes)
        arrived_s = job.at_s if self._clients is None else self.clock.now_s
        outcome = JobOutcome(arrived_s, len(job.prompt))
        self.outcomes.append(outcome)
        self.backend.outputs[number] = job.output_len
        max_tokens = job.output_len if job.max_tokens is None else job.max_tokens
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=number)
        try:
            self.engine.add(str(number), job.prompt, params, job.options)
            self._num_open += 1
        except RequestError as error:
            outcome.error = str(error)


class Simulation(Play):
    """A play in virtual time."""

    def __init__(self, site: Site, jobs: Iterable[Job], clients: int | None = None) -> None:
        clock = VirtualClock()
        backend = SimBackend(
            site.machine,
            clock,
            site.num_blocks,
            max_step_rows=max(site.config.max_step_tokens, site.config.max_num_seqs),
            layout=site.layout,
        )
        engine = Engine(backend, SimTokenizer(), site.context_len, site.config, clock=clock)
        super().__init__(engine, backend, clock, jobs, clients)


def simulate(site: Site, jobs: Sequence[Job]) -> SimRun:
    """A whole run."""
    simulation = Simulation(site, jobs)
    for _ in simulation.steps():
        pass
    return simulation.result()
