"""Single kernels beside the machine's limits: products, attention, packing, and row work.

A product at one row reads its weights once: its roof is reading as many bytes. At more rows it
multiplies: its roof is the rate of int8 (or of float32, for float weights and float activations).
Row work and packing are told in bytes per second, read and written, beside what all threads read of
as many.

Attention has the heads of a small model (SmolLM2-135M) and all its layers, so that keys and values
come from where they do in a step. Decode reads them once: bytes, with the scales of int8. A prompt
multiplies: scores and values of what each token sees at the rate of float32; softmax is part of the
time and counts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace import _native
from headrace.backends.layout import BLOCK_LEN, KV_DTYPES, make_layout
from headrace.backends.threads import make_pool
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
FLOAT_ACTIVATIONS = (DType.Q4_1, DType.Q8_0, DType.Q4_K)  # of each way to unpack, one
HEADS, KV_HEADS, HEAD_DIM, LAYERS = 9, 3, 64, 30
CONTEXTS = (128, 2048, 8000)
PROMPT_LENS = (512, 2048)
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
        self._repeat = repeat
        pool = make_pool(threads)
        self.isa, self.threads = self._roof.isa, pool.num_threads
        self._bench = _native.KernelBench(pool, self.isa)

    def rates(self) -> Iterator[KernelRate]:
        """Every kernel."""
        integer = self._roof.compute("int8", self._repeat)
        floats = self._roof.compute("fma", self._repeat)
        for dtype in DType:
            yield from self._products(dtype, floats if dtype in FLOAT_TYPES else integer)
        for dtype in FLOAT_ACTIVATIONS:
            yield from self._products(dtype, floats, float_activations=True)
        for kv_dtype in KV_DTYPES:
            yield from self._attention(kv_dtype, floats)
        for dtype in DType:
            num_bytes = _bytes_of(dtype, OUTPUTS_READ)
            seconds = self._bench.pack(dtype, OUTPUTS_READ, INPUTS, self._repeat)
            yield self._read_rate(f"pack {dtype.name}", num_bytes, seconds)
        for kernel, bytes_each in ROW_KERNELS.items():
            seconds = self._bench.rows(kernel, NUM_ROWS, INPUTS, self._repeat)
            yield self._read_rate(kernel, NUM_ROWS * INPUTS * bytes_each, seconds)

    def _products(
        self, dtype: DType, limit: Rate, *, float_activations: bool = False
    ) -> Iterator[KernelRate]:
        def seconds(outputs: int, rows: int) -> float:
            return self._bench.gemm(
                dtype, outputs, INPUTS, rows, self._repeat, float_activations=float_activations
            )

        name = f"{dtype.name} x float32" if float_activations else dtype.name
        num_bytes = _bytes_of(dtype, OUTPUTS_READ)
        yield self._read_rate(f"{name}, 1 row", num_bytes, seconds(OUTPUTS_READ, 1))
        for rows in MANY_ROWS:
            ops = 2 * OUTPUTS * INPUTS * rows
            yield _op_rate(f"{name}, {rows} rows", ops, seconds(OUTPUTS, rows), limit)

    def _attention(self, kv_dtype: str, limit: Rate) -> Iterator[KernelRate]:
        def seconds(layers: int, context: int, rows: int) -> float:
            return self._bench.attention(
                kv_type=KV_DTYPES[kv_dtype],
                num_heads=HEADS,
                num_kv_heads=KV_HEADS,
                head_dim=HEAD_DIM,
                layers=layers,
                context=context,
                rows=rows,
                repeat=self._repeat,
            )

        for context in CONTEXTS:
            name = f"attention, decode at {context}, {kv_dtype}"
            num_bytes = kv_bytes(kv_dtype, context)
            yield self._read_rate(name, num_bytes, seconds(LAYERS, context, 1))
        for length in PROMPT_LENS:
            ops = 4 * HEADS * HEAD_DIM * length * (length + 1) // 2
            name = f"attention, prompt of {length}, {kv_dtype}"
            yield _op_rate(name, ops, seconds(1, length, length), limit)

    def _read_rate(self, name: str, num_bytes: int, seconds: float) -> KernelRate:
        roof = self._roof.read(min(num_bytes, MAX_READ_BYTES), self._repeat).together
        value = num_bytes / seconds / 1e9
        return KernelRate(name, value, "GB/s", roof, value / roof)


def kv_bytes(kv_dtype: str, context: int) -> int:
    """Keys and values of all layers that a token at this position sees."""
    layout = make_layout((0,) * LAYERS, KV_HEADS, HEAD_DIM, kv_dtype)
    return layout.block_bytes * context // BLOCK_LEN


def _op_rate(name: str, ops: int, seconds: float, limit: Rate) -> KernelRate:
    value = ops / seconds / 1e9
    return KernelRate(name, value, "Gop/s", limit.together, value / limit.together)


def _bytes_of(dtype: DType, outputs: int) -> int:
    """As the file stores them."""
    weights, num_bytes = BLOCK_SIZES[dtype]
    return outputs * INPUTS // weights * num_bytes
