"""The openai package, unchanged, against a running server."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from headrace.engine.sampling import mix64
from tests.support.fake_engine import NUMERICS_ID, output_ids
from tests.support.fake_text import EOS, FakeTemplate, FakeTokenizer
from tests.support.serving import Server

MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]
TOKENIZER = FakeTokenizer()


def expected(prompt: str, seed: int, choice: int = 0) -> str:
    ids = output_ids(TOKENIZER.encode(prompt), seed, choice)
    return TOKENIZER.decode(ids)


def chat_prompt(messages: list[Any] = MESSAGES) -> str:
    return FakeTemplate().render(messages)


def test_completion_is_what_the_engine_says(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="abc", seed=5, max_tokens=99)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.system_fingerprint == NUMERICS_ID
    choice = answer.choices[0]
    assert choice.text == expected("abc", 5)
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 25)
    assert answer.usage.total_tokens == 28
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_completion_has_sixteen_tokens_by_default(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="abc", seed=5)
    assert answer.choices[0].text == expected("abc", 5)[:16]
    assert answer.choices[0].finish_reason == "length"


def test_chat_runs_to_the_end_by_default(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="fake", messages=MESSAGES, seed=5)
    choice = answer.choices[0]
    assert answer.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant"
    assert choice.message.content == expected(chat_prompt(), 5)
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_chat_takes_both_names_of_the_limit(client: openai.OpenAI, name: str) -> None:
    options: dict[str, Any] = {name: 4}
    answer = client.chat.completions.create(model="fake", messages=MESSAGES, seed=5, **options)
    assert answer.choices[0].message.content == expected(chat_prompt(), 5)[:4]
    assert answer.choices[0].finish_reason == "length"


def test_chat_stream_has_the_shape_of_the_api(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="fake",
        messages=MESSAGES,
        seed=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    *deltas, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 25
    assert all(chunk.usage is None for chunk in deltas)
    first = deltas[0].choices[0].delta
    assert (first.role, first.content) == ("assistant", None)
    assert all(chunk.choices[0].delta.role is None for chunk in deltas[1:])
    finishing = [chunk for chunk in deltas if chunk.choices[0].finish_reason is not None]
    assert finishing == [deltas[-1]]
    assert deltas[-1].choices[0].delta.content is None
    text = "".join(chunk.choices[0].delta.content or "" for chunk in deltas)
    assert text == expected(chat_prompt(), 5)


def test_completion_stream_equals_the_whole(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "fake", "prompt": ["ab", "c"], "n": 2, "seed": 9}
    whole = client.completions.create(**options)
    texts = ["", "", "", ""]
    for chunk in client.completions.create(**options, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]
    assert texts == [expected(p, 9, c)[:16] for p in ("ab", "c") for c in (0, 1)]


def test_every_choice_can_be_had_alone_by_its_seed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="fake", messages=MESSAGES, n=3, seed=7)
    seeds = [choice.to_dict()["seed"] for choice in answer.choices]
    assert seeds == [mix64(7, i) for i in range(3)]
    for choice, seed in zip(answer.choices, seeds, strict=True):
        alone = client.chat.completions.create(
            model="fake", messages=MESSAGES, extra_body={"seed": seed}
        )
        assert alone.choices[0].message.content == choice.message.content


def test_a_request_without_seed_says_which_it_got(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="fake", messages=MESSAGES)
    seed = answer.choices[0].to_dict()["seed"]
    assert isinstance(seed, int)
    assert answer.choices[0].message.content == expected(chat_prompt(), seed)


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=MESSAGES, seed=5, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    joined = b"".join(bytes(item.bytes or []) for item in logprobs.content)
    assert joined.decode() == answer.choices[0].message.content
    assert all(len(item.top_logprobs) == 3 for item in logprobs.content)
    assert logprobs.content[0].top_logprobs[0].token == logprobs.content[0].token


def test_chat_logprobs_without_alternatives(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=MESSAGES, seed=5, logprobs=True, top_logprobs=0
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert all(item.top_logprobs == [] for item in logprobs.content)


def test_streamed_logprobs_equal_the_whole(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "fake",
        "messages": [{"role": "user", "content": "!utf8"}],
        "seed": 5,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = client.chat.completions.create(**options)
    items: list[Any] = []
    for chunk in client.chat.completions.create(**options, stream=True):
        logprobs = chunk.choices[0].logprobs
        items += (logprobs.content or []) if logprobs is not None else []
    assert whole.choices[0].logprobs is not None
    assert [item.to_dict() for item in items] == [
        item.to_dict() for item in whole.choices[0].logprobs.content or []
    ]


def test_echo_with_logprobs_covers_the_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="fake", prompt="héy", seed=5, echo=True, logprobs=2, max_tokens=3
    )
    choice = answer.choices[0]
    text = "héy" + expected("héy", 5)[:3]
    assert choice.text == text
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.text_offset is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.tokens) == 4 + 3
    values: list[Any] = list(logprobs.token_logprobs)
    assert values[0] is None
    assert None not in values[1:]
    # The second byte of the é begins no character.
    assert logprobs.text_offset == [0, 1, 2, 2, 3, 4, 5]
    assert len(logprobs.top_logprobs[-1]) == 2


def test_scoring_a_prompt_without_output(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="fake", prompt="abcd", echo=True, logprobs=0, max_tokens=0
    )
    choice: Any = answer.choices[0]
    assert choice.text == "abcd"
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == [None, -0.5, -0.5, -0.5]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


def test_streamed_echo_equals_the_whole(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "fake",
        "prompt": [[104, 105], [106]],
        "seed": 5,
        "echo": True,
        "logprobs": 1,
    }
    whole = client.completions.create(**options)
    texts, tokens, offsets = ["", ""], [[], []], [[], []]  # type: ignore[var-annotated]  # lists of lists
    for chunk in client.completions.create(**options, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.text
        assert choice.logprobs is not None
        tokens[choice.index] += choice.logprobs.tokens or []
        offsets[choice.index] += choice.logprobs.text_offset or []
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs and choice.logprobs.tokens for choice in whole.choices]
    assert offsets == [choice.logprobs and choice.logprobs.text_offset for choice in whole.choices]


def test_prompt_logprobs_are_by_token_id(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="fake", prompt="ab", max_tokens=1, extra_body={"prompt_logprobs": 2}
    )
    found = answer.choices[0].to_dict()["prompt_logprobs"]
    assert found == [
        None,
        {
            "98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
            "99": {"logprob": -1.5, "rank": 2, "decoded_token": "c"},
        },
    ]


def test_prompt_logprobs_may_begin_later(client: openai.OpenAI) -> None:
    def found(**fields: int) -> list[list[dict[str, Any] | None]]:
        body = {"prompt_logprobs": 1, **fields}
        answer = client.completions.create(
            model="fake", prompt=["abcd", "wxyz"], max_tokens=0, extra_body=body
        )
        return [choice.to_dict()["prompt_logprobs"] for choice in answer.choices]  # type: ignore[misc]  # an extension

    whole = found()
    for start in range(4):
        assert found(prompt_logprobs_from=start) == [entries[start:] for entries in whole]


def test_token_ids_on_request(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="fake", prompt="ab", seed=5, max_tokens=99, extra_body={"return_token_ids": True}
    )
    choice = answer.choices[0].to_dict()
    assert choice["prompt_token_ids"] == [97, 98]
    assert choice["token_ids"] == output_ids([97, 98], 5, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_timings_on_request(client: openai.OpenAI, stream: bool) -> None:
    options: dict[str, Any] = {"model": "fake", "prompt": "ab", "extra_body": {"timings": True}}
    if stream:
        last = list(client.completions.create(**options, stream=True))[-1].to_dict()
    else:
        last = client.completions.create(**options).to_dict()
    timings: Any = last["timings"]
    assert set(timings) == {"queue_s", "prefill_s", "decode_s"}
    assert all(value >= 0 for value in timings.values())


def test_continuous_usage_grows_to_the_final(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    stream = client.completions.create(
        model="fake", prompt="ab", n=2, seed=1, max_tokens=5, stream=True, stream_options=options
    )
    counts = []
    for chunk in stream:
        assert chunk.usage is not None
        assert chunk.usage.prompt_tokens == 2
        counts.append(chunk.usage.completion_tokens)
    assert counts == sorted(counts)
    assert counts[-2:] == [10, 10]


def test_stop_string_and_token(client: openai.OpenAI) -> None:
    text = expected("abc", 5)
    stop = text[6]
    cut = text[: text.index(stop)]
    answer = client.completions.create(
        model="fake", prompt="abc", seed=5, max_tokens=99, stop=[stop]
    )
    assert answer.choices[0].text == cut
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].to_dict()["stop_reason"] == stop
    by_id = client.completions.create(
        model="fake",
        prompt="abc",
        seed=5,
        max_tokens=99,
        extra_body={"stop_token_ids": [ord(stop)]},
    )
    assert by_id.choices[0].to_dict()["stop_reason"] == ord(stop)


def test_ignore_eos_and_min_tokens(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="fake", prompt="abc", max_tokens=40, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 40
    answer = client.completions.create(
        model="fake", prompt="abc", max_tokens=80, extra_body={"min_tokens": 30}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens >= 30


def test_many_byte_characters_come_whole(client: openai.OpenAI) -> None:
    message: Any = {"role": "user", "content": "!utf8"}
    stream = client.chat.completions.create(model="fake", messages=[message], stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == "żółw 漢字 🦀 "
    assert "\ufffd" not in "".join(pieces)


def test_models(client: openai.OpenAI) -> None:
    cards = list(client.models.list())
    assert [card.id for card in cards] == ["fake"]
    card = client.models.retrieve("fake").to_dict()
    assert card["max_model_len"] == 4096
    assert card["status"] == "ready"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("org/other:q4")
    assert caught.value.code == "model_not_found"


def test_errors_have_the_classes_that_clients_catch(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="x")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="fake", prompt="x", temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="fake", prompt="x" * 5000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="fake", prompt="!refuse")
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model="fake", prompt="!fail")
    assert bad.value.request_id is not None


def test_a_failure_within_a_stream_raises(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIError):
        list(client.completions.create(model="fake", prompt="!fail", stream=True))


def test_retries_follow_retry_after(server: Server) -> None:
    before = server.log.count("POST /v1/completions 429")
    with (
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=1) as client,
        pytest.raises(openai.RateLimitError),
    ):
        client.completions.create(model="fake", prompt="!refuse")
    assert server.log.count("POST /v1/completions 429") == before + 2


def test_chat_template_errors_are_the_clients(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="says no") as caught:
        client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "!template"}]
        )
    assert caught.value.param == "messages"


async def test_a_hundred_at_once(server: Server) -> None:
    import asyncio

    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as client:

        async def ask(i: int) -> str:
            stream = await client.completions.create(
                model="fake", prompt=f"p{i}", seed=i, max_tokens=99, stream=True
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

        texts = await asyncio.gather(*(ask(i) for i in range(100)))
    assert texts == [expected(f"p{i}", i) for i in range(100)]


def test_eos_is_no_text() -> None:
    assert TOKENIZER.decode([EOS]) == ""
