"""Calls of one LLM that overlap, and arguments that are wrong: each is answered or named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import LLM, SamplingParams
from headrace.engine.llm import StreamChunk
from headrace.errors import HeadraceError, RequestError
from tests.support.make_model import make_gguf

PARAMS = SamplingParams(seed=11, max_tokens=12, ignore_eos=True)
PROMPTS = ["Hello there", "abc", "x", "one two three"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("llm") / "tiny.gguf", family="llama", seed=3).path


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, kv_cache_bytes=4 << 20, threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(llm: LLM) -> dict[str, list[int]]:
    """Token ids of each prompt when nothing else runs."""
    return {prompt: llm.generate(prompt, PARAMS)[0].token_ids for prompt in PROMPTS}


def ids_of(chunks: list[StreamChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, len(PROMPTS)), max_size=60))
def test_streams_and_calls_between_their_chunks(
    llm: LLM, alone: dict[str, list[int]], turns: list[int]
) -> None:
    streams = [llm.stream(prompt, PARAMS) for prompt in PROMPTS]
    read: list[list[StreamChunk]] = [[] for _ in PROMPTS]
    for turn in turns:
        if turn == len(PROMPTS):
            assert llm.generate("abc", PARAMS)[0].token_ids == alone["abc"]
        else:
            read[turn] += [chunk for chunk in [next(streams[turn], None)] if chunk is not None]
    for prompt, stream, chunks in zip(PROMPTS, streams, read, strict=True):
        assert ids_of([*chunks, *stream]) == alone[prompt]
    assert not llm.engine.has_work()
    llm.engine.check()


def test_calls_from_many_threads(llm: LLM, alone: dict[str, list[int]]) -> None:
    def whole(prompt: str) -> list[int]:
        return llm.generate(prompt, PARAMS)[0].token_ids

    def streamed(prompt: str) -> list[int]:
        return ids_of(list(llm.stream(prompt, PARAMS)))

    calls: list[tuple[Callable[[str], list[int]], str]] = [
        (call, prompt) for prompt in PROMPTS * 4 for call in (whole, streamed)
    ]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda call: call[0](call[1]), calls))
    assert answers == [alone[prompt] for _, prompt in calls]


def test_a_stream_that_is_given_up_leaves_the_others_alone(
    llm: LLM, alone: dict[str, list[int]]
) -> None:
    kept, given_up = llm.stream("abc", PARAMS), llm.stream("x", PARAMS)
    first, _ = next(kept), next(given_up)
    given_up.close()
    assert ids_of([first, *kept]) == alone["abc"]
    assert not llm.engine.has_work()


def test_a_stream_of_a_closed_llm_says_so(path: Path) -> None:
    with LLM(path, kv_cache_bytes=4 << 20) as llm:
        stream = llm.stream("x", PARAMS)
        next(stream)
    with pytest.raises(HeadraceError, match="This LLM is closed"):
        next(stream)
    with pytest.raises(HeadraceError, match="This LLM is closed"):
        llm.generate("x")


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
@pytest.mark.parametrize("name", ["kv_cache_bytes", "max_num_seqs", "threads", "max_model_len"])
def test_arguments_of_a_model_are_whole_numbers(path: Path, name: str, value: object) -> None:
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(HeadraceError, match=f"{name} is {value!r}; it must be a whole number"):
        LLM(path, **arguments)


@pytest.mark.parametrize("prompt", [None, 5, b"hi", {"a": 1}, [1, "a"], [[1.5]], [None], [["a"]]])
def test_what_is_no_prompt_is_refused(llm: LLM, prompt: Any) -> None:
    with pytest.raises(RequestError, match="A prompt is a text or a list of token ids"):
        llm.generate(prompt, PARAMS)
    assert not llm.engine.has_work()


@pytest.mark.parametrize("params", [{"max_tokens": 3}, ["x"], "x", [{"max_tokens": 3}]])
def test_what_is_no_sampling_parameters_is_refused(llm: LLM, params: Any) -> None:
    with pytest.raises(RequestError, match="params must be SamplingParams"):
        llm.generate("a", params)


@pytest.mark.parametrize("messages", ["hi", {"role": "user", "content": "hi"}, [["hi"]], None])
def test_what_is_no_conversation_is_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(RequestError, match="messages must be a list of mappings"):
        llm.chat(messages, PARAMS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "x"),
        ("max_tokens", 1.5),
        ("n", True),
        ("stop", 5),
        ("stop", ["a", 5]),
        ("stop_token_ids", "a"),
        ("logit_bias", {"x": 1.0}),
        ("logit_bias", {3: "x"}),
        ("ignore_eos", 1),
        ("seed", "1"),
    ],
)
def test_parameters_of_a_wrong_type_are_named(llm: LLM, field: str, value: object) -> None:
    fields: dict[str, Any] = {field: value}
    with pytest.raises(RequestError, match=rf"^{field}.*: Expected .*, got"):
        llm.generate("a", SamplingParams(**fields))


def test_parameters_take_what_the_api_takes(llm: LLM) -> None:
    one: Any = "ab"
    many: Any = ["ab", "c"]
    by_text: Any = {"5": 1}
    assert SamplingParams(stop=one).stop == ("ab",)
    assert SamplingParams(stop=many).stop == ("ab", "c")
    assert SamplingParams(logit_bias=by_text).logit_bias == {5: 1}
    with pytest.raises(RequestError, match="stop is ''; it must be strings of 1 to 256"):
        llm.generate("a", SamplingParams(stop=("",)))
