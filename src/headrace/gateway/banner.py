"""What a person sees when the server is up: where it is and lines that work when pasted."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence

from headrace import _native
from headrace.gateway.config import ServeConfig
from headrace.gateway.service import ModelService
from headrace.weights.catalog import find_entry
from headrace.weights.fit import better_models

_PROMPT = "Why is the sky blue?"


def say(line: str) -> None:
    """One line to stderr."""
    print(line, file=sys.stderr, flush=True)


def print_banner(config: ServeConfig, url: str, services: Sequence[ModelService]) -> None:
    """The URL, each model's sizes, a curl line, a Python snippet."""
    for service in services:
        ready = service.ready
        if ready is None:
            continue
        say(
            f"{service.names[0]}: loaded in {ready.load_s:.1f} s, {ready.isa}, "
            f"{ready.threads} threads; the KV pool holds {ready.kv_tokens:,} tokens "
            f"({ready.kv_bytes >> 20} MiB), {ready.max_model_len:,} per request"
        )
    first = services[0]
    say(f"\nServing on {url} (Ctrl-C ends it)" + (f", a page to chat at {url}/" * config.ui))
    say("\n" + curl_line(url, first, config.api_key is not None))
    say("\n" + python_snippet(url, first, config.api_key is not None) + "\n")
    for service in services:
        if service.spec.is_default:
            say(demo_advice(service.spec.name) + "\n")


def demo_advice(name: str) -> str:
    """That the default model is a demonstration, and which better ones this machine can run."""
    entry = find_entry(name)
    size_bytes = entry.size_bytes if entry is not None else 0
    better = better_models(size_bytes, _native.memory_info().available_bytes)
    advice = f"{name} is a demonstration model: quick, small, and often wrong."
    if better:
        names = ", ".join(f"{e.name} ({e.size_bytes / 1e9:.1f} GB)" for e in better)
        advice += f" Better ones that this machine can run: {names}; make run MODEL=NAME."
    return advice


def curl_line(url: str, service: ModelService, with_key: bool) -> str:
    """A request that works when pasted into a shell (the key comes from HEADRACE_API_KEY)."""
    has_template = service.text is not None and service.text.has_chat
    name = service.names[0]
    if has_template:
        path = "/v1/chat/completions"
        body: dict[str, object] = {
            "model": name,
            "messages": [{"role": "user", "content": _PROMPT}],
        }
    else:
        path, body = "/v1/completions", {"model": name, "prompt": "The sky is"}
    key = ' -H "Authorization: Bearer $HEADRACE_API_KEY"' if with_key else ""
    data = shlex.quote(json.dumps(body))
    return f"curl {url}{path}{key} -H 'Content-Type: application/json' -d {data}"


def python_snippet(url: str, service: ModelService, with_key: bool) -> str:
    """The same with the openai package, which headrace itself does not install."""
    has_template = service.text is not None and service.text.has_chat
    key = 'os.environ["HEADRACE_API_KEY"]' if with_key else '"none"'
    head = "# pip install openai\n" + ("import os\n" if with_key else "")
    head += f'from openai import OpenAI\nclient = OpenAI(base_url="{url}/v1", api_key={key})\n'
    name = json.dumps(service.names[0])
    if has_template:
        messages = '[{"role": "user", "content": "' + _PROMPT + '"}]'
        call = f"client.chat.completions.create(model={name}, messages={messages})"
        return f"{head}print({call}.choices[0].message.content)"
    call = f'client.completions.create(model={name}, prompt="The sky is")'
    return f"{head}print({call}.choices[0].text)"
