"""Single kernels beside the machine's limits: products of every packing, packing, and row work.

A product at one row reads its weights once: its roof is reading as many bytes. At more rows it
multiplies: its roof is the rate of int8 (or of float32, for float weights). Row work and packing
are told in bytes per second, read and written, beside what all threads read of as many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace import _native
from headrace.bench.roof import Rate, Roof
from headrace.weights.base import BLOCK_SIZES, DType

INPUTS = 2048
OUTPUTS_READ = 16384  # of one row: more weights than inner caches hold
OUTPUTS = 2048
MANY_ROWS = (4, 8, 64, 512)
ROW_KERNELS = {  # name -> bytes read and written for each float of a row
    "a8": 5,
    "a16": 6,
    "rmsnorm": 8,
    "silu": 12,
    "gelu": 12,
    "rope": 8,
}
NUM_ROWS = 512
FLOAT_TYPES = (DType.F32, DType.F16, DType.BF16)
MAX_READ_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class KernelRate:
    """One kernel at one size, and its share of the roof."""

    name: str
    value: float
    unit: str
    roof: float
    share: float


class KernelRates:
    """Measures kernels of one table over a pool of threads. Raises ResourceError."""

    def __init__(self, *, threads: int | None, isa: str | None, repeat: int) -> None:
        self._roof = Roof(threads=threads, isa=isa, max_bytes=MAX_READ_BYTES)
        self._bench = _native.KernelBench(_native.ThreadPool(self._roof.threads), self._roof.isa)
        self._repeat = repeat
        self.isa, self.threads = self._roof.isa, self._roof.threads

    def rates(self) -> Iterator[KernelRate]:
        """Every kernel."""
        integer = self._roof.compute("int8", self._repeat)
        floats = self._roof.compute("fma", self._repeat)
        for dtype in DType:
            yield from self._products(dtype, floats if dtype in FLOAT_TYPES else integer)
        for dtype in DType:
            num_bytes = _bytes_of(dtype, OUTPUTS_READ)
            seconds = self._bench.pack(dtype, OUTPUTS_READ, INPUTS, self._repeat)
            yield self._read_rate(f"pack {dtype.name}", num_bytes, seconds)
        for kernel, bytes_each in ROW_KERNELS.items():
            seconds = self._bench.rows(kernel, NUM_ROWS, INPUTS, self._repeat)
            yield self._read_rate(kernel, NUM_ROWS * INPUTS * bytes_each, seconds)

    def _products(self, dtype: DType, limit: Rate) -> Iterator[KernelRate]:
        num_bytes = _bytes_of(dtype, OUTPUTS_READ)
        seconds = self._bench.gemm(dtype, OUTPUTS_READ, INPUTS, 1, self._repeat)
        yield self._read_rate(f"{dtype.name}, 1 row", num_bytes, seconds)
        for rows in MANY_ROWS:
            seconds = self._bench.gemm(dtype, OUTPUTS, INPUTS, rows, self._repeat)
            value = 2 * OUTPUTS * INPUTS * rows / seconds / 1e9
            name = f"{dtype.name}, {rows} rows"
            yield KernelRate(name, value, "Gop/s", limit.together, value / limit.together)

    def _read_rate(self, name: str, num_bytes: int, seconds: float) -> KernelRate:
        roof = self._roof.read(min(num_bytes, MAX_READ_BYTES), self._repeat).together
        value = num_bytes / seconds / 1e9
        return KernelRate(name, value, "GB/s", roof, value / roof)


def _bytes_of(dtype: DType, outputs: int) -> int:
    """As the file stores them."""
    weights, num_bytes = BLOCK_SIZES[dtype]
    return outputs * INPUTS // weights * num_bytes
