"""State of a request and of its sequences (one per choice). Only the engine writes it."""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass, field

import msgspec

from headrace.backends.base import SamplingSpec
from headrace.engine.base import RequestDone, RequestOptions, TokenLogprob
from headrace.engine.order import Ticket
from headrace.engine.sampling import SamplingParams
from headrace.kv.lookahead.forecast import Forecast
from headrace.kv.lookahead.risk import NOTHING, Outlook
from headrace.kv.radix.base import Hold, Look
from headrace.kv.tables import SequenceTables
from headrace.text.base import Detokenizer, StopMatcher


class Status(enum.Enum):
    """Life of a sequence: WAITING <-> RUNNING -> FINISHED."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class Prospect:
    """What engine.foresight knows of a sequence, and writes.

    `known`: its outlook, to be computed anew at `renew_at` tokens while it runs (`is_joined`), and
    when `stale_at` outputs have ended while it waits; then the forecast is, too.
    """

    forecast: Forecast | None = None
    known: Outlook = NOTHING
    is_joined: bool = False
    renew_at: int = 0
    stale_at: int = 0


@dataclass(slots=True)
class SequenceState:
    """One choice of a request.

    `tokens`: prompt + output ids. `computed`: positions whose KV is written; computed < len(tokens)
    while it is not finished. `to_fork`: choices that are still to be forked from it when its prompt
    is done (first sequence only). `ticket`: its place in the queue, while it waits or its prompt is
    not done. `hold`: on the prefix cache, while it runs; `look`: what was last found there for it,
    while it waits. `num_waits`: steps that it has waited for what others write, `num_idle_waits` of
    them since the other, at `waits_at` (its key, its computed positions), has written something.
    `written`: positions that were computed before it was preempted, `num_preemptions` times.
    """

    key: int
    request: RequestState
    choice: int
    spec: SamplingSpec
    tokens: array[int]
    tables: SequenceTables
    detokenizer: Detokenizer
    stop_matcher: StopMatcher | None
    ticket: Ticket
    status: Status = Status.WAITING
    computed: int = 0
    to_fork: int = 0
    hold: Hold | None = None
    look: Look | None = None
    num_waits: int = 0
    num_idle_waits: int = 0
    waits_at: tuple[int, int] = (-1, 0)
    written: int = 0
    num_preemptions: int = 0
    prospect: Prospect = field(default_factory=Prospect)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.request.prompt_len


@dataclass(slots=True)
class RequestState:
    """A request and its accounting. Times are seconds of the engine's clock.

    `max_len`: prompt + output never get longer. `prompt_spec`: for prompt logprobs, else None.
    `num_cached`: prompt positions that were never computed for this request.
    `prompt_done`: prompt positions whose logprobs were sent or are not wanted. `stop_ids`: ids that
    end a choice, end-of-sequence ids among them unless ignored.
    """

    request_id: str
    params: SamplingParams
    options: RequestOptions
    prompt: array[int]
    max_len: int
    seeds: list[int]
    stop_ids: frozenset[int]
    prompt_spec: SamplingSpec | None
    arrived_s: float
    sequences: list[SequenceState] = field(default_factory=list)
    num_unfinished: int = 0
    started_s: float | None = None
    first_token_s: float | None = None
    prompt_done: int = 0
    num_preemptions: int = 0
    num_cached: int | None = None
    prompt_len: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_len = len(self.prompt)

    @property
    def num_output(self) -> int:
        return sum(s.num_output for s in self.sequences)

    def note_start(self, num_tokens: int) -> None:
        """One of its sequences begins, for the first time or again, with so many positions that it
        need not compute. What it computes now is not found, whatever was found before."""
        most = self.prompt_len if self.num_cached is None else self.num_cached
        self.num_cached = min(most, num_tokens)

    def done(self, now: float) -> RequestDone:
        """What is told of a request whose choices have all ended."""
        started = now if self.started_s is None else self.started_s
        first = now if self.first_token_s is None else self.first_token_s
        return RequestDone(
            request_id=self.request_id,
            num_prompt=self.prompt_len,
            num_output=self.num_output,
            num_cached=self.num_cached or 0,
            num_preemptions=self.num_preemptions,
            seeds=list(self.seeds),
            queue_s=started - self.arrived_s,
            prefill_s=first - started,
            decode_s=now - first,
        )


class PendingText(msgspec.Struct, gc=False):
    """What one commit learned of one sequence before it becomes a delta."""

    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    finish_reason: str | None = None
    stop_reason: str | int | None = None
