"""Fields to SamplingParams; prompts of every form to token ids."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.openai.params import (
    chat_params,
    completion_params,
    ignored_fields,
    ignored_header,
    request_options,
)
from headrace.api.openai.prompts import Room, completion_prompts, encode_chat
from headrace.api.openai.types import (
    UNSUPPORTED,
    CacheControl,
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    ContentPart,
    GenerationRequest,
)
from headrace.engine.base import RequestOptions
from headrace.engine.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.gateway.text import ModelText
from headrace.kv.radix.base import Retention
from tests.support.fake_text import FakeTemplate, FakeTokenizer

TEXT = ModelText(FakeTokenizer(), FakeTemplate(), True)
KNOWN = frozenset(CompletionRequest.__struct_fields__)


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest(**{"model": "m", "prompt": "p", "seed": 1, **fields})


def chat(**fields: Any) -> ChatRequest:
    messages = [ChatMessage(role="user", content="p")]
    return ChatRequest(**{"model": "m", "messages": messages, "seed": 1, **fields})


def test_defaults_are_the_apis() -> None:
    assert completion_params(completion()) == SamplingParams(seed=1, max_tokens=16)
    assert chat_params(chat()) == SamplingParams(seed=1, max_tokens=None)


def test_every_field_arrives() -> None:
    fields: dict[str, Any] = {
        "n": 3,
        "max_tokens": 7,
        "min_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "stop_token_ids": [4, 5],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.2,
        "logit_bias": {3: 1.5},
        "prompt_logprobs": 2,
        "prompt_logprobs_from": 1,
    }
    expected = SamplingParams(
        **{**fields, "stop_token_ids": (4, 5)}, seed=1, stop=("a", "b"), logprobs=3
    )
    assert completion_params(completion(**fields, stop=["a", "b"], logprobs=3)) == expected
    asked = chat(**fields, stop=["a", "b"], logprobs=True, top_logprobs=3)
    assert chat_params(asked) == expected


def test_options_beside_the_samples_arrive() -> None:
    assert request_options(chat(priority=-3), 50) == RequestOptions(priority=-3)
    assert request_options(completion(), 50) == RequestOptions()
    kept = RequestOptions(salt="s", retention=Retention(7, 60.0))
    assert request_options(chat(cache=CacheControl(ttl=60, priority=7, salt="s")), 50) == kept
    assert request_options(completion(cache=CacheControl(priority=0)), 50).retention == Retention(0)
    assert request_options(completion(cache=CacheControl(), cache_salt="s"), 50).salt == "s"
    assert request_options(completion(cache=CacheControl(salt="s"), cache_salt="s"), 50).salt == "s"
    with pytest.raises(RequestError, match="send only one of them"):
        request_options(completion(cache=CacheControl(salt=""), cache_salt="s"), 50)
    with pytest.raises(msgspec.ValidationError, match="priority"):
        msgspec.convert({"model": "m", "prompt": "p", "priority": 1001}, CompletionRequest)


@pytest.mark.parametrize(("most", "refused"), [(50, 51), (90, 91), (0, 1), (100, None)])
def test_clients_keep_no_more_than_the_operator_lets_them(most: int, refused: int | None) -> None:
    asked = request_options(chat(cache=CacheControl(priority=most)), most)
    assert asked.retention.priority == most
    assert request_options(chat(), most) == RequestOptions()  # the usual, whatever the bound
    if refused is not None:
        with pytest.raises(RequestError, match=f"at most {most} on this server") as raised:
            request_options(chat(cache=CacheControl(priority=refused)), most)
        assert (raised.value.param, raised.value.code) == ("cache.priority", "invalid_value")


def test_every_shared_field_is_read_or_advisory() -> None:
    """A field of the structs that nobody maps would be accepted and lost."""
    read = set(SamplingParams.__struct_fields__) | {"model", "stream", "stream_options"}
    read |= {"priority", "cache", "cache_salt"}
    extensions = {"return_token_ids", "timings"}
    advisory = {
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "service_tier",
    }
    assert set(GenerationRequest.__struct_fields__) - read - extensions == advisory


@given(st.integers(-(1 << 70), 1 << 70))
def test_seeds(seed: int) -> None:
    if -(1 << 63) <= seed < 1 << 64:
        assert completion_params(completion(seed=seed)).seed == seed % (1 << 64)
    else:
        with pytest.raises(RequestError, match="64-bit"):
            completion_params(completion(seed=seed))


def test_a_drawn_seed_is_exact_in_json() -> None:
    seeds = {completion_params(completion(seed=None)).seed or 0 for _ in range(50)}
    assert len(seeds) == 50
    assert all(0 <= seed < 1 << 53 for seed in seeds)


def test_echo_with_logprobs_wants_those_of_the_prompt() -> None:
    params = completion_params(completion(echo=True, logprobs=2, prompt_logprobs=1))
    assert (params.logprobs, params.prompt_logprobs) == (2, 2)
    assert completion_params(completion(echo=True)).prompt_logprobs is None
    with pytest.raises(RequestError, match="leave out prompt_logprobs_from"):
        completion_params(completion(echo=True, logprobs=2, prompt_logprobs_from=1))


def test_one_stop_string() -> None:
    assert completion_params(completion(stop="x")).stop == ("x",)


@given(st.sampled_from(sorted(UNSUPPORTED)), st.integers(2, 9) | st.just(["x"]) | st.just(True))
def test_fields_that_cannot_be_honoured(name: str, value: object) -> None:
    for harmless in UNSUPPORTED[name]:
        assert ignored_fields({name: harmless}, KNOWN, strict=True) == []
    if not any(value == v and type(value) is type(v) for v in UNSUPPORTED[name]):
        with pytest.raises(RequestError) as caught:
            ignored_fields({name: value}, KNOWN, strict=False)
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


def test_no_field_is_both_read_and_unsupported() -> None:
    fields = set(CompletionRequest.__struct_fields__) | set(ChatRequest.__struct_fields__)
    assert not fields & set(UNSUPPORTED)


def test_unknown_fields_are_named_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    fields = {"model": "m", "zz-unit-b": 1, "zz-unit-a": 2}
    with caplog.at_level(logging.WARNING, logger="headrace.api"):
        for _ in range(3):
            assert ignored_fields(fields, KNOWN, strict=False) == ["zz-unit-a", "zz-unit-b"]
    assert len(caplog.records) == 2
    with pytest.raises(RequestError) as caught:
        ignored_fields(fields, KNOWN, strict=True)
    assert caught.value.param == "zz-unit-a"


def test_unknown_fields_inside_others_are_named() -> None:
    said = {"role": "assistant", "audio": None, "annotations": [], "citations": ["a"]}
    fields = {
        "messages": [{"role": "user"}, said, said],
        "stream_options": {"include_usge": True},
        "cache": {"ttl": 5, "tll": 5},
    }
    known = frozenset(fields)
    found = ["cache.tll", "messages.citations", "stream_options.include_usge"]
    assert ignored_fields(fields, known, strict=False) == found
    with pytest.raises(RequestError) as caught:
        ignored_fields(fields, known, strict=True)
    assert caught.value.param == found[0]


@given(st.lists(st.text(max_size=300), max_size=30))
def test_any_name_fits_into_a_header(names: list[str]) -> None:
    fields = dict.fromkeys(set(names) - set(UNSUPPORTED), 1)
    found = ignored_fields(fields, frozenset(), strict=False)
    for _, value in ignored_header(found):
        assert len(value) < 8192
        assert all(0x20 <= byte < 0x7F for byte in value)


# ---- prompts ----

ROOM = Room(SamplingParams(max_tokens=4), 20)


def test_prompts_of_every_form() -> None:
    assert completion_prompts(TEXT, "ab", ROOM) == [[97, 98]]
    assert completion_prompts(TEXT, ["ab", "c"], ROOM) == [[97, 98], [99]]
    assert completion_prompts(TEXT, [1, 2], ROOM) == [[1, 2]]
    assert completion_prompts(TEXT, [[1], [2, 3]], ROOM) == [[1], [2, 3]]
    assert completion_prompts(TEXT, ["a", [2]], ROOM) == [[97], [2]]


@pytest.mark.parametrize("length", [15, 16, 17])
def test_the_context_length_holds_prompt_and_output(length: int) -> None:
    for prompt in ("x" * length, [1] * length):
        if length <= 16:
            assert len(completion_prompts(TEXT, prompt, ROOM)[0]) == length  # type: ignore[arg-type]  # both forms
        else:
            with pytest.raises(RequestError) as caught:
                completion_prompts(TEXT, prompt, ROOM)  # type: ignore[arg-type]  # both forms
            assert caught.value.code == "context_length_exceeded"


def test_room() -> None:
    assert Room(SamplingParams(max_tokens=None), 20).limit == 19
    assert Room(SamplingParams(max_tokens=0), 20).limit == 20
    for params in (SamplingParams(max_tokens=20), SamplingParams(max_tokens=1 << 30)):
        with pytest.raises(RequestError) as caught:
            Room(params, 20)
        assert caught.value.param == "max_tokens"
    with pytest.raises(RequestError) as caught:
        Room(SamplingParams(max_tokens=2, min_tokens=3), 20)
    assert caught.value.param == "min_tokens"


def test_a_conversation() -> None:
    room = Room(SamplingParams(max_tokens=4), 400)
    messages = [
        ChatMessage(role="developer", content="d"),
        ChatMessage(role="user", content="u", name="n"),
        ChatMessage(role="assistant"),
    ]
    ids = encode_chat(TEXT, messages[:2], True, room)
    rendered = FakeTemplate().render(
        [{"role": "system", "content": "d"}, {"role": "user", "content": "u"}]
    )
    assert ids == TEXT.tokenizer.encode(rendered)
    with pytest.raises(RequestError) as caught:
        encode_chat(TEXT, [ChatMessage(role="tool")], True, room)
    assert caught.value.param == "messages.0.content"


def test_parts_reach_the_template_as_they_are() -> None:
    seen: list[Any] = []

    class Template(FakeTemplate):
        def render(self, messages: Any, **options: Any) -> str:
            seen.extend(messages)
            return "x"

    parts = [ContentPart(type="text", text="a"), ContentPart(type="image_url")]
    message = ChatMessage(role="user", content=parts, tool_call_id="t")
    text = ModelText(FakeTokenizer(), Template(), True)
    encode_chat(text, [message], True, Room(SamplingParams(), 20))
    assert seen == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image_url", "text": None}],
            "tool_call_id": "t",
        }
    ]
