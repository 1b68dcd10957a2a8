"""SSE chunks are JSON the openai package reads, whatever the text; parts add up to the whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from headrace.api.openai.chunks import DONE, ChatChunks, ChunkEncoder, CompletionChunks, StreamShape
from headrace.api.openai.responses import (
    MIN_LOGPROB,
    CompletionLogprobs,
    num_characters,
    prompt_logprob,
)
from headrace.engine.sampling import mix64
from headrace.gateway.streams import StreamEvent
from headrace.worker.frames import PromptLogprobs, TokenLogprob
from tests.support.scripted_worker import delta, finished

TEXTS = st.text(max_size=8)


def shape(**options: Any) -> StreamShape:
    fields: dict[str, Any] = {
        "response_id": "id-1",
        "created": 7,
        "model": 'm"\u2028\\',
        "fingerprint": "f",
        "prompts": [[1, 2]],
        "num_choices": 1,
        "seed": 5,
        **options,
    }
    return StreamShape(**fields)


def parse(data: bytes) -> list[Any]:
    """The JSON of every event; `[DONE]` stays a string."""
    text = data.decode()
    if not text:
        return []
    assert text.endswith("\n\n")
    events = [block.removeprefix("data: ") for block in text[:-2].split("\n\n")]
    assert all("\n" not in event for event in events)
    return [event if event == "[DONE]" else json.loads(event) for event in events]


def run(encoder: ChunkEncoder, events: Sequence[tuple[int, StreamEvent]]) -> list[Any]:
    chunks = [chunk for part, event in events for chunk in parse(encoder.encode(part, event))]
    return chunks + parse(encoder.end())


@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_chat_text_survives(texts: list[str]) -> None:
    events: list[tuple[int, StreamEvent]] = [(0, delta("r", text)) for text in texts]
    events += [(0, delta("r", "", finish_reason="stop")), (0, finished("r"))]
    chunks = run(ChatChunks(shape()), events)
    assert chunks.pop() == "[DONE]"
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        assert (chunk["id"], chunk["created"], chunk["model"]) == ("id-1", 7, 'm"\u2028\\')
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": None}
    assert deltas[-1] == {}
    assert "".join(d["content"] for d in deltas[1:-1]) == "".join(texts)
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + [
        "stop"
    ]
    assert chunks[-1]["choices"][0]["seed"] == 5


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), TEXTS), max_size=8))
def test_completion_parts_and_choices_do_not_mix(pieces: list[tuple[int, int, str]]) -> None:
    encoder = CompletionChunks(shape(prompts=[[1], [2]], num_choices=2))
    events: list[tuple[int, StreamEvent]] = [
        (part, delta("r", text, choice=choice)) for part, choice, text in pieces
    ]
    events += [
        (p, delta("r", "", choice=c, finish_reason="length")) for p in (0, 1) for c in (0, 1)
    ]
    chunks = run(encoder, [*events, (0, finished("a")), (1, finished("b"))])
    texts = ["", "", "", ""]
    for chunk in chunks[:-1]:
        Completion.model_validate({**chunk, "choices": _finished_choices(chunk)})
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["text"]
    expected = ["".join(t for p, c, t in pieces if p * 2 + c == i) for i in range(4)]
    assert texts == expected
    ends = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["finish_reason"]]
    assert [(c["index"], c["seed"]) for c in ends] == [(i, mix64(5, i % 2)) for i in range(4)]


def _finished_choices(chunk: Any) -> list[Any]:
    """The package's type wants a finish reason in every choice."""
    return [{**choice, "finish_reason": "stop"} for choice in chunk["choices"]]


def test_usage_only_when_asked() -> None:
    events: list[tuple[int, StreamEvent]] = [
        (0, delta("r", "a", num_output=1)),
        (0, delta("r", "b", num_output=2, finish_reason="stop")),
        (0, finished("r", num_prompt=2, num_output=2)),
    ]
    assert all("usage" not in chunk for chunk in run(ChatChunks(shape()), events)[:-1])
    chunks = run(ChatChunks(shape(include_usage=True)), events)
    assert [chunk["usage"] for chunk in chunks[:-2]] == [None] * (len(chunks) - 2)
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"]["total_tokens"] == 4
    chunks = run(ChatChunks(shape(continuous_usage=True)), events)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks[:-1]]
    assert counts == [1, 1, 2, 2, 2]
    assert all(chunk["usage"]["prompt_tokens"] == 2 for chunk in chunks[:-1])


