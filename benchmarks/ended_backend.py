"""A real backend whose answers end where a trace says, so that policies can be compared on it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from msgspec import structs

from headrace.backends.base import RowResult, StepPlan, StepResult
from headrace.backends.cpu import CpuBackend
from headrace.backends.layout import KVLayout


class WallClock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._start_s

    def __call__(self) -> float:
        return self.now_s

    def wait_until(self, moment_s: float) -> None:
        time.sleep(max(0.0, moment_s - self.now_s))


@dataclass
class EndedBackend:
    """Implements backends.base.Backend and what sim.run.Play asks of one: all rows are computed,
    only the drawn ids are replaced where an answer would end too early or late."""

    backend: CpuBackend
    num_blocks: int
    eos_id: int
    ordinary_id: int
    outputs: dict[int, int] = field(default_factory=dict)
    num_rows: int = 0
    busy_s: float = 0.0

    @property
    def layout(self) -> KVLayout:
        return self.backend.layout

    @property
    def numerics_id(self) -> str:
        return self.backend.numerics_id

    @property
    def max_step_rows(self) -> int:
        return self.backend.max_step_rows

    def submit(self, plan: StepPlan) -> tuple[StepPlan, object]:
        return plan, self.backend.submit(plan)

    def collect(self, handle: object) -> StepResult:
        assert isinstance(handle, tuple)
        plan, inner = handle
        result = self.backend.collect(inner)
        self.num_rows += len(plan.tokens)
        self.busy_s += result.native_s
        rows = [
            self._ended(row, wanted.output_pos + 1 >= self.outputs[wanted.spec.seed])
            for row, wanted in zip(result.rows, plan.wanted, strict=True)
        ]
        return replace(result, rows=rows)

    def _ended(self, row: RowResult, is_last: bool) -> RowResult:
        if is_last:
            return structs.replace(row, token=self.eos_id)
        return structs.replace(row, token=self.ordinary_id) if row.token == self.eos_id else row

    def hidden_states(self, plan: StepPlan, buffers: object) -> dict[str, list[list[float]]]:
        return {}

    def close(self) -> None:
        self.backend.close()
