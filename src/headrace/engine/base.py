"""The engine's seam: requests in, deltas out, one step at a time.

Single-threaded, no I/O, no clock beyond timings; the worker and the offline `LLM` both drive it.

Contract
- `add` validates, queues, and raises RequestError / OverloadedError without side effects otherwise.
- `step` plans, runs and commits one step and returns everything that became known. When
  `has_work()` is False, `step` must not be called.
- `abandon(prefix, tails, salt)` is a hint: nobody with this salt will go on with prefix + tail, for
  any of the tails.
  What a cache holds of a tail beyond the prefix is then the first to be evicted, until somebody
  uses it again. It changes no output, and what is not cached is ignored.
- `abort(request_id)` frees all blocks of the request before the next step; unknown ids are ignored.
- At idle (`has_work()` False) every block is free, or kept by the prefix cache alone (law 3);
  `check()` asserts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from headrace.engine.order import QueueOrder
from headrace.engine.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.kv.lookahead.base import Allocation
from headrace.kv.radix import base as radix
from headrace.kv.radix.base import DEFAULT_RETENTION, Retention


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Logprob of one token and its alternatives [(id, logprob)], best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class ChoiceDelta(msgspec.Struct, gc=False):
    """News of one choice; `finish_reason` ("stop" | "length") makes it the last. `num_cached`: of
    the request's prompt, as RequestDone has it so far."""

    request_id: str
    choice: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    finish_reason: str | None
    stop_reason: str | int | None
    num_output: int
    num_cached: int = 0


@dataclass(slots=True)
class PromptDelta:
    """Prompt logprobs of positions start, start + 1, ...; position 0 is None. The first delta of a
    request starts at its `prompt_logprobs_from`."""

    request_id: str
    start: int
    entries: list[TokenLogprob | None]


@dataclass(slots=True)
class RequestDone:
    """All choices ended. Seconds: queue, prefill (to the first token), decode."""

    request_id: str
    num_prompt: int
    num_output: int
    num_cached: int
    num_preemptions: int
    seeds: list[int]
    queue_s: float
    prefill_s: float
    decode_s: float


@dataclass(slots=True)
class RequestFailed:
    """The request ended without a result (its logits were not finite, say)."""

    request_id: str
    message: str
    status: int = 500
    code: str | None = None


Event = ChoiceDelta | PromptDelta | RequestDone | RequestFailed


class AllocationStats(msgspec.Struct, frozen=True, kw_only=True):
    """What the allocation of blocks came to since start; `num_kept_free` in the last step.

    `num_recomputed`: rows that had been computed before a preemption. `num_extents` runs of blocks
    lay in the `num_tables` block tables of sequences that ended. `num_kept_free`: blocks available
    while somebody who fits was refused. `num_forecast`: outputs whose length was foreseen and
    became known; per quantile of kv.lookahead.forecast.SCORED the sum of pinball losses in tokens,
    and how many outputs were no longer than it.
    """

    num_recomputed: int = 0
    num_extents: int = 0
    num_tables: int = 0
    num_kept_free: int = 0
    num_forecast: int = 0
    losses: list[float] = []
    covered: list[int] = []


@dataclass(slots=True)
class EngineStats:
    """Counters since start and gauges now."""

    num_running: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0
    num_free_blocks: int = 0  # those that only the prefix cache keeps among them
    num_blocks: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    last_step_s: float = 0.0
    lease_wait_s: float = 0.0  # of last_step_s in all: other processes had their turn
    last_native_s: float = 0.0
    last_step_rows: int = 0
    last_chunks: tuple[int, ...] = ()  # rows of every prompt in the last step
    num_passes: int = 0  # admissions in place of a sequence that did not fit
    step_time_error: float = 0.0  # recent mean of |predicted - measured| / measured
    step_time_margin: float = 1.0  # measured / predicted that few steps exceed
    allocation: AllocationStats = field(default_factory=AllocationStats)
    itl_target_s: float = 0.0  # what the last step with decodes and prompts was to keep within
    # Of the prefix cache, in blocks of all layer groups. Evicted: by cause.
    num_cached_blocks: int = 0
    num_idle_blocks: int = 0  # those of them that no sequence has
    num_inserted_blocks: int = 0
    num_evicted_blocks: dict[str, int] = field(default_factory=dict)


