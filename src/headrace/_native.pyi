"""Types of the native module (native/bind*.cpp)."""

from array import array
from collections.abc import Callable, Sequence
from mmap import mmap
from typing import TypeAlias, TypeVar

T = TypeVar("T")

# See backends/base.py WantedRow: row, spec, sample, target, output_pos, history, prompt_len,
# banned, mask.
WantedRow: TypeAlias = tuple[
    int, SamplingSpec, bool, int, int, array[int] | None, int, tuple[int, ...], bytes | None
]
# token, logprob, top, failed.
RowOutput: TypeAlias = tuple[int, float, list[tuple[int, float]], bool]
# rows, (width, float32 bytes) of each buffer asked for, seconds.
StepOutput: TypeAlias = tuple[list[RowOutput], list[tuple[int, bytes]], float]

def isa() -> str: ...
def isas() -> list[str]: ...
def cpu_count() -> int: ...
def default_threads() -> int: ...
def memory_info() -> MemoryInfo: ...
def packed_bytes(dtype: int, n: int, k: int) -> int: ...

class MemoryInfo:
    @property
    def total_bytes(self) -> int: ...
    @property
    def available_bytes(self) -> int: ...

class ComputeLease:
    def __init__(self, fd: int) -> None: ...
    @staticmethod
    def make() -> int: ...
    @staticmethod
    def format(fd: int) -> None: ...
    @property
    def waited_s(self) -> float: ...
    @property
    def num_waits(self) -> int: ...
    @property
    def num_recovered(self) -> int: ...
    @property
    def num_given_up(self) -> int: ...
    @property
    def num_refused(self) -> int: ...
    @property
    def is_taken(self) -> bool: ...

class ThreadPool:
    def __init__(self, num_threads: int, lease: ComputeLease | None = None) -> None: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def num_running(self) -> int: ...

class RoofProbe:
    """Rates per second: (of each thread alone, the processors they ran on, of all at once)."""

    def __init__(self, pool: ThreadPool, *, isa: str, max_bytes: int) -> None: ...
    def read(self, num_bytes: int, repeat: int) -> tuple[list[float], list[int], float]: ...
    def compute(self, op: str, repeat: int) -> tuple[list[float], list[int], float]: ...

class KernelBench:
    """Seconds of the best of `repeat` runs."""

    def __init__(self, pool: ThreadPool, isa: str) -> None: ...
    def gemm(
        self,
        dtype: int,
        n: int,
        k: int,
        rows: int,
        repeat: int,
        *,
        float_activations: bool = False,
    ) -> float: ...
    def attention(
        self,
        *,
        kv_type: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        layers: int,
        context: int,
        rows: int,
        repeat: int,
    ) -> float: ...
    def pack(self, dtype: int, n: int, k: int, repeat: int) -> float: ...
    def rows(self, kernel: str, rows: int, dim: int, repeat: int) -> float: ...

class Weights:
    def __init__(self, pool: ThreadPool, *, isa: str, capacity_bytes: int) -> None: ...
    def add_matrix(
        self,
        name: str,
        stored: int,
        packed: int,
        n: int,
        k: int,
        data: bytes | memoryview,
        *,
        float_activations: bool = False,
    ) -> int: ...
    def add_vector(self, name: str, stored: int, count: int, data: bytes | memoryview) -> int: ...

class SamplingSpec:
    def __init__(
        self,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Sequence[tuple[int, float]] = ...,
        seed: int = 0,
        num_top: int = -1,
    ) -> None: ...

class Tape:
    def __init__(
        self,
        *,
        weights: Weights,
        buffers: Sequence[tuple[str, int, bool]],
        ropes: Sequence[tuple[Sequence[float], bool]],
        group_windows: Sequence[int],
        layers: Sequence[tuple[int, int]],
        layers_per_block: int,
        num_kv_heads: int,
        head_dim: int,
        kv_type: int,
        vocab: int,
    ) -> None: ...
    def embed(self, out: str, weight: str, scale: float) -> None: ...
    def norm(self, out: str, src: str, weight: str, eps: float) -> None: ...
    def linear(
        self,
        out: str,
        src: str,
        weights: Sequence[str],
        biases: Sequence[str],
        accumulate: bool,
    ) -> None: ...
    def gated_linear(
        self,
        out: str,
        src: str,
        weights: Sequence[str],
        biases: Sequence[str],
        activation: str,
    ) -> None: ...
    def head_norm(
        self, buf: str, column: int, num_heads: int, head_dim: int, weight: str, eps: float
    ) -> None: ...
    def rope_write(self, buf: str, rope: int, layer: int, num_heads: int) -> None: ...
    def attend(
        self,
        out: str,
        src: str,
        layer: int,
        num_heads: int,
        scale: float,
        window: int,
        softcap: float,
    ) -> None: ...
    def gate(self, out: str, src: str, activation: str) -> None: ...
    def add(self, out: str, src: str) -> None: ...
    def select_wanted(self, out: str, src: str) -> None: ...
    def head(self, src: str, weight: str, softcap: float) -> None: ...

class Model:
    def __init__(
        self, pool: ThreadPool, tape: Tape, *, num_blocks: int, max_step_rows: int
    ) -> None: ...
    def step(
        self,
        tokens: array[int],
        positions: array[int],
        seq_starts: array[int],
        tables: list[array[int]],
        table_starts: list[array[int]],
        copies: list[tuple[int, int]],
        wanted: list[WantedRow],
        buffers: Sequence[str],
    ) -> StepOutput: ...
    @property
    def kv_bytes(self) -> int: ...

