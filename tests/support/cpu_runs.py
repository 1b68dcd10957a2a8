"""Runs of the CPU backend that tests compare bit by bit: what every row gave, however it ran."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.backends.base import RowResult, SamplingSpec, StepPlan, WantedRow
from headrace.backends.cpu import CpuBackend
from headrace.backends.layout import make_layout
from headrace.models.registry import build_program
from headrace.weights.base import WeightSource
from tests.support.plans import PlanMaker, TestSequence

# What a row gave: token, logprob and alternatives as hex, and the bits of its last hidden state.
RowBits = tuple[int, str, tuple[tuple[int, str], ...], bytes]
# One step: which request advances by how many tokens.
Step = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Request:
    """Tokens that are fed whatever is drawn, and how every position is sampled."""

    tokens: tuple[int, ...]
    spec: SamplingSpec


@dataclass
class Run:
    """Requests fed to one backend step by step, on block tables in a seeded random order."""

    backend: CpuBackend
    requests: Sequence[Request]
    seed: int = 0
    bits: dict[tuple[int, int], RowBits] = field(default_factory=dict)
    _sequences: list[TestSequence] = field(init=False)
    _maker: PlanMaker = field(init=False)

    def __post_init__(self) -> None:
        self._maker = PlanMaker(self.backend.layout, self.backend.num_blocks, self.seed)
        self._sequences = [self._maker.sequence() for _ in self.requests]

    def steps(self, steps: Iterable[Step]) -> dict[tuple[int, int], RowBits]:
        """Run them; returns the bits of every (request, position) so far."""
        for step in steps:
            self._step(step)
        return self.bits

    def _step(self, step: Step) -> None:
        places: list[tuple[int, int]] = []
        parts, wanted = [], []
        for index, count in step:
            request, start = self.requests[index], self._sequences[index].num_planned
            tokens = request.tokens[start : start + count]
            for position in range(start, start + len(tokens)):
                wanted.append(WantedRow(len(places), request.spec, output_pos=position))
                places.append((index, position))
            parts.append((self._sequences[index], tokens))
        plan = self._maker.plan(parts, wanted)
        rows = self.backend.collect(self.backend.submit(plan)).rows
        hidden = self.backend.hidden_states(plan, ["x"])["x"]
        for place, row, values in zip(places, rows, hidden, strict=True):
            self.bits[place] = row_bits(row, values)


def row_bits(row: RowResult, hidden: list[float]) -> RowBits:
    assert not row.failed
    top = tuple((token, value.hex()) for token, value in row.top)
    return row.token, row.logprob.hex(), top, array("f", hidden).tobytes()


def load(
    source: WeightSource,
    *,
    num_blocks: int = 256,
    threads: int = 1,
    isa: str | None = None,
    max_step_rows: int = 512,
    packing: str | None = None,
    activations: str = "quantized",
) -> CpuBackend:
    """The CPU backend of a source, with an arena of `num_blocks`."""
    program = build_program(source.config, None)
    layout = make_layout(program.kv_windows, program.num_kv_heads, program.head_dim)
    return CpuBackend.load(
        source,
        program,
        kv_bytes=num_blocks * layout.block_bytes,
        threads=threads,
        max_step_rows=max_step_rows,
        isa=isa,
        packing=packing,
        activations=activations,
    )


def empty_plan(backend: CpuBackend) -> StepPlan:
    """A plan without rows."""
    groups = len(backend.layout.groups)
    return StepPlan(
        tokens=array("i"),
        positions=array("i"),
        seq_starts=array("i", [0]),
        tables=[array("i") for _ in range(groups)],
        table_starts=[array("i") for _ in range(groups)],
    )
