"""Bad bodies: a clear 400 that names the field, quickly, and nothing else notices."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import openai
import pytest

from tests.support.http import Answer, complete, post, request
from tests.support.serving import Server

TEXT = {"model": "fake", "prompt": "abc", "max_tokens": 1}
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 1}


def refused(answer: Answer, status: int = 400) -> dict[str, Any]:
    assert answer.status == status, answer.body
    error = answer.error
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'"x"', "object"),
        (b'{"model": "fake", "prompt": "a",}', "JSON"),
        (b'{"model": "fake", "prompt": "a"} {}', "JSON"),
        (b"{'model': 'fake'}", "JSON"),
        (b'{"model": "fake", "prompt": NaN}', "JSON"),
        (b'{"model": "fake", "prompt": "a", "temperature": NaN}', "JSON"),
        (b'{"model": "fake", "prompt": "a", "temperature": Infinity}', "JSON"),
        (b'{"model": "fake", "prompt": "a", "temperature": 1e999}', "temperature"),
        (b'{"model": "fake", "prompt": "\\ud800"}', "half a"),
        (b'{"model": "fake", "prompt": "\\udc00\\ud800"}', "JSON"),
        (b'{"model": "fake", "prompt": "\xff\xfe"}', "JSON"),
        (b'{"model": "fake", "prompt": "a\x00"}', "JSON"),
        (b'{"model": "fake", "prompt": "a", "prompt": "b"}', "twice"),
        (b'{"model": "fake", "prompt": "a", "x": {"y": 1, "y": 2}}', "twice"),
        (b'{"model": "fake", "prompt": "a", "x": ' + b"[" * 65 + b"]" * 65 + b"}", "deeper"),
        (b'{"model": "fake", "prompt": "a", "x": ' + b"[" * 90000 + b"]" * 90000 + b"}", "deeper"),
        (b'{"x":' * 5000 + b"1" + b"}" * 5000, "deeper"),
        (b'{"model": "fake", "prompt": "a", "seed": ' + b"9" * 5000 + b"}", "seed"),
        (b'{"model": "fake", "prompt": "a", "x": ' + b"9" * 5000 + b"}", "too large"),
        (b'{"model": "fake", "prompt": [' + b"1," * 600_000 + b"1]}", "values"),
        (b"\xef\xbb\xbf{}", "JSON"),
        ('{"model": "fake", "prompt": "a"}'.encode("utf-16"), "JSON"),
    ],
)
def test_malformed_json(server: Server, body: bytes, says: str) -> None:
    answer = post(server, "/v1/completions", body)
    assert says in refused(answer)["message"]


def test_nesting_up_to_the_limit(server: Server) -> None:
    body = b'{"model": "fake", "prompt": "a", "x": ' + b"[" * 63 + b"]" * 63 + b"}"
    assert post(server, "/v1/completions", body).status == 200


ONE_ABOVE: list[tuple[str, Any, str]] = [
    ("n", 17, "n"),
    ("n", 0, "n"),
    ("max_tokens", -1, "max_tokens"),
    ("max_tokens", 1 << 40, "max_tokens"),
    ("max_tokens", 1.5, "max_tokens"),
    ("max_tokens", True, "max_tokens"),
    ("max_tokens", "5", "max_tokens"),
    ("min_tokens", -1, "min_tokens"),
    ("min_tokens", 2, "min_tokens"),
    ("temperature", -0.1, "temperature"),
    ("temperature", 101, "temperature"),
    ("top_p", 1.1, "top_p"),
    ("top_k", -2, "top_k"),
    ("min_p", -0.1, "min_p"),
    ("seed", 1 << 64, "seed"),
    ("seed", -(1 << 63) - 1, "seed"),
    ("seed", 0.5, "seed"),
    ("stop", ["x"] * 17, "stop"),
    ("stop", "x" * 257, "stop"),
    ("stop", ["x", ""], "stop"),
    ("stop", {}, "stop"),
    ("stop_token_ids", [260], "stop_token_ids"),
    ("stop_token_ids", [-1], "stop_token_ids.0"),
    ("stop_token_ids", [1] * 1025, "stop_token_ids"),
    ("repetition_penalty", 0, "repetition_penalty"),
    ("presence_penalty", 2.1, "presence_penalty"),
    ("frequency_penalty", -2.1, "frequency_penalty"),
    ("logit_bias", {"260": 1}, "logit_bias"),
    ("logit_bias", {"x": 1}, "logit_bias"),
    ("logit_bias", {"1": 101}, "logit_bias"),
    ("logit_bias", {str(i): 0 for i in range(1025)}, "logit_bias"),
    ("prompt_logprobs", 21, "prompt_logprobs"),
    ("prompt_logprobs_from", -1, "prompt_logprobs_from"),
    ("prompt_logprobs_from", 1, "prompt_logprobs_from"),
    ("cache", 5, "cache"),
    ("cache", {"ttl": 0}, "cache.ttl"),
    ("cache", {"ttl": -1}, "cache.ttl"),
    ("cache", {"ttl": 30 * 86400 + 1}, "cache.ttl"),
    ("cache", {"ttl": "60"}, "cache.ttl"),
    ("cache", {"ttl": True}, "cache.ttl"),
    ("cache", {"priority": -1}, "cache.priority"),
    ("cache", {"priority": 101}, "cache.priority"),
    ("cache", {"priority": 51}, "cache.priority"),
    ("cache", {"priority": 1.5}, "cache.priority"),
    ("cache", {"salt": "x" * 257}, "cache.salt"),
    ("cache", {"salt": 5}, "cache.salt"),
    ("cache_salt", "x" * 257, "cache_salt"),
    ("stream_options", {"include_usage": True}, "stream_options"),
    ("user", 5, "user"),
    ("service_tier", "flex", "service_tier"),
]


@pytest.mark.parametrize(("name", "value", "param"), ONE_ABOVE)
@pytest.mark.parametrize(("path", "body"), [("completions", TEXT), ("chat/completions", CHAT)])
def test_one_beyond_each_limit(
    server: Server, path: str, body: dict[str, Any], name: str, value: Any, param: str
) -> None:
    error = refused(post(server, f"/v1/{path}", {**body, name: value}))
    assert (error["param"] or "").startswith(param)


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"logprobs": 21}, "logprobs", "invalid_value"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [""]}, "prompt.0", "invalid_value"),
        ({"prompt": [[]]}, "prompt.0", "invalid_value"),
        ({"prompt": [260]}, "prompt", "invalid_value"),
        ({"prompt": [-1]}, "prompt.0", "invalid_value"),
        ({"prompt": [[1], [2, 260]]}, "prompt.1", "invalid_value"),
        ({"prompt": [1, "a"]}, "prompt", "invalid_value"),
        ({"prompt": ["a", 1]}, "prompt.1", "invalid_value"),
        ({"prompt": [True]}, "prompt.0", "invalid_value"),
        ({"prompt": [1.0]}, "prompt.0", "invalid_value"),
        ({"prompt": {"a": 1}}, "prompt", "invalid_value"),
        ({"prompt": None}, "prompt", "invalid_value"),
        ({"prompt": ["a"] * 65}, "prompt", "invalid_value"),
        ({"prompt": "a" * 4096}, "prompt", "context_length_exceeded"),
        ({"prompt": [1] * 4096}, "prompt", "context_length_exceeded"),
        ({"max_tokens": 4096}, "max_tokens", "context_length_exceeded"),
        ({"model": 5}, "model", "invalid_value"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "invalid_value"),
    ],
)
def test_completion_fields(server: Server, changes: Any, param: str, code: str) -> None:
    error = refused(post(server, "/v1/completions", {**TEXT, **changes}))
    assert (error["param"], error["code"]) == (param, code)


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a", **fields}]}


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "a"}, "messages", "invalid_value"),
        ({"messages": [{}]}, "messages.0.role", "invalid_value"),
        ({"messages": [{"role": "user", "content": "a"}] * 10_001}, "messages", "invalid_value"),
        (message(role="nobody"), "messages.0.role", "invalid_value"),
        (message(content=None), "messages.0.content", "invalid_value"),
        (message(content=5), "messages.0.content", "invalid_value"),
        (message(content=[{"text": "a"}]), "messages.0.content.0.type", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        (
            {"max_tokens": None, "max_completion_tokens": 0},
            "max_completion_tokens",
            "invalid_value",
        ),
        ({"max_completion_tokens": 5}, "max_tokens", "invalid_value"),
        ({"logprobs": 5}, "logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 1}, "top_logprobs", "invalid_value"),
        (message(content="a" * 4096), "messages", "context_length_exceeded"),
        ({"tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "unsupported_parameter"),
        ({"functions": [{}]}, "functions", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
        ({"store": True}, "store", "unsupported_parameter"),
        ({"modalities": ["audio"]}, "modalities", "unsupported_parameter"),
        ({"chat_template": "x"}, "chat_template", "unsupported_parameter"),
        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs", "unsupported_parameter"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_parameter"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs", "unsupported_parameter"),
    ],
)
def test_chat_fields(server: Server, changes: Any, param: str, code: str) -> None:
    error = refused(post(server, "/v1/chat/completions", {**CHAT, **changes}))
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize(
    "changes",
    [
        {"tools": None, "tool_choice": "auto", "response_format": {"type": "text"}},
        {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "store": False},
        {"prompt_cache_key": "k", "service_tier": "auto", "parallel_tool_calls": True},
        {"n": None, "stop": None, "temperature": None, "logit_bias": None, "seed": None},
        {"temperature": 0, "top_p": 0, "top_k": -1, "min_p": 1, "seed": -1},
        {"logit_bias": {"1": -100, "2": 5}, "stop": ["x"] * 16},
        {"cache": {"ttl": 0.5, "priority": 50, "salt": "\u00e9\u0000"}},
        {"cache": {"ttl": None, "priority": None, "salt": None}, "cache_salt": None},
    ],
)
def test_harmless_fields(server: Server, changes: dict[str, Any]) -> None:
    answer = post(server, "/v1/chat/completions", {**CHAT, **changes})
    assert answer.status == 200, answer.body
    assert "x-headrace-ignored" not in answer.headers


@pytest.mark.parametrize("extra", [0, 1])
def test_prompts_at_the_limit(server: Server, extra: int) -> None:
    """Prompt and max_tokens together may fill the context, and not one token more."""
    prompt = "a" * (4096 - 3 + extra)
    answer = post(server, "/v1/completions", {**TEXT, "prompt": prompt, "max_tokens": 3})
    assert answer.status == (400 if extra else 200)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "b"}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [260]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens.0"),
        ("/v1/cache/abandon", {"prefix": [1]}, "tails"),
        ("/v1/cache/abandon", {"prefix": [260], "tails": []}, "prefix"),
        ("/v1/cache/abandon", {"prefix": [-1], "tails": []}, "prefix.0"),
        ("/v1/cache/abandon", {"prefix": [], "tails": [[1], [260]]}, "tails.1"),
        ("/v1/cache/abandon", {"prefix": [], "tails": [[]] * 1025}, "tails"),
        ("/v1/cache/abandon", {"prefix": [], "tails": [], "salt": "x" * 257}, "salt"),
    ],
)
def test_token_endpoints(server: Server, path: str, body: Any, param: str) -> None:
    assert refused(post(server, path, body))["param"] == param


def test_a_hint_is_taken_and_changes_nothing(server: Server) -> None:
    before = complete(server, "abc", seed=1).json["choices"]
    body = {"model": "fake", "prefix": [97], "tails": [[98, 99], []]}
    answer = post(server, "/v1/cache/abandon", body)
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert complete(server, "abc", seed=1).json["choices"] == before


def test_tokenize_and_back(server: Server) -> None:
    answer = post(server, "/tokenize", {"model": "fake", "prompt": "h\u00e9 <eos>"}).json
    assert answer == {"tokens": [104, 195, 169, 32, 257], "count": 5, "max_model_len": 4096}
    text = post(server, "/detokenize", {"tokens": answer["tokens"]}).json
    assert text == {"prompt": "h\u00e9 "}
    chat = post(server, "/tokenize", {"messages": CHAT["messages"]}).json
    used = post(server, "/v1/chat/completions", CHAT).json["usage"]
    assert chat["count"] == used["prompt_tokens"]


def test_errors_are_bounded(server: Server) -> None:
    """Whatever a client sends comes back clipped."""
    huge = "x" * 1_000_000
    for body in (
        {**TEXT, "model": huge},
        {**TEXT, "model": "y" * 1000},
        {**TEXT, huge: 1},
        {**TEXT, "stop": [huge]},
        {**CHAT, "messages": [{"role": huge, "content": "a"}]},
        {**CHAT, "service_tier": huge},
        {**TEXT, **{f"field-{i}-{'z' * 200}": 1 for i in range(1000)}},
    ):
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        answer = post(server, path, body)
        assert len(answer.body) < 32768
        assert sum(map(len, answer.headers.values())) < 16384


@pytest.mark.parametrize("name", ["a\r\nb", "a\x1b[31mb", "\u202e\u2028x", "é" * 50])
def test_names_cannot_break_a_log_line(server: Server, name: str) -> None:
    answer = post(server, "/v1/completions", {**TEXT, "model": name, name: 1})
    assert answer.status == 404
    answer = post(server, "/v1/completions", {**TEXT, name: 1})
    assert answer.status == 200
    for line in server.log.splitlines():
        assert "\x1b" not in line
    assert "\u2028" not in server.log
    request(server, "GET", "/%1b%5b31m%0a%0dx")
    assert "\x1b" not in server.log


def test_small_bad_bodies_are_quick(server: Server) -> None:
    body = b'{"model": "fake", "prompt": "a", "x": ' + b"[" * 90000 + b"]" * 90000 + b"}"
    times = []
    for _ in range(5):
        started_s = time.perf_counter()
        refused(post(server, "/v1/completions", body))
        times.append(time.perf_counter() - started_s)
    assert min(times) < 0.25


async def test_a_large_body_delays_no_stream(server: Server) -> None:
    """While bodies of 5 MB are refused, another stream's tokens keep coming."""
    body = json.dumps({**TEXT, "prompt": 'word "and" \n' * 350_000}).encode()
    assert 5e6 < len(body) < 10e6
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as client:
        stream = await client.completions.create(
            model="fake",
            prompt="!slow",
            max_tokens=100,
            stream=True,
            extra_body={"ignore_eos": 1 > 0},
        )
        loop = asyncio.get_running_loop()
        posts = [
            loop.run_in_executor(None, post, server, "/v1/completions", body) for _ in range(3)
        ]
        count = 0
        async for chunk in stream:
            count += bool(chunk.choices)
        assert count == 100
        for done in posts:
            assert (await done).status == 400


@pytest.mark.parametrize("fields", [{"echo": True, "logprobs": 20}, {"prompt_logprobs": 20}])
def test_an_answer_of_too_many_logprobs_is_refused_before_it_runs(
    server: Server, fields: dict[str, object]
) -> None:
    body = {"model": "fake", "prompt": [[97] * 2000] * 13, "max_tokens": 1, **fields}
    error = refused(post(server, "/v1/completions", body))
    assert error["param"] == "logprobs"
    assert "+0 tokens" not in server.log.splitlines()[-1]