# Classes of priority are few; any bound does that a frame's integer holds.
MAX_PRIORITY = 1000
MAX_SALT_LEN = 256


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of the engine beside its samples; nothing here changes a bit of them.

    `priority`: lower goes first. `salt`: only requests with the same one share KV. `retention`: how
    its KV is to be kept.
    """

    priority: int = 0
    salt: str = ""
    retention: Retention = DEFAULT_RETENTION

    def validate(self) -> None:
        """Raise RequestError naming the field that is out of range."""
        keep = self.retention
        _check_range("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        _check_range("cache.priority", keep.priority, radix.MIN_PRIORITY, radix.MAX_PRIORITY)
        salt: object = self.salt
        if not isinstance(salt, str) or len(salt) > MAX_SALT_LEN:
            raise _bad("cache.salt", f"must be a text of at most {MAX_SALT_LEN} characters")
        ttl_s: object = keep.ttl_s
        if ttl_s is None:
            return
        # Not a number is in no range.
        is_number = isinstance(ttl_s, int | float) and not isinstance(ttl_s, bool)
        if not is_number or not 0 < ttl_s <= radix.MAX_TTL_S:  # type: ignore[operator]  # as checked
            raise _bad("cache.ttl", f"must be above 0 and at most {radix.MAX_TTL_S:.0f} seconds")


def _check_range(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise _bad(name, f"must be a whole number from {least} to {most}")


def _bad(name: str, what: str) -> RequestError:
    return RequestError(f"{name} {what}.", param=name, code="invalid_value")


DEFAULT_OPTIONS = RequestOptions()


class Scheduling(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine shares its steps; by itself it is for the most tokens a second.

    `order`: of the queue, with its `patience`, `grace_s` and `max_wait_s`, the hard cap on waiting
    (engine.order). `max_partial`: prompts that may be cut at the same time. `max_passes`: how often
    a sequence that does not fit is passed over. `itl_target_s`: how long a step may take in which
    sequences decode; None derives it from the time of the decodes alone, 0 sets none. `allocation`:
    who is admitted and who is preempted (kv.lookahead).
    """

    order: QueueOrder = QueueOrder.FCFS
    patience: float = 1.17
    grace_s: float = 10.0
    max_wait_s: float = 600.0
    max_partial: int = 4
    max_passes: int = 64
    itl_target_s: float | None = 0.0
    allocation: Allocation = Allocation.LOOKAHEAD


# For the most tokens a second, and for people who wait for answers.
THROUGHPUT = Scheduling()
SERVING = Scheduling(order=QueueOrder.SHORTEST, itl_target_s=None)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of an engine. `max_step_tokens` is the token budget of one step. `prefix_cache`: KV of
    earlier requests is kept, while there is room, and found again."""

    max_num_seqs: int = 64
    max_step_tokens: int = 512
    max_waiting: int = 512
    max_waiting_tokens: int = 1 << 20
    max_model_len: int | None = None  # None: the model's own
    scheduling: Scheduling = THROUGHPUT
    prefix_cache: bool = True


class EngineAPI(Protocol):
    """See the module docstring."""

    @property
    def max_model_len(self) -> int:
        """Longest prompt + output of one request (context length, or what the pool holds)."""
        ...

    def add(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def abandon(
        self, prefix: Sequence[int], tails: Sequence[Sequence[int]], salt: str = ""
    ) -> None: ...

    def has_work(self) -> bool: ...

    def expire(self) -> float:
        """Forget what was to be kept until now; for engines that nobody steps, as a step does so
        itself. Returns the seconds until the next call has something to do, inf for never."""
        ...

    def step(self) -> list[Event]: ...

    @property
    def stats(self) -> EngineStats: ...

    def check(self) -> None: ...
