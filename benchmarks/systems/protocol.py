"""The JSON lines that every system under test speaks, and the loop that answers them.

The first line out is {"ready": name, "version": v}, or {"error": reason}. Then per line in:
  {"do": "prefill", "tokens": 512}
  {"do": "decode", "sequences": 8, "context": 128, "tokens": 32}
  {"do": "verify", "rows": 5, "context": 128, "tokens": 32}
answered by {"seconds": s, "tokens": n}, or {"error": reason} for what a system cannot do.
This module imports nothing of headrace: rivals run it in environments of their own.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any, Protocol

# Ids that every model here has, none of them a control token.
FIRST_ID, LAST_ID = 1000, 30000
# An untimed prompt before each timed one: pages, threads and frequency are as in a running server.
WARM_UP_LEN = 16
_FOLDERS = re.compile(r"/(?:[^\s/:]+/)+")


class UnsupportedError(Exception):
    """A system cannot measure what it was asked; the text says why."""


class Adapter(Protocol):
    """A system that measures itself. Prompts are random, so that no prefix is found again."""

    version: str

    def prefill(self, prompt: list[int]) -> float:
        """Seconds from an idle system to the first token of the prompt."""
        ...

    def decode(self, prompts: list[list[int]], tokens: int) -> float:
        """Seconds of `tokens` steps in which every prompt's sequence gains one token."""
        ...


class Channel:
    """Answers on what was stdout; whatever else is printed goes to stderr, also by native code."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def write(self, answer: dict[str, object]) -> None:
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()


def run(name: str, load: Callable[[], Adapter]) -> None:
    """Load a system and serve commands until stdin ends."""
    channel = Channel()
    try:
        adapter = load()
    except Exception as error:
        traceback.print_exc()
        channel.write({"error": _reason(error)})
        return
    channel.write({"ready": name, "version": adapter.version})
    rng = random.Random(os.getpid())
    for line in sys.stdin:
        try:
            seconds, tokens = measure(adapter, rng, json.loads(line))
            channel.write({"seconds": seconds, "tokens": tokens})
        except Exception as error:
            if not isinstance(error, UnsupportedError):
                traceback.print_exc()
            channel.write({"error": _reason(error)})


def measure(adapter: Adapter, rng: random.Random, command: dict[str, Any]) -> tuple[float, int]:
    """(seconds, tokens) of one command."""
    tokens = int(command["tokens"])
    if command["do"] == "prefill":
        if not command.get("cold"):
            adapter.prefill(random_prompt(rng, WARM_UP_LEN))
        return adapter.prefill(random_prompt(rng, tokens)), tokens
    if command["do"] == "decode":
        sequences, context = int(command["sequences"]), int(command["context"])
        prompts = [random_prompt(rng, context) for _ in range(sequences)]
        return adapter.decode(prompts, tokens), sequences * tokens
    verify: Callable[[list[int], int, int], float] | None = getattr(adapter, "verify", None)
    if command["do"] != "verify" or verify is None:
        raise UnsupportedError(f"it has no measurement {command['do']!r}")
    rows, context = int(command["rows"]), int(command["context"])
    return verify(random_prompt(rng, context + rows), rows, tokens), rows * tokens


def random_prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(FIRST_ID, LAST_ID) for _ in range(length)]


def _reason(error: Exception) -> str:
    """One line; of a path only the file's name, since rows are published."""
    text = _FOLDERS.sub("", " ".join(str(error).split()))
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
