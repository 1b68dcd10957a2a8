"""The seam between engine and device: a step plan in, samples out.

Contract
- A plan is a value: it carries everything a step needs. A backend owns the packed weights, the KV
  arena and scratch memory, and keeps no state of any request between steps, except the samples of
  the previous step (a row may name one as its token) and the KV that plans told it to write.
- `submit(plan)` takes ownership of the plan's arrays until `collect` returns; one step may be in
  flight. Order inside a step: block copies, then all rows' KV writes and attention layer by layer
  (a row attends to every position of its sequence up to its own, also those written by this step),
  then logits, then sampling.
- The result of a row depends only on its own token, position and the KV its block table shows: not
  on the other rows, their number, or how a prompt is cut into chunks (the numeric contract).
- Rows of one sequence are consecutive in the plan and have consecutive positions. A block is
  written by at most one sequence of a step. Tables name blocks of the arena; entries behind a
  window may be -1.
- Arrays are `array.array("i")` (32-bit), never lists, so that no element is boxed on the way down.
  What is made for every row is a msgspec.Struct: it is made in a quarter of a dataclass's time.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from headrace.backends.layout import KVLayout


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """The numbers of a request that decide its samples. Immutable for a choice's life.

    Processing order of logits: penalties, logit bias, banned ids, allowed mask; then temperature;
    then top-k, top-p, min-p over what is left. temperature < 1e-5 is greedy. top_k 0 = off, top_p 1
    = off, min_p 0 = off. `seed` is the choice's own (already mixed). `num_top` alternatives are
    reported when >= 0 (0: only the chosen token's logprob); -1: no logprobs.
    Repetition penalty counts prompt and output (positive logits divided, others multiplied),
    presence and frequency count output only.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    num_top: int = -1

    @property
    def needs_history(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


class WantedRow(msgspec.Struct, gc=False):
    """One row whose logits are wanted.

    `sample`: draw a token. Otherwise report the logprob (and `num_top` alternatives) of the id
    `target`, as for prompt logprobs. `output_pos`: index of the drawn token in the output
    (counts from 0), which with seed and id decides its noise. `history`: prompt + output ids
    when the spec needs them, of which `prompt_len` are prompt. `banned`: ids that must not be drawn
    (end of sequence before min_tokens). `mask`: bit i of the little-endian bytes allows id i.
    """

    row: int
    spec: SamplingSpec
    sample: bool = True
    target: int = -1
    output_pos: int = 0
    history: array[int] | None = None
    prompt_len: int = 0
    banned: tuple[int, ...] = ()
    mask: bytes | None = None


@dataclass(slots=True)
class StepPlan:
    """See the module docstring. num_rows = len(tokens), num_seqs = len(seq_starts) - 1.

    tokens[r]: id, or -1 - w: the token drawn for wanted row w of the previous step.
    seq_starts: first row of each sequence, then num_rows.
    tables[g]: concatenated block tables of group g; table_starts[g][s]: where sequence s begins.
    copies: (source block, destination block), done before anything else, in order.
    wanted: in row order; a row may be wanted several times (choices with seeds of their own).
    """

    tokens: array[int]
    positions: array[int]
    seq_starts: array[int]
    tables: list[array[int]]
    table_starts: list[array[int]]
    copies: list[tuple[int, int]] = field(default_factory=list)
    wanted: list[WantedRow] = field(default_factory=list)


class RowResult(msgspec.Struct, gc=False):
    """`token`: the drawn id, or the target. `logprob`: log-softmax of the raw logits at it (before
    penalties, bias, temperature and filters), nan when not asked for. `top`: (id, logprob), best
    first, ties to the lower id. `failed`: the logits hold a NaN, an infinity above, or no finite
    value, or nothing may be drawn."""

    token: int
    logprob: float
    top: list[tuple[int, float]]
    failed: bool = False


@dataclass(slots=True)
class StepResult:
    """One entry per wanted row, in plan order. `native_s`: seconds inside the device. `waited_s`:
    seconds, since the backend was made, in which it waited for other processes' turns to end."""

    rows: list[RowResult]
    native_s: float = 0.0
    waited_s: float = 0.0


class Backend(Protocol):
    """One loaded model on one device."""

    @property
    def layout(self) -> KVLayout: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def numerics_id(self) -> str:
        """Hex digest of everything that can change a bit of the output (numeric contract)."""
        ...

    @property
    def max_step_rows(self) -> int:
        """Most rows of a plan. It may want twice as many: each row once, and the last row of a
        prompt once more for every choice that begins there."""
        ...

    def submit(self, plan: StepPlan) -> object: ...

    def collect(self, handle: object) -> StepResult: ...

    def hidden_states(self, plan: StepPlan, buffers: Sequence[str]) -> dict[str, list[list[float]]]:
        """Run a plan and return named buffers after it: for tests and features, not serving."""
        ...

    def close(self) -> None: ...