class SpmEncoder:
    def __init__(
        self,
        tokens: list[bytes],
        scores: Sequence[float],
        token_types: Sequence[int],
        *,
        unk_id: int,
        add_space_prefix: bool,
    ) -> None: ...
    def encode(self, text: str, *, parse_special: bool, limit: int) -> bytes | None: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def token_type(self, token_id: int) -> int: ...
    def find(self, text: bytes) -> int: ...
    @property
    def max_token_bytes(self) -> int: ...

# A submodule at run time.
class testing:
    # gemm/
    @staticmethod
    def pack(
        isa: str, dtype: int, src: bytes, n: int, k: int, tile_begin: int, tile_end: int
    ) -> bytes: ...
    @staticmethod
    def unpack(isa: str, dtype: int, packed: bytes, n: int, k: int, row: int) -> bytes: ...
    @staticmethod
    def quantize(isa: str, kind: int, x: bytes, rows: int, k: int) -> bytes: ...
    @staticmethod
    def gemm(
        isa: str,
        dtype: int,
        src: bytes,
        n: int,
        k: int,
        x: bytes,
        rows: int,
        bias: bytes | None,
        tile_begin: int,
        tile_end: int,
        float_activations: bool = False,
        residual: bytes | None = None,
    ) -> bytes: ...
    # common/, elementwise/ and the reductions of sampling/
    @staticmethod
    def log64(x: bytes) -> bytes: ...
    @staticmethod
    def rmsnorm(
        isa: str, x: bytes, ldx: int, w: bytes, eps: float, rows: int, dim: int, in_place: bool
    ) -> bytes: ...
    @staticmethod
    def rope_angles(isa: str, positions: bytes, inv_freq: bytes) -> bytes: ...
    @staticmethod
    def rope(
        isa: str,
        x: bytes,
        ldx: int,
        rows: int,
        num_heads: int,
        head_dim: int,
        cos_sin: bytes,
        interleaved: bool,
    ) -> bytes: ...
    @staticmethod
    def kv_store(
        isa: str,
        k: bytes,
        v: bytes,
        num_kv_heads: int,
        head_dim: int,
        block: bytes,
        slot: int,
        kv_type: int,
    ) -> bytes: ...
    @staticmethod
    def gate(isa: str, activation: str, x: bytes, ldx: int, rows: int, dim: int) -> bytes: ...
    @staticmethod
    def add(isa: str, x: bytes, ldx: int, y: bytes, ldy: int, rows: int, dim: int) -> bytes: ...
    @staticmethod
    def scale(isa: str, x: bytes, factor: float) -> bytes: ...
    @staticmethod
    def softcap(isa: str, x: bytes, cap: float) -> bytes: ...
    @staticmethod
    def argmax(isa: str, x: bytes) -> tuple[int, float]: ...
    @staticmethod
    def logsumexp(isa: str, x: bytes, max: float) -> float: ...
    @staticmethod
    def softmax_weights(isa: str, x: bytes, max: float, temperature: float) -> bytes: ...
    # attention/
    @staticmethod
    def attend_row_tile(num_heads: int, num_kv_heads: int) -> int: ...
    @staticmethod
    def plan_attention(
        positions: Sequence[int],
        seq_starts: Sequence[int],
        tables: Sequence[int],
        table_starts: Sequence[int],
        window: int,
        num_heads: int,
        num_kv_heads: int,
        num_threads: int,
    ) -> tuple[list[list[int]], list[list[int]], int, list[list[int]]]: ...
    @staticmethod
    def attend(
        isa: str,
        q: bytes,
        kv: bytes,
        tables: Sequence[int],
        table_starts: Sequence[int],
        positions: Sequence[int],
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        window: int,
        scale: float,
        softcap: float,
        items: Sequence[Sequence[int]],
        merges: Sequence[Sequence[int]],
        num_partials: int,
        shared_rows: Sequence[Sequence[int]],
        kv_type: int,
    ) -> bytes: ...
    # threads/ and tape/
    @staticmethod
    def lease_acquire(lease: ComputeLease) -> None: ...
    @staticmethod
    def lease_release(lease: ComputeLease) -> None: ...
    @staticmethod
    def lease_beat(lease: ComputeLease) -> None: ...
    @staticmethod
    def lease_count(
        lease: ComputeLease, shared: mmap, own: int, total: int, hold_ns: int
    ) -> None: ...
    @staticmethod
    def run_phases(pool: ThreadPool, phases: Sequence[int]) -> list[list[int]]: ...
    @staticmethod
    def run_with_error(pool: ThreadPool, num_chunks: int, bad: int) -> int: ...
    @staticmethod
    def thread_states(pool: ThreadPool) -> tuple[list[int], int, int]: ...
    @staticmethod
    def call_in_env(env: int, function: Callable[[], T]) -> tuple[T, int]: ...
    @staticmethod
    def cgroup_cpu_limit(root: str) -> int: ...
    @staticmethod
    def memory_info(root: str) -> tuple[int, int]: ...
    @staticmethod
    def xxh64(data: bytes, seed: int) -> int: ...
    @staticmethod
    def checksum(data: bytes) -> int: ...
    @staticmethod
    def requantize(stored: int, packed: int, src: bytes, rows: int, k: int) -> bytes: ...
    @staticmethod
    def product_chunks(
        rows: int, tiles: int, k: int, tile_bytes: int, act_bytes: int, threads: int, step: int
    ) -> list[tuple[int, int, int, int]]: ...
    @staticmethod
    def rows_per_chunk(rows: int, row_floats: int, num_threads: int) -> int: ...
