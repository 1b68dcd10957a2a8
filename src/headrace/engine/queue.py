"""The queue: sequences that wait, their tickets, and the order in which prompts get rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from headrace.backends.layout import BLOCK_LEN
from headrace.engine.order import Moment, OrderPolicy, QueueOrder, Ticket, arrange
from headrace.engine.request import SequenceState, Status

# Sequences that an order looks at, the first by arrival: it is asked for in every step that may
# admit one. A server has no more than that waiting.
WINDOW = 512
_KEEP_REQUEST = 0.99


class WorkMeter:
    """What takes how much of the engine's time, from the steps that were: a token of a prompt, and
    a request beside its prompt. Exponentially weighted by requests, about the last hundred."""

    def __init__(self) -> None:
        self.token_s = 0.0
        self.request_s = 0.0
        self._prompt_s = self._other_s = 0.0
        self._num_tokens = self._num_requests = 0.0

    def note(self, prompt_s: float, num_tokens: int, other_s: float, num_ended: int) -> None:
        """A step took `prompt_s` for so many tokens of prompts and `other_s` beside; so many
        requests ended with it."""
        self._prompt_s += prompt_s
        self._num_tokens += num_tokens
        self._other_s += other_s
        self._num_requests += num_ended
        if self._num_tokens:
            self.token_s = self._prompt_s / self._num_tokens
        if num_ended and self._num_requests:
            self.request_s = self._other_s / self._num_requests
            keep = _KEEP_REQUEST**num_ended
            self._prompt_s, self._num_tokens = keep * self._prompt_s, keep * self._num_tokens
            self._other_s, self._num_requests = keep * self._other_s, keep * self._num_requests


class WaitQueue:
    """Owns the sequences that wait."""

    def __init__(self, policy: OrderPolicy, clock: Callable[[], float]) -> None:
        self.policy = policy
        self.work = WorkMeter()
        self.num_passes = 0
        self.num_tokens = 0  # positions of all that wait
        self._num_cached = 0  # of them
        self._clock = clock
        self._begun: dict[int, SequenceState] = {}
        self._new: dict[int, SequenceState] = {}

    def __len__(self) -> int:
        return len(self._begun) + len(self._new)

    def values(self) -> Iterator[SequenceState]:
        """Those that ran before, then the others by arrival."""
        return itertools.chain(self._begun.values(), self._new.values())

    def push(self, seq: SequenceState) -> None:
        """A sequence that has just come."""
        seq.ticket.ahead_s = self._moment().work_s(self.num_tokens - self._num_cached, len(self))
        self._new[seq.key] = seq
        self._count(seq, 1)

    def push_back(self, seq: SequenceState) -> None:
        """A sequence that ran before."""
        seq.status = Status.WAITING
        seq.ticket.begun = True
        self._begun[seq.key] = seq
        self._count(seq, 1)

    def pop(self, seq: SequenceState) -> None:
        """Take a sequence out, to run or to end; those that do not wait are ignored."""
        if self._begun.pop(seq.key, None) or self._new.pop(seq.key, None):
            self._count(seq, -1)

    def find(self, key: int) -> SequenceState:
        """A sequence that waits."""
        return self._begun[key] if key in self._begun else self._new[key]

    def note_cached(self, seq: SequenceState, num_tokens: int) -> None:
        """The prefix cache holds so many positions of a sequence that waits."""
        if num_tokens == seq.ticket.cached:
            return
        self._num_cached += num_tokens - seq.ticket.cached
        seq.ticket.cached = num_tokens
        if self.policy.order is QueueOrder.DFS_WEIGHT:
            starts = range(0, num_tokens - BLOCK_LEN + 1, BLOCK_LEN)
            blocks = (seq.tokens[start : start + BLOCK_LEN] for start in starts)
            seq.ticket.path = tuple(block.tobytes() for block in blocks)

    def note_passes(self, passed: Mapping[int, int]) -> None:
        """`passed`: sequences that did not fit, and how many were admitted in their place."""
        for key, times in passed.items():
            self.find(key).ticket.passed_over += times
            self.num_passes += times

    def ordered(self, prompts: Iterable[SequenceState], can_admit: bool) -> list[SequenceState]:
        """`prompts` (running sequences amid their prompts) and, if any can be admitted, those that
        wait, in the order in which they should get rows."""
        waiting = itertools.islice(self.values(), WINDOW) if can_admit else ()
        seqs = {seq.key: seq for seq in itertools.chain(prompts, waiting)}
        for seq in seqs.values():
            seq.ticket.num_tokens = len(seq.tokens)
            seq.ticket.done = max(seq.computed, seq.ticket.cached)
        tickets: list[Ticket] = [seq.ticket for seq in seqs.values()]
        arranged = arrange(self.policy, self._moment(), tickets)
        return [seqs[ticket.number] for ticket in arranged]

    def _moment(self) -> Moment:
        return Moment(self._clock(), self.work.token_s, self.work.request_s)

    def _count(self, seq: SequenceState, times: int) -> None:
        self.num_tokens += times * len(seq.tokens)
        self._num_cached += times * seq.ticket.cached
