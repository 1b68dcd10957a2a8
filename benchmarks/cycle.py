"""Streams that decode while a long prompt comes, asked of a server over HTTP."""

from __future__ import annotations

import json
import random
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.http_streams import Stream, read_events
from benchmarks.process import UnavailableError
from benchmarks.servers import ANSWER_S, Prompt, Server

STREAMS = 16
STREAM_PROMPT = 128
STREAM_TOKENS = 4000  # more than a stream draws in a cycle
PROMPT_LEN = 4000
WARM_STEPS = 20
# A server that is left by its clients is given so long to notice.
SETTLE_S = 2.0
_USAGE = {"include_usage": True, "continuous_usage_stats": True}


@dataclass
class Cycle:
    """`gaps_s`: times between two tokens of a stream. `ttft_s`: of the prompt; None if its first
    token did not come within the cycle, and then its tokens do not count."""

    gaps_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    seconds: float = 0.0
    ttft_s: float | None = None

    @property
    def rate(self) -> float:
        """Tokens per second of streams and prompt."""
        return self.num_tokens / self.seconds


def random_ids(rng: random.Random, vocab_size: int, length: int) -> list[int]:
    """A prompt without the first ids and the last ones, which may be control tokens."""
    return [rng.randrange(3, vocab_size - 3) for _ in range(length)]


def over_http(
    server: Server, rng: random.Random, vocab_size: int, seconds: float, *, with_prompt: bool
) -> Cycle:
    """Gaps are of all streams, those that the end of the cycle falls into among them.

    Raises UnavailableError when a request is refused or ends early.
    """

    def prompt(length: int) -> Prompt:
        return Prompt(tuple(random_ids(rng, vocab_size, length)), "")

    reader = _Reader()
    try:
        prompts = [prompt(STREAM_PROMPT) for _ in range(STREAMS)]
        streams = [reader.add(server.open(one, STREAM_TOKENS, _USAGE)) for one in prompts]
        reader.until(lambda: all(len(stream.times) > WARM_STEPS for stream in streams))
        num_before, begun = sum(map(num_tokens, streams)), time.perf_counter()
        late = None
        if with_prompt:
            late = reader.add(server.open(prompt(PROMPT_LEN), 1, _USAGE), is_last=True)
        end = begun + seconds
        reader.until(lambda: time.perf_counter() >= end)
        cycle = Cycle(seconds=time.perf_counter() - begun)
        cycle.num_tokens = sum(map(num_tokens, streams)) - num_before
        reader.until(lambda: all(stream.times[-1] >= end for stream in streams))
    finally:
        reader.close()
    if late is not None and late.times and late.times[0] < end:
        cycle.ttft_s = late.times[0] - begun
        cycle.num_tokens += PROMPT_LEN + 1
    for stream in streams:
        cycle.gaps_s += gaps_within(stream.times, begun, end)
    return cycle


def gaps_within(times: Sequence[float], begun: float, end: float) -> list[float]:
    """Times between two events that lie in a span, or reach into it."""
    return [
        later - earlier for earlier, later in pairwise(times) if later > begun and earlier < end
    ]


def num_tokens(stream: Stream) -> int:
    """Tokens drawn so far, by the server's count: an event may hold several."""
    usage = json.loads(stream.last.removeprefix(b"data: "))["usage"]
    return int(usage["completion_tokens"])


class _Reader:
    """Reads streams as they come, until something is so."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._streams: list[Stream] = []
        self._may_end: Stream | None = None

    def add(self, stream: Stream, *, is_last: bool = False) -> Stream:
        """`is_last`: the one that may end."""
        self._streams.append(stream)
        self._may_end = stream if is_last else self._may_end
        self._selector.register(stream.sock, selectors.EVENT_READ, stream)
        return stream

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.perf_counter() + ANSWER_S
        while not is_so():
            if time.perf_counter() > deadline:
                raise UnavailableError(f"no answer within {ANSWER_S:.0f} s")
            for key, _ in self._selector.select(timeout=0.05):
                read_events(key.data)
                if key.data.ended:
                    self._end(key.data)

    def _end(self, stream: Stream) -> None:
        self._selector.unregister(stream.sock)
        if stream is not self._may_end or not stream.times:
            raise UnavailableError(f"a stream ended early: {stream.head[:300]!r}")

    def close(self) -> None:
        for stream in self._streams:
            stream.sock.close()
        self._selector.close()
