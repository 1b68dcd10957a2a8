"""Stop strings: the streamed result is that of one search over the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RequestError
from headrace.text.stop import make_stop_matcher


def one_shot(text: str, stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    """The stop string that is complete first; of those that end together, the longest."""
    found = [(at + len(stop), -len(stop), stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        return text, None
    end, negative_len, stop = min(found)
    return text[: end if include_stop else end + negative_len], stop


def streamed(chunks: list[str], stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    matcher = make_stop_matcher(stops, include_stop)
    assert matcher is not None
    sent = ""
    for chunk in chunks:
        match = matcher.push(chunk)
        sent += match.text
        if match.stopped is not None:
            assert matcher.push("more").text == ""
            assert matcher.push("more").stopped == match.stopped
            assert matcher.flush() == ""
            return sent, match.stopped
        whole = "".join(chunks)
        assert whole.startswith(sent)
    return sent + matcher.flush(), None


stop_lists = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), min_size=1, max_size=6)
chunk_lists = st.lists(st.text(alphabet="ab\n", max_size=7), max_size=12)


@given(chunk_lists, stop_lists, st.booleans())
def test_chunks_make_no_difference(chunks: list[str], stops: list[str], include_stop: bool) -> None:
    want = one_shot("".join(chunks), stops, include_stop)
    assert streamed(chunks, stops, include_stop) == want
    assert streamed(["".join(chunks)], stops, include_stop) == want
    assert streamed(list("".join(chunks)), stops, include_stop) == want


@given(chunk_lists, stop_lists)
def test_no_more_is_held_back_than_may_become_a_stop(chunks: list[str], stops: list[str]) -> None:
    matcher = make_stop_matcher(stops)
    assert matcher is not None
    seen = sent = ""
    for chunk in chunks:
        match = matcher.push(chunk)
        if match.stopped is not None:
            break
        seen += chunk
        sent += match.text
        starts = {stop[:n] for stop in stops for n in range(len(stop))}
        longest = max(n for n in range(len(seen) + 1) if seen[len(seen) - n :] in starts)
        assert sent == seen[: len(seen) - longest]


@pytest.mark.parametrize(
    ("text", "stops", "sent", "stopped"),
    [
        ("hello\nworld", ["\n"], "hello", "\n"),
        ("say END now", ["END", "STOP"], "say ", "END"),
        ("no stop here", ["STOP"], "no stop here", None),
        ("aaab", ["aab"], "a", "aab"),
        ("ababac", ["abac"], "ab", "abac"),
        ("abcd", ["abcd", "bc"], "a", "bc"),
        ("xabc", ["bc", "abc", "c"], "x", "abc"),
        ("ENEND", ["END"], "EN", "END"),
        ("EN", ["END"], "EN", None),
        ("a😀b", ["😀"], "a", "😀"),
        ("stop", ["stop", "stop"], "", "stop"),
    ],
)
def test_cases(text: str, stops: list[str], sent: str, stopped: str | None) -> None:
    assert streamed([text], stops, False) == (sent, stopped)
    assert streamed(list(text), stops, False) == (sent, stopped)


def test_include_stop() -> None:
    matcher = make_stop_matcher(["END"], include_stop=True)
    assert matcher is not None
    assert matcher.push("the E").text == "the "
    assert matcher.push("ND of it").text == "END"


def test_long_stops_take_linear_time() -> None:
    """A search that starts over for each character would take 10^9 steps here."""
    stops = ["a" * 255 + "b" * n for n in range(1, 17)]
    matcher = make_stop_matcher(stops)
    assert matcher is not None
    sent = sum(len(matcher.push("a" * 1000).text) for _ in range(400))
    assert sent + len(matcher.flush()) == 400_000


def test_no_stops() -> None:
    assert make_stop_matcher([]) is None


def test_empty_stop_is_refused() -> None:
    with pytest.raises(RequestError, match="must not be empty") as caught:
        make_stop_matcher(["a", ""])
    assert caught.value.param == "stop"


def test_matchers_of_the_same_stops_are_independent() -> None:
    first, second = make_stop_matcher(["ab"]), make_stop_matcher(["ab"])
    assert first is not None
    assert second is not None
    assert first.push("a").text == ""
    assert second.push("b").stopped is None
    assert first.push("b").stopped == "ab"
