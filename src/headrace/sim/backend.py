"""A backend without a model: it takes virtual time, and draws what a script says."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.backends.base import RowResult, StepPlan, StepResult
from headrace.backends.layout import KVLayout, make_layout
from headrace.sim.machine import Machine

VOCAB_SIZE = 1 << 16
EOS = 0
ORDINARY = 1


class VirtualClock:
    """Seconds that pass only when they are told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def wait_until(self, moment_s: float) -> None:
        self.now_s = max(self.now_s, moment_s)


class SimTokenizer:
    """Implements text.base.Tokenizer for ids that stand for nothing: each is the letter a."""

    vocab_size = VOCAB_SIZE
    bos_id: int | None = None
    eos_ids = frozenset({EOS})
    add_bos = False
    max_token_bytes = 1

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        return [ORDINARY] * len(text)

    def encode_bounded(
        self, text: str, limit: int, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int] | None:
        return self.encode(text) if len(text) <= limit else None

    def decode_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        return b"" if token_id == EOS and skip_special else b"a"

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return "".join("a" for i in ids if i != EOS or not skip_special)

    def token_text(self, token_id: int) -> str:
        return "" if token_id == EOS else "a"


class SimBackend:
    """Implements backends.base.Backend. A choice with seed s ends with its `outputs[s]`-th token,
    so that nobody can know before. `num_rows` and `busy_s` count what it has done."""

    numerics_id = "simulated"

    def __init__(
        self,
        machine: Machine,
        clock: VirtualClock,
        num_blocks: int,
        *,
        max_step_rows: int = 512,
        layout: KVLayout | None = None,
    ) -> None:
        self.layout = layout or make_layout((0,), 1, 8)
        self.num_blocks = num_blocks
        self.max_step_rows = max_step_rows
        self.outputs: dict[int, int] = {}
        self.num_rows = 0
        self.busy_s = 0.0
        self._machine = machine
        self._clock = clock
        self._more = RowResult(ORDINARY, math.nan, [])
        self._end = RowResult(EOS, math.nan, [])

    def submit(self, plan: StepPlan) -> StepPlan:
        return plan

    def collect(self, handle: object) -> StepResult:
        assert isinstance(handle, StepPlan)
        seconds = self._machine.seconds(handle)
        self._clock.now_s += seconds
        self.busy_s += seconds
        self.num_rows += len(handle.tokens)
        outputs = self.outputs
        rows = [
            self._end if wanted.output_pos + 1 >= outputs[wanted.spec.seed] else self._more
            for wanted in handle.wanted
        ]
        return StepResult(rows, seconds)

    def hidden_states(self, plan: StepPlan, buffers: Sequence[str]) -> dict[str, list[list[float]]]:
        return {}

    def close(self) -> None:
        """It owns nothing."""