def test_usage_says_what_was_cached_from_the_first_token_on() -> None:
    events: list[tuple[int, StreamEvent]] = [
        (0, delta("r", "a", num_output=1, num_cached=1)),
        (1, delta("s", "a", num_output=1, num_cached=1)),
    ]
    encoder = ChatChunks(shape(continuous_usage=True, prompts=[[1, 2], [3, 4]]))
    chunks = [chunk for part, event in events for chunk in parse(encoder.encode(part, event))]
    details = [chunk["usage"]["prompt_tokens_details"]["cached_tokens"] for chunk in chunks]
    assert details == sorted(details)
    assert (details[0], details[-1]) == (1, 2)


def test_timings_come_last() -> None:
    events: list[tuple[int, StreamEvent]] = [(0, delta("r", "a")), (0, finished("r"))]
    last = run(ChatChunks(shape(with_timings=True)), events)[-2]
    assert last["timings"] == {"queue_s": 0.0, "prefill_s": 0.1, "decode_s": 0.2}
    assert last["choices"] == []


def test_tokens_without_text_send_nothing_unless_their_logprobs_are_wanted() -> None:
    encoder = ChatChunks(shape())
    encoder.encode(0, delta("r", "a"))
    assert encoder.encode(0, delta("r", "")) == b""
    entry = TokenLogprob(1, "\ufffd", b"\xf0", -1.0, [])
    (chunk,) = parse(encoder.encode(0, delta("r", "", logprobs=[entry])))
    assert chunk["choices"][0]["logprobs"]["content"][0]["bytes"] == [0xF0]
    assert chunk["choices"][0]["delta"] == {"content": ""}


def test_a_stream_without_extras_ends_with_done() -> None:
    encoder = ChatChunks(shape())
    assert encoder.encode(0, finished("r")) == b""
    assert encoder.end() == DONE


def test_echo_comes_first_with_its_logprobs() -> None:
    encoder = CompletionChunks(
        shape(num_choices=2), echo=["ab"], firsts=[("a", b"a")], num_logprobs=0
    )
    entry = TokenLogprob(98, "b", b"b", -2.0, [])
    data = encoder.encode(0, PromptLogprobs(request_id="r", start=0, entries=[None]))
    data += encoder.encode(0, PromptLogprobs(request_id="r", start=1, entries=[entry]))
    new = TokenLogprob(99, "c", b"c", -3.0, [])
    data += encoder.encode(0, delta("r", "c", logprobs=[new]))
    choices = [chunk["choices"][0] for chunk in parse(data)]
    first = [choice for choice in choices if choice["index"] == 0]
    assert [choice["text"] for choice in first] == ["ab", "", "c"]
    joined = {
        name: [item for choice in first for item in choice["logprobs"][name]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    assert joined == {
        "tokens": ["a", "b", "c"],
        "token_logprobs": [None, -2.0, -3.0],
        "top_logprobs": [None, {"b": -2.0}, {"c": -3.0}],
        "text_offset": [0, 1, 2],
    }
    assert [choice["text"] for choice in choices if choice["index"] == 1] == ["ab", ""]


# ---- log-probabilities ----


@given(st.lists(st.text(min_size=1, max_size=4), max_size=6))
def test_offsets_count_characters(texts: list[str]) -> None:
    logprobs = CompletionLogprobs(0)
    for text in texts:
        logprobs.add(TokenLogprob(0, text, text.encode(), -1.0, []))
    offsets = json.loads(logprobs.take())["text_offset"]
    assert offsets == [len("".join(texts[:i])) for i in range(len(texts))]


@given(st.text(), st.integers(0, 40))
def test_characters_of_split_text(text: str, cut: int) -> None:
    raw = text.encode()
    assert num_characters(raw[:cut]) + num_characters(raw[cut:]) == len(text)


def test_minus_infinity_is_a_number() -> None:
    minus = float("-inf")
    entry = TokenLogprob(1, "a", b"a", minus, [(1, "a", b"a", minus), (2, "b", b"b", -1.0)])
    logprobs = CompletionLogprobs(2)
    logprobs.add(entry)
    shown = json.loads(logprobs.take())
    assert shown["token_logprobs"] == [MIN_LOGPROB]
    assert shown["top_logprobs"] == [{"a": MIN_LOGPROB, "b": -1.0}]
    assert json.loads(prompt_logprob(entry, 2))["1"]["logprob"] == MIN_LOGPROB


@pytest.mark.parametrize(("num_top", "keys"), [(0, {"5"}), (1, {"1", "5"}), (2, {"1", "2", "5"})])
def test_the_prompts_own_token_is_always_shown(num_top: int, keys: set[str]) -> None:
    entry = TokenLogprob(5, "e", b"e", -9.0, [(1, "a", b"a", -1.0), (2, "b", b"b", -2.0)])
    shown = json.loads(prompt_logprob(entry, num_top))
    assert set(shown) == keys
    assert shown["5"]["rank"] is None
    assert prompt_logprob(None, 2) == b"null"
