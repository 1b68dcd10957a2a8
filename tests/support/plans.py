"""Step plans made by hand: sequences over block tables of their own, one table per layer group."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.backends.base import StepPlan, WantedRow
from headrace.backends.layout import BLOCK_LEN, KVLayout


@dataclass
class TestSequence:
    """A sequence and its block tables; `tables[g]` grows with the positions that were planned."""

    __test__ = False

    tables: list[list[int]]
    num_planned: int = 0


@dataclass
class PlanMaker:
    """Hands out blocks in a seeded random order and builds plans. Never frees a block."""

    layout: KVLayout
    num_blocks: int
    seed: int = 0
    _free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._free = list(range(self.num_blocks))
        random.Random(self.seed).shuffle(self._free)

    def block(self) -> int:
        """A block that nothing uses."""
        return self._free.pop()

    def sequence(self) -> TestSequence:
        return TestSequence([[] for _ in self.layout.groups])

    def plan(
        self,
        parts: Sequence[tuple[TestSequence, Sequence[int]]],
        wanted: Sequence[WantedRow] = (),
        *,
        copies: Sequence[tuple[int, int]] = (),
    ) -> StepPlan:
        """Append the given tokens to each sequence. Blocks behind a window stay in the table."""
        plan = StepPlan(
            tokens=array("i"),
            positions=array("i"),
            seq_starts=array("i", [0]),
            tables=[array("i") for _ in self.layout.groups],
            table_starts=[array("i") for _ in self.layout.groups],
            copies=list(copies),
            wanted=list(wanted),
        )
        for sequence, tokens in parts:
            end = sequence.num_planned + len(tokens)
            plan.tokens.extend(tokens)
            plan.positions.extend(range(sequence.num_planned, end))
            plan.seq_starts.append(len(plan.tokens))
            for group, table in enumerate(sequence.tables):
                while len(table) * BLOCK_LEN < end:
                    table.append(self.block())
                plan.table_starts[group].append(len(plan.tables[group]))
                plan.tables[group].extend(table)
            sequence.num_planned = end
        return plan
