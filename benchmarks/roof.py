"""The roof of a figure: what a step must read or multiply, and what the machine can.

Bytes of a decoded token: every tensor that a step reads once, as stored in the source file, and the
keys and values of each sequence. An embedding that is only looked up is left out; a tied one is the
head and counts once. Operations of a prompt: two per weight of every linear layer and token; the
head, computed for one row, and attention are left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.rows import ROOF, Row
from headrace.bench.roof import Roof
from headrace.models.config import ModelConfig
from headrace.weights.base import WeightSource

MEMORY = "memory read"
MODEL_READ = "read of the model's size"
INTEGER = "int8 multiply-add"
COMPUTE = {INTEGER: "int8", "int4 unpacked, 4 rows": "int4-4", "float32 multiply-add": "fma"}
READ_BYTES = 1 << 30
REPEAT = 3
# Reads before and after a row whose bandwidth they bound. Other tenants of a host change what its
# memory gives from second to second, so that a look at it minutes away bounds nothing.
BESIDE_REPEAT = 24
KV_BYTES = {"fp16": 2.0, "int8": 1.0}
_LOOKED_UP = ("token_embd.weight", "rope_freqs.weight")


@dataclass(frozen=True)
class ModelCost:
    """What a model costs at least, whoever runs it."""

    weight_bytes: int
    ops_per_token: int
    layer_windows: tuple[int, ...]  # 0: full attention
    kv_values: int  # of one position in one layer

    @classmethod
    def of(cls, source: WeightSource) -> ModelCost:
        config = source.config
        left_out = _LOOKED_UP[1:] if config.tied_head else _LOOKED_UP
        read = [info for name, info in source.tensors.items() if name not in left_out]
        linear = [info for info in read if info.name.startswith("blk.") and len(info.shape) == 2]
        return cls(
            sum(info.num_bytes for info in read),
            2 * sum(math.prod(info.shape) for info in linear),
            _windows(config),
            2 * config.num_kv_heads * config.head_dim,
        )

    def kv_bytes(self, context: float, kv_dtype: str = "fp16") -> float:
        """Bytes of keys and values that one sequence reads in a step; scales are not counted."""
        positions = sum(min(context, w) if w else context for w in self.layer_windows)
        return positions * self.kv_values * KV_BYTES[kv_dtype]

    def step_bytes(self, sequences: int, context: float, kv_dtype: str = "fp16") -> float:
        """Bytes of one step in which `sequences` sequences decode at `context`."""
        return self.weight_bytes + sequences * self.kv_bytes(context, kv_dtype)


def bytes_of(cost: ModelCost, command: Mapping[str, Any], system: str) -> float:
    """Bytes of one step of a decode point, halfway through it."""
    kv_dtype = "int8" if system.endswith("kv=int8") else "fp16"
    context = int(command["context"]) + int(command["tokens"]) / 2
    return cost.step_bytes(int(command["sequences"]), context, kv_dtype)


def read_beside(point: str, system: str) -> str:
    """Name of the rows of the roof that were measured right before and after a row."""
    return f"read beside {point}, {system}"


def _windows(config: ModelConfig) -> tuple[int, ...]:
    return tuple(config.window if is_window else 0 for is_window in config.layer_is_window)


class Machine:
    """Measures the machine between rounds, in this process, by the probes of `headrace bench roof`.

    Memory is read in two sizes: far beyond any cache, and the model's own, which a large cache may
    hold.
    """

    def __init__(self, threads: int, weight_bytes: int) -> None:
        self._sizes = {MEMORY: READ_BYTES, MODEL_READ: max(weight_bytes, 1 << 20)}
        self._probes = Roof(threads=threads, max_bytes=max(self._sizes.values()))

    def measure(self, number: int) -> list[Row]:
        """Rows of system "roof": bytes and operations per second of all threads together."""
        rows = []
        for point, size in self._sizes.items():
            rate = self._probes.read(size, REPEAT).together * 1e9
            rows.append(Row(number, point, ROOF, size / rate, size, "bytes"))
        for point, probe in COMPUTE.items():
            ops = self._probes.compute(probe, REPEAT).together * 1e9
            rows.append(Row(number, point, ROOF, 1.0, ops, "operations"))
        return rows

    def read(self, number: int, name: str, num_bytes: float) -> Row:
        """A row `name`: the median of reading so many bytes again and again, now."""
        size = min(int(num_bytes), max(self._sizes.values()))
        rates = [self._probes.read(size, 1).together for _ in range(BESIDE_REPEAT)]
        return Row(number, name, ROOF, size / (statistics.median(rates) * 1e9), size, "bytes")
