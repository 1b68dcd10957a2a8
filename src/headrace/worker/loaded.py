"""What a builder gives the worker: an engine, its tokenizer, and the sizes that `Ready` reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace.engine.base import EngineAPI
from headrace.worker.frames import Ready


class TokenBytes(Protocol):
    """The part of a tokenizer that fills in the tokens of logprobs."""

    def decode_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes: ...

    def token_text(self, token_id: int) -> str: ...


@dataclass(frozen=True, slots=True)
class WorkerEngine:
    """A servable model."""

    engine: EngineAPI
    tokenizer: TokenBytes
    ready: Ready
