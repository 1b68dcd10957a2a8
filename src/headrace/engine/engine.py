"""The engine: owns requests and blocks, turns decisions into steps and steps into events."""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Callable, Sequence

from headrace.backends.base import Backend, RowResult, StepResult
from headrace.backends.layout import BLOCK_LEN
from headrace.engine.audit import check_blocks
from headrace.engine.base import (
    DEFAULT_OPTIONS,
    ChoiceDelta,
    EngineConfig,
    EngineStats,
    Event,
    PromptDelta,
    RequestFailed,
    RequestOptions,
)
from headrace.engine.commit import commit_token, to_logprob
from headrace.engine.foresight import Foresight
from headrace.engine.intake import check_prompt, make_request
from headrace.engine.order import OrderPolicy, QueueOrder, Ticket
from headrace.engine.pace import Pacer
from headrace.engine.queue import WaitQueue
from headrace.engine.request import RequestState, SequenceState, Status
from headrace.engine.reuse import Reuse
from headrace.engine.sampling import SamplingParams
from headrace.engine.scheduler import Decision, schedule
from headrace.engine.snapshot import running_view, waiting_view
from headrace.engine.step import BuiltStep, build_step, note_scheduled
from headrace.engine.views import SchedulerView, SequenceView
from headrace.errors import OverloadedError, RequestError
from headrace.kv.pool import BlockPool
from headrace.kv.tables import SequenceTables, longest_that_fits
from headrace.text.base import Tokenizer
from headrace.text.detokenizer import make_detokenizer
from headrace.text.stop import make_stop_matcher


