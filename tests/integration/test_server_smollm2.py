"""The real server with a real model: what it says is, bit for bit, what the engine says offline."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from headrace import LLM, SamplingParams
from tests.support.http import post, request
from tests.support.real_server import (
    MODEL,
    check_server_equals_offline,
    check_stream_whole_batch_alone,
    complete,
    serve_model,
)
from tests.support.serving import Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve_model(smollm2_path, tmp_path_factory.mktemp("smollm2") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), kv_cache_bytes=64 << 20) as made:
        yield made


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0, "max_tokens": 12},
    {"temperature": 0.8, "seed": 7, "max_tokens": 12},
    {"temperature": 1.1, "seed": 8, "top_p": 0.9, "top_k": 40, "min_p": 0.02, "max_tokens": 12},
    {"temperature": 0.7, "seed": 9, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"temperature": 0.0, "logit_bias": {"28": -100.0}, "frequency_penalty": 0.5},
]


@pytest.mark.parametrize("fields", SETTINGS)
def test_server_equals_offline(server: Server, llm: LLM, fields: dict[str, Any]) -> None:
    check_server_equals_offline(server, llm, fields)


def test_stream_equals_whole_and_batch_equals_alone(server: Server) -> None:
    check_stream_whole_batch_alone(server)


def test_chat_equals_offline(server: Server, llm: LLM) -> None:
    messages: Any = [{"role": "user", "content": "Say hello in French."}]
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=messages, temperature=0, max_tokens=12
        )
        stream = client.chat.completions.create(
            model=MODEL, messages=messages, temperature=0, max_tokens=12, stream=True
        )
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    expected = llm.chat(messages, SamplingParams(temperature=0.0, max_tokens=12))
    assert answer.choices[0].message.content == expected.choices[0].text == streamed
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(expected.choices[0].token_ids)


def test_a_prompt_that_was_sent_before_is_cached_and_the_answer_the_same(server: Server) -> None:
    prompt = "The quick brown fox jumps over the lazy dog. " * 6

    def ask(**fields: object) -> tuple[int, Any]:
        answer = complete(server, prompt, temperature=0, max_tokens=8, logprobs=1, **fields)
        choice = answer["choices"][0]
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached, (choice["token_ids"], choice["logprobs"]["token_logprobs"])

    cold, warm = ask(), ask()
    other, again = ask(cache={"salt": "other", "ttl": 60}), ask(cache_salt="other")
    assert (cold[0], other[0]) == (0, 0)
    assert warm[0] == again[0] > 32
    assert cold[1] == warm[1] == other[1] == again[1]


def test_what_is_sent_at_once_is_computed_once(server: Server) -> None:
    """Whoever comes first computes what all have in common, the others wait for it or find it."""
    shared = [1 + i * 7 % 1000 for i in range(160)]
    prompts = [shared + [2000 + i] * 8 for i in range(8)]
    fields: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda prompt: complete(server, prompt, **fields), prompts))
    usages = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert sorted(usages) == [0] + [len(shared)] * 7
    fields["cache_salt"] = "alone"
    for prompt, answer in zip(prompts, answers, strict=True):
        alone = complete(server, prompt, **fields)
        assert alone["choices"][0]["token_ids"] == answer["choices"][0]["token_ids"]


def test_prompt_logprobs_equal_those_of_the_output(server: Server) -> None:
    """Scoring what was generated gives the numbers of its generation."""
    first = complete(server, "The sky is", temperature=0, max_tokens=12, logprobs=0)["choices"][0]
    ids = first["prompt_token_ids"] + first["token_ids"]
    scored = complete(server, ids, echo=True, logprobs=0, max_tokens=0)["choices"][0]
    num_new = len(first["token_ids"])
    assert scored["logprobs"]["token_logprobs"][-num_new:] == first["logprobs"]["token_logprobs"]


def test_long_prompts_and_the_limit(server: Server) -> None:
    card = request(server, "GET", f"/v1/models/{MODEL}").json
    limit = card["max_model_len"]
    prompt = [1 + i % 1000 for i in range(limit - 1)]
    answer = complete(server, prompt, max_tokens=1, ignore_eos=True)
    assert answer["usage"]["prompt_tokens"] == limit - 1
    body = {"model": MODEL, "prompt": [*prompt, 1], "max_tokens": 1}
    assert post(server, "/v1/completions", body).error["code"] == "context_length_exceeded"


def test_the_banner_lines_work(server: Server) -> None:
    """The curl line and the Python snippet, run as printed."""
    lines = server.log.splitlines()
    curl = next(line for line in lines if line.startswith("curl "))
    start = next(i for i, line in enumerate(lines) if line.startswith("from openai"))
    snippet = "\n".join(lines[start : start + 3]).replace(
        "messages=", "max_tokens=8, temperature=0, messages="
    )
    done = subprocess.run(
        [sys.executable, "-c", snippet], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip()
    with contextlib.suppress(FileNotFoundError):
        shown = subprocess.run(
            ["sh", "-c", curl.replace('"messages"', '"max_tokens": 8, "messages"')],
            capture_output=True,
            timeout=60,
            check=True,
        )
        if shown.stdout:
            assert json.loads(shown.stdout)["choices"][0]["message"]["content"]
