"""The real server with a real model, and what it must have in common with the engine offline."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headrace import LLM, SamplingParams
from tests.support.http import post
from tests.support.serving import ROOT, Server, free_port, stop, wait_ready

MODEL = "real"
PROMPTS = ["The sky is", "Once upon a time, in a small", "def fibonacci(n):"]
_SCRIPT = """
import sys
from pathlib import Path
from headrace.gateway.config import ModelSpec, ServeConfig
from headrace.gateway.main import serve

name, path, port, length = sys.argv[1:]
models = (ModelSpec(name, Path(path)),)
config = ServeConfig(models, port=int(port), kv_cache_memory=64 << 20, max_model_len=int(length))
sys.exit(serve(config))
"""


@contextlib.contextmanager
def serve_model(path: Path, log_path: Path, max_model_len: int = 256) -> Iterator[Server]:
    """`headrace serve` on a file, as model MODEL, until the block ends."""
    port = free_port()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, MODEL, str(path), str(port), str(max_model_len)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )
    running = Server(f"http://127.0.0.1:{port}", process, log_path)
    try:
        wait_ready(running, 60)
        yield running
    finally:
        stop(running)


def complete(server: Server, prompt: object, **fields: object) -> Any:
    body = {"model": MODEL, "prompt": prompt, "return_token_ids": True, **fields}
    answer = post(server, "/v1/completions", body)
    assert answer.status == 200, answer.body
    return answer.json


def check_server_equals_offline(server: Server, llm: LLM, fields: dict[str, Any]) -> None:
    """Token ids, text, finish reason and logprobs; alone offline, all at once on the server."""
    fields = {"max_tokens": 10, "seed": 1, "logprobs": 3, **fields}
    bias = {int(k): v for k, v in fields.get("logit_bias", {}).items()}
    params = SamplingParams(**{**fields, "logit_bias": bias})
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda prompt: complete(server, prompt, **fields), PROMPTS))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        result = llm.generate(prompt, params)[0]
        choice, expected = answer["choices"][0], result.choices[0]
        assert choice["token_ids"] == expected.token_ids
        assert choice["text"] == expected.text
        assert choice["finish_reason"] == expected.finish_reason
        assert expected.logprobs is not None
        assert choice["logprobs"]["token_logprobs"] == [e.logprob for e in expected.logprobs]


def check_stream_whole_batch_alone(server: Server) -> None:
    """Streamed or not, several prompts or one, n choices or their seeds alone: the same."""
    fields = {"seed": 3, "max_tokens": 8, "n": 2, "logprobs": 2}
    whole = complete(server, PROMPTS, **fields)
    texts = [""] * 6
    ids: list[list[int]] = [[] for _ in range(6)]
    logprobs: list[list[float]] = [[] for _ in range(6)]
    body = {"model": MODEL, "prompt": PROMPTS, "stream": True, "return_token_ids": True, **fields}
    for line in post(server, "/v1/completions", body).body.decode().splitlines():
        if line.startswith("data: {"):
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            texts[choice["index"]] += choice["text"]
            ids[choice["index"]] += choice["token_ids"]
            logprobs[choice["index"]] += choice["logprobs"]["token_logprobs"]
    for i, choice in enumerate(whole["choices"]):
        assert texts[i] == choice["text"]
        assert ids[i] == choice["token_ids"]
        assert logprobs[i] == choice["logprobs"]["token_logprobs"]
        alone = complete(server, PROMPTS[i // 2], **{**fields, "n": 1, "seed": choice["seed"]})
        assert alone["choices"][0]["token_ids"] == choice["token_ids"]
        assert (
            alone["choices"][0]["logprobs"]["token_logprobs"]
            == choice["logprobs"]["token_logprobs"]
        )