class Engine:
    """Implements engine.base.EngineAPI over one backend. See the contract there.

    Owns every SequenceTables; `running` is in order of admission.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        context_len: int,
        config: EngineConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.config = config or EngineConfig()
        if self.config.max_num_seqs > backend.max_step_rows:
            raise ValueError("a step of the backend has fewer rows than there may be sequences")
        self.pool = BlockPool(backend.num_blocks)
        self._layout = backend.layout
        self._clock = clock
        self._chunk = min(self.config.max_step_tokens, backend.max_step_rows)
        pool_len = longest_that_fits(self._layout, backend.num_blocks, self._chunk)
        self.pool_len = pool_len
        self.max_model_len = min(context_len, self.config.max_model_len or context_len, pool_len)
        self._reuse = Reuse(
            self._layout,
            self.pool,
            backend.numerics_id,
            self._chunk,
            is_on=self.config.prefix_cache,
        )
        sharing = self.config.scheduling
        self.foresight = Foresight(sharing.allocation, self._layout, self.pool, self._chunk)
        self._requests: dict[str, RequestState] = {}
        self._running: dict[int, SequenceState] = {}
        policy = OrderPolicy(sharing.order, sharing.patience, sharing.grace_s, sharing.max_wait_s)
        self._waiting = WaitQueue(policy, clock)
        self._pacer = Pacer(sharing.itl_target_s)
        self._keys = itertools.count()
        self._stats = EngineStats(num_blocks=backend.num_blocks)
        self._events: list[Event] = []
        self._num_ended = 0  # requests, in the step that runs

    # ---- requests in ----

    def add(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> None:
        """Queue a request. Raises RequestError or OverloadedError; then nothing has changed."""
        if request_id in self._requests:
            raise RequestError(f"Request id {request_id!r} is already in use.", param="request_id")
        params.validate(self.tokenizer.vocab_size)
        options.validate()
        limits = (self.tokenizer.vocab_size, self.max_model_len, self.config.max_num_seqs)
        check_prompt(prompt_ids, params, *limits)
        self._check_room(len(prompt_ids))
        request = make_request(
            request_id,
            array("i", prompt_ids),
            params,
            options,
            eos_ids=self.tokenizer.eos_ids,
            max_model_len=self.max_model_len,
            arrived_s=self._clock(),
        )
        first = self._make_sequence(request, 0)
        first.to_fork = params.n - 1
        self._requests[request_id] = request
        self._waiting.push(first)
        self._waiting.note_cached(first, self._reuse.look(first))

    def _check_room(self, prompt_len: int) -> None:
        """Bound the queue by requests and by prompt tokens; one request is always let in."""
        waiting = len(self._waiting)
        tokens = self._waiting.num_tokens
        too_many = waiting >= self.config.max_waiting
        if waiting and (too_many or tokens + prompt_len > self.config.max_waiting_tokens):
            raise OverloadedError(
                f"The queue is full: {waiting} requests with {tokens} prompt tokens are waiting; "
                "retry later.",
                retry_after_s=min(60.0, max(1.0, waiting * max(self._stats.last_step_s, 0.05))),
            )

    def _make_sequence(self, request: RequestState, choice: int) -> SequenceState:
        params = request.params
        matcher = None
        if params.stop:
            matcher = make_stop_matcher(params.stop, params.include_stop_str_in_output)
        key = next(self._keys)
        priority = request.options.priority
        seq = SequenceState(
            key=key,
            request=request,
            choice=choice,
            spec=params.spec(request.seeds[choice]),
            tokens=array("i", request.prompt),
            tables=SequenceTables(self._layout, self.pool),
            detokenizer=make_detokenizer(self.tokenizer),
            stop_matcher=matcher,
            ticket=Ticket(key, 0, arrived_s=request.arrived_s, priority=priority),
        )
        request.sequences.append(seq)
        request.num_unfinished += 1
        return seq

    def abort(self, request_id: str) -> None:
        """Free everything of a request now; unknown ids are ignored."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            for seq in request.sequences:
                self.foresight.end(seq, is_known=False)
                self._free(seq, used=seq.status is Status.FINISHED)
                seq.status = Status.FINISHED

    def abandon(
        self, prefix: Sequence[int], tails: Sequence[Sequence[int]], salt: str = ""
    ) -> None:
        """See EngineAPI.abandon."""
        if len(prefix) < self.max_model_len:  # nothing is cached behind a longer one
            self._reuse.abandon(prefix, tails, salt)

    def has_work(self) -> bool:
        return bool(self._running or len(self._waiting))

    def expire(self) -> float:
        """See EngineAPI.expire."""
        now = self._clock()
        self._reuse.advance(now)
        return max(0.0, self._reuse.next_deadline() - now)

    # ---- one step ----

    def step(self) -> list[Event]:
        """Plan, run, commit. Events of one request come in order."""
        started = self._clock()
        self._reuse.advance(started)
        decision = self._decide()
        while decision.preempted and not decision.rows:
            # The preempted shared blocks with each other, which nobody could count on.
            self._apply_preemptions(decision)
            decision = self._decide()
        scheduled = self._apply(decision)
        built = build_step(len(self._layout.groups), scheduled)
        try:
            result = self.backend.collect(self.backend.submit(built.plan))
        except BaseException:
            for seq, copies in built.copies:
                seq.tables.restore_copies(copies)
            raise
        self._commit(built, result)
        self._note_step(decision, result, self._clock() - started)
        events, self._events = self._events, []
        return events

    def _note_step(self, decision: Decision, result: StepResult, seconds: float) -> None:
        """What a step that took so long says to the next ones, and to operators."""
        stats, load = self._stats, decision.load
        taken_s = seconds - (result.waited_s - stats.lease_wait_s)
        self._pacer.observe(load, taken_s)
        prompt_s = self._pacer.prompt_s(load, taken_s)
        self._waiting.work.note(prompt_s, load.prompt_rows, taken_s - prompt_s, self._num_ended)
        self._num_ended = 0
        stats.num_steps += 1
        stats.last_step_s = seconds
        stats.lease_wait_s = result.waited_s
        stats.last_native_s = result.native_s
        stats.last_step_rows = load.decode_rows + load.prompt_rows
        stats.last_chunks = tuple(r.num_rows for r in decision.rows if r.num_rows > 1)
        stats.step_time_error = self._pacer.fit.error
        stats.step_time_margin = self._pacer.margin
        if decision.bound_s:
            stats.itl_target_s = decision.bound_s

    def _decide(self) -> Decision:
        running = self._running.values()
        self.foresight.look(running)
        is_short = self.foresight.is_short(running)
        num_reserved = sum(1 + s.to_fork for s in running)
        prompts = [s for s in running if len(s.tokens) - s.computed > 1]
        can_admit = num_reserved < self.config.max_num_seqs and len(self._waiting) > 0
        ranks: dict[int, int] = {}
        waiting: list[SequenceView] = []
        if prompts or can_admit:
            if can_admit and self._waiting.policy.order is not QueueOrder.FCFS:
                for seq, num_tokens in self._reuse.turn(self._waiting.values()):
                    self._waiting.note_cached(seq, num_tokens)
            ordered = self._waiting.ordered(prompts, can_admit)
            ranks = {seq.key: rank for rank, seq in enumerate(ordered)}
            # No more can be admitted, so the scheduler need not see more of the queue.
            slots = 2 * (self.config.max_num_seqs - num_reserved)
            new = (s for s in ordered if s.status is Status.WAITING)
            for seq, start in itertools.islice(self._reuse.starts(new, prompts), slots):
                self._waiting.note_cached(seq, start.num_tokens)
                waiting.append(waiting_view(seq, ranks[seq.key], start, self.foresight))
        view = SchedulerView(
            running=[
                running_view(s, ranks.get(s.key, 0), self.foresight if is_short else None)
                for s in running
            ],
            waiting=waiting,
            num_free_blocks=self.pool.num_available,
            max_step_tokens=self._chunk,
            max_num_seqs=self.config.max_num_seqs,
            num_reserved_seqs=num_reserved,
            max_partial=self.config.scheduling.max_partial,
            max_passes=self.config.scheduling.max_passes,
            pace=self._pacer.pace(),
            policy=self.foresight.policy,
            room=self.foresight.room(self._pacer.fit.model),
        )
        return schedule(self._layout, view)

    def _apply_preemptions(self, decision: Decision) -> None:
        for key in decision.preempted:
            self._preempt(self._running.pop(key))

    def _apply(self, decision: Decision) -> list[tuple[SequenceState, int]]:
        """Free the preempted, admit, grow the tables of what runs; the rows of each sequence."""
        self._apply_preemptions(decision)
        self._waiting.note_passes(decision.passed)
        admitted = [self._waiting.find(key) for key in decision.admitted]
        for seq in admitted:
            self.foresight.join(seq)
        self._reuse.begin(admitted)
        for seq in admitted:
            self._waiting.note_cached(seq, seq.computed)
            self._waiting.pop(seq)
            seq.status = Status.RUNNING
            self._running[seq.key] = seq
            if seq.request.started_s is None:
                seq.request.started_s = self._clock()
        # Each may take one early in every group; twice as many are plenty.
        num_early = len(self._running) * len(self._layout.groups)
        is_plenty = decision.spare_blocks >= 2 * num_early
        scheduled: list[tuple[SequenceState, int]] = []
        for rows in decision.rows:
            seq = self._running[rows.key]
            # More may have been found than when the step was planned.
            num_rows = min(rows.num_rows, len(seq.tokens) - seq.computed)
            if not seq.tables.grow(self._held_len(seq, num_rows, is_plenty)):
                raise RuntimeError("the scheduler planned more blocks than are free")
            scheduled.append((seq, num_rows))
        if decision.admitted:
            note_scheduled(decision, scheduled)
        self.foresight.note_refused(decision.held_back)
        if not scheduled:
            raise RuntimeError("the scheduler planned an empty step although there is work")
        return scheduled

    def _held_len(self, seq: SequenceState, num_rows: int, is_plenty: bool) -> int:
        """Positions that the tables of a sequence are to cover in a step of so many rows. While
        blocks are plenty decodes begin one a little early, each at its own time: sequences that
        began together would otherwise all do so in the same step."""
        length = seq.computed + num_rows
        if num_rows > 1 or not is_plenty:
            return length
        return min(length + seq.key % BLOCK_LEN, seq.request.max_len)

    def _preempt(self, seq: SequenceState) -> None:
        """Free a sequence's blocks; it waits in front and recomputes later what is lost by then."""
        self.foresight.preempt(seq)
        self._reuse.end(seq, used=True)
        seq.computed = 0
        seq.request.num_preemptions += 1
        self._stats.num_preemptions += 1
        self._push_back(seq)

    def _push_back(self, seq: SequenceState) -> None:
        self._waiting.push_back(seq)
        self._waiting.note_cached(seq, self._reuse.look(seq))

    # ---- commit ----

    def _commit(self, built: BuiltStep, result: StepResult) -> None:
        for seq, copies in built.copies:
            seq.tables.copies_done(copies)
        for entry, row in zip(built.entries, result.rows, strict=True):
            # Before anything is kept of it.
            if row.failed and entry.seq.request.request_id in self._requests:
                self._fail(entry.seq.request)
        self.foresight.note_rows(built.rows)
        for seq, num_rows in built.rows:
            seq.computed += num_rows
            self._reuse.written(seq, num_rows)
        prompts: dict[str, PromptDelta] = {}
        for entry, row in zip(built.entries, result.rows, strict=True):
            request = entry.seq.request
            if request.request_id not in self._requests:
                continue
            if entry.prompt_pos >= 0:
                self._commit_prompt(prompts, request, entry.prompt_pos, row)
            elif entry.choice == entry.seq.choice:
                self._commit_sample(entry.seq, row)
            else:
                twin = self._fork(entry.seq, entry.choice)
                self._commit_sample(twin, row)
                if twin.status is Status.WAITING:
                    self._push_back(twin)
        for seq, _ in built.rows:
            if seq.request.request_id in self._requests:
                self._settle(seq)

    def _commit_prompt(
        self, prompts: dict[str, PromptDelta], request: RequestState, position: int, row: RowResult
    ) -> None:
        delta = prompts.get(request.request_id)
        if delta is None:
            start = request.prompt_done
            delta = PromptDelta(request.request_id, start, [None] if start == 0 else [])
            prompts[request.request_id] = delta
            self._events.append(delta)
        delta.entries.append(to_logprob(row))
        request.prompt_done = position + 1

    def _commit_sample(self, seq: SequenceState, row: RowResult) -> None:
        request = seq.request
        if request.first_token_s is None:
            request.first_token_s = self._clock()
            self._end_prompt(request)
        pending = commit_token(seq, row)
        self._stats.output_tokens += 1
        self._events.append(
            ChoiceDelta(
                request.request_id,
                seq.choice,
                pending.text,
                pending.token_ids,
                pending.logprobs or None,
                pending.finish_reason,
                pending.stop_reason,
                seq.num_output,
                request.num_cached or 0,
            )
        )
        if pending.finish_reason is not None:
            self.foresight.end(seq, by_itself=pending.finish_reason == "stop")
            self._finish(seq)

    def _end_prompt(self, request: RequestState) -> None:
        """Once per request, when its whole prompt is computed. A prompt of one token has no row
        that could have announced its logprobs."""
        self._stats.prompt_tokens += request.prompt_len
        if request.prompt_spec is not None and request.prompt_done == 0:
            request.prompt_done = 1
            self._events.append(PromptDelta(request.request_id, 0, [None]))

    def _fork(self, parent: SequenceState, choice: int) -> SequenceState:
        """The sequence of another choice: shares the prompt's blocks, or waits, to recompute them,
        when the pool cannot give its tail."""
        seq = self._make_sequence(parent.request, choice)
        tables = parent.tables.fork(parent.request.prompt_len)
        if tables is not None:
            seq.tables = tables
            self._reuse.fork(parent, seq)
            seq.computed = parent.request.prompt_len
            seq.status = Status.RUNNING
            self._running[seq.key] = seq
            self.foresight.join(seq)
        return seq

    def _settle(self, seq: SequenceState) -> None:
        """After all samples of a step: free what finished (a finished choice lends its blocks to
        forks until here), end the request with its last choice, free blocks behind windows."""
        request = seq.request
        if seq.status is Status.RUNNING and seq.computed == len(seq.tokens):
            self._finish_prompt_only(seq)
        if seq.computed >= request.prompt_len:
            seq.to_fork = 0
        for each in request.sequences:
            if each.status is Status.FINISHED:
                self._free(each, used=True)
        if request.num_unfinished == 0 and len(request.sequences) == request.params.n:
            del self._requests[request.request_id]
            self._num_ended += 1
            self._events.append(request.done(self._clock()))
        elif seq.status is Status.RUNNING:
            seq.tables.trim(seq.computed)

    def _finish_prompt_only(self, seq: SequenceState) -> None:
        """max_tokens = 0: every choice ends with its (empty) length limit."""
        request = seq.request
        self._end_prompt(request)
        for choice in range(seq.choice + 1, seq.choice + 1 + seq.to_fork):
            self._make_sequence(request, choice)
        for each in request.sequences:
            self._events.append(
                ChoiceDelta(
                    request.request_id,
                    each.choice,
                    "",
                    [],
                    None,
                    "length",
                    None,
                    0,
                    request.num_cached or 0,
                )
            )
        for each in list(request.sequences):
            self._finish(each)

    # ---- ends ----

    def _free(self, seq: SequenceState, *, used: bool, is_sound: bool = True) -> None:
        """Give back everything a sequence owns; idempotent. See Reuse.end."""
        self.foresight.leave(seq)
        self._reuse.end(seq, used=used, is_sound=is_sound)
        self._running.pop(seq.key, None)
        self._waiting.pop(seq)

    def _finish(self, seq: SequenceState) -> None:
        """Mark one choice as ended; `_settle` frees it."""
        seq.status = Status.FINISHED
        seq.request.num_unfinished -= 1

    def _fail(self, request: RequestState) -> None:
        """A row without finite logits ends its request only. Nothing more is kept of its KV."""
        for seq in request.sequences:
            self._free(seq, used=False, is_sound=False)
        self.abort(request.request_id)
        message = "The model produced no finite logits for this request."
        self._events.append(RequestFailed(request.request_id, message, code="server_error"))

    # ---- state ----

    @property
    def stats(self) -> EngineStats:
        stats = self._stats
        stats.num_running = len(self._running)
        stats.num_waiting = len(self._waiting)
        stats.num_waiting_tokens = self._waiting.num_tokens
        stats.num_passes = self._waiting.num_passes
        stats.num_free_blocks = self.pool.num_available
        self._reuse.report(stats)
        stats.allocation = self.foresight.stats()
        return stats

    def check(self) -> None:
        """Law 3: see audit.check_blocks."""
        live = [*self._running.values(), *self._waiting.values()]
        check_blocks(self.pool, live, self._reuse.cache)
        self.foresight.check(self._running.values())
