"""Models of a machine: how long a step takes, from the plan alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from headrace.backends.base import StepPlan
from headrace.engine.step_time import StepLoad, StepTime, attended


class Machine(Protocol):
    """A pure function of a plan."""

    def seconds(self, plan: StepPlan) -> float:
        """How long the step takes, above 0."""
        ...


def load_of(plan: StepPlan) -> StepLoad:
    """What a plan runs."""
    load, starts, positions = StepLoad(), plan.seq_starts, plan.positions
    for seq in range(len(starts) - 1):
        load.add(positions[starts[seq]], starts[seq + 1] - starts[seq])
    return load


@dataclass(frozen=True, slots=True)
class LinearMachine:
    """Base + rows + context terms, as the engine's predictor has it."""

    time: StepTime

    def seconds(self, plan: StepPlan) -> float:
        return self.time.predict(load_of(plan))


@dataclass(frozen=True, slots=True)
class RooflineMachine:
    """Limited by bandwidth or by arithmetic, whichever takes longer.

    A step reads the weights once, and of every sequence the KV of all positions it has. A row costs
    `row_ops`, and `attend_ops` for every position that it attends to. `base_s`: what a step takes
    beside. Bytes, operations, and both per second.
    """

    weight_bytes: float
    kv_bytes: float  # of one position
    row_ops: float
    attend_ops: float
    bytes_per_s: float
    ops_per_s: float
    base_s: float = 1e-4

    def seconds(self, plan: StepPlan) -> float:
        starts, positions = plan.seq_starts, plan.positions
        ends = sum(positions[end - 1] + 1 for end in starts[1:])
        seen = sum(attended(positions[start], end - start) for start, end in pairwise(starts))
        read_s = (self.weight_bytes + self.kv_bytes * ends) / self.bytes_per_s
        work_s = (self.row_ops * len(plan.tokens) + self.attend_ops * seen) / self.ops_per_s
        return self.base_s + max(read_s, work_s)
