"""A model without weights: tokens are hashes of what the block tables show, so that any mistake in
blocks, copies, windows or positions changes the output. The plain twin for tests of the engine."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

from headrace.backends.base import RowResult, StepPlan, StepResult, WantedRow
from headrace.backends.layout import BLOCK_LEN, KVLayout, make_layout


class FakeTokenizer:
    """Token i is the letter chr(97 + i % 26); id 0 is BOS, id 1 ends a sequence."""

    vocab_size = 64
    bos_id: int | None = 0
    eos_ids = frozenset({1})
    add_bos = False
    max_token_bytes = 1

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        return [2 + ord(c) % 60 for c in text]

    def encode_bounded(
        self, text: str, limit: int, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int] | None:
        ids = self.encode(text)
        return ids if len(ids) <= limit else None

    def decode_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        return b"" if token_id < 2 and skip_special else bytes([97 + token_id % 26])

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return b"".join(self.decode_bytes(i, skip_special=skip_special) for i in ids).decode()

    def token_text(self, token_id: int) -> str:
        return self.decode_bytes(token_id, skip_special=False).decode()


def _hash(*parts: object) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class FakeBackend:
    """Implements backends.base.Backend. `owners`, when set, gives the number of block tables that
    name a block, so that writing a shared block is noticed."""

    def __init__(
        self, num_blocks: int, windows: Sequence[int] = (0,), max_step_rows: int = 64
    ) -> None:
        self.layout: KVLayout = make_layout(windows, 1, 8)
        self.num_blocks = num_blocks
        self.max_step_rows = max_step_rows
        self.numerics_id = "fake"
        self.owners: Callable[[int], int] | None = None
        self.num_rows = 0
        self.num_wanted = 0
        self._memory: list[list[tuple[int, int, int] | None]] = [
            [None] * BLOCK_LEN for _ in range(num_blocks)
        ]

    def submit(self, plan: StepPlan) -> StepPlan:
        return plan

    def collect(self, handle: object) -> StepResult:
        assert isinstance(handle, StepPlan)
        assert len(handle.tokens) <= self.max_step_rows, "a step has too many rows"
        assert len(handle.wanted) <= 2 * self.max_step_rows, "a step wants too many rows"
        for source, destination in handle.copies:
            self._memory[destination] = list(self._memory[source])
        values: list[int] = []
        writers: dict[int, int] = {}
        for seq in range(len(handle.seq_starts) - 1):
            for row in range(handle.seq_starts[seq], handle.seq_starts[seq + 1]):
                values.append(self._run_row(handle, seq, row, writers))
        self.num_rows += len(values)
        self.num_wanted += len(handle.wanted)
        return StepResult([self._sample(values[w.row], w) for w in handle.wanted])

    def hidden_states(self, plan: StepPlan, buffers: Sequence[str]) -> dict[str, list[list[float]]]:
        return {}

    def close(self) -> None:
        self._memory = []

    def _run_row(self, plan: StepPlan, seq: int, row: int, writers: dict[int, int]) -> int:
        position, token = plan.positions[row], plan.tokens[row]
        context = []
        for group, spec in enumerate(self.layout.groups):
            low = max(0, position - spec.window + 1) if spec.window else 0
            seen = []
            for p in range(low, position):
                entry = self._memory[self._block(plan, group, seq, p)][p % BLOCK_LEN]
                assert entry is not None, "a position was read that was never written"
                assert entry[:2] == (group, p), f"position {p} of group {group} holds {entry[:2]}"
                seen.append(entry[2])
            context.append(tuple(seen))
        value = _hash(token, context)
        for group in range(len(self.layout.groups)):
            block = self._block(plan, group, seq, position)
            assert writers.setdefault(block, seq) == seq, "two sequences write one block"
            assert self.owners is None or self.owners(block) == 1, "a shared block is written"
            self._memory[block][position % BLOCK_LEN] = (group, position, value)
        return value

    @staticmethod
    def _block(plan: StepPlan, group: int, seq: int, position: int) -> int:
        block = plan.tables[group][plan.table_starts[group][seq] + position // BLOCK_LEN]
        assert block >= 0, "a block behind the window was read"
        return block

    @staticmethod
    def _sample(value: int, wanted: WantedRow) -> RowResult:
        spec = wanted.spec
        token = wanted.target
        if wanted.sample:
            history = tuple(wanted.history) if wanted.history is not None else ()
            draw = _hash(value, spec, wanted.output_pos, history, wanted.prompt_len)
            allowed = [i for i in range(1, 64) if i not in wanted.banned]
            # One draw in sixteen ends the sequence.
            token = 1 if draw % 16 == 0 and 1 in allowed else allowed[draw // 16 % len(allowed)]
        if spec.num_top < 0:
            return RowResult(token, math.nan, [])
        top = [(i, -1.0 - i - _hash(value, i) % 97 / 97) for i in range(spec.num_top)]
        return RowResult(token, -(_hash(value, token) % 1000) / 100, top)
