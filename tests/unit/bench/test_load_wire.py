"""Answers as they arrive: cut anywhere they mean the same, and no bytes do harm."""

from __future__ import annotations

import contextlib
import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.load.wire import Answer, BadAnswer
from tests.support.scripted_server import answer, http

WHOLE = b"".join(answer({"prompt": "a b c", "max_tokens": 4}))


def read(pieces: list[bytes]) -> Answer:
    found = Answer()
    for number, piece in enumerate(pieces):
        found.feed(piece, float(number))
    found.end()
    return found


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_a_stream_cut_anywhere_means_the_same(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(WHOLE)]
    found = read([WHOLE[a:b] for a, b in itertools.pairwise(edges)])
    assert found.is_done
    assert len(found.token_times) == 4
    assert found.token_times == sorted(found.token_times)
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (3, 4)


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_no_bytes_do_harm(pieces: list[bytes]) -> None:
    with contextlib.suppress(BadAnswer):
        read(pieces)


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=8), st.integers(0, 8))
def test_a_damaged_stream_is_read_or_refused(place: int, put: bytes, cut: int) -> None:
    with contextlib.suppress(BadAnswer):
        read([WHOLE[:place] + put + WHOLE[place + cut :]])


@given(st.binary(max_size=60))
def test_an_event_of_any_bytes_is_read_or_refused(data: bytes) -> None:
    body = b"data: " + data + b"\n\n"
    with contextlib.suppress(BadAnswer):
        read([http(body, kind="text/event-stream")])


@given(st.binary(max_size=300))
def test_any_refusal_has_a_short_printable_message(body: bytes) -> None:
    found = read([http(body, "500 No")])
    assert found.status == 500
    assert len(found.error_message) <= 200
    assert found.error_message.isprintable()
