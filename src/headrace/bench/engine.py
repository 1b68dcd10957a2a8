"""Speed of a model through the real engine, step by step, beside the limits of the machine.

The roofs, for every place that tells a share of them:

- Decode reads every tensor of the Program once per step, as the file stores it, and the keys and
  values that its sequences see: two bytes for each value, or one and four for the scale of a token,
  a head and a side (key or value) with `--kv-dtype int8`. Its roof is the time in which all threads
  together read as many bytes again and again: from memory, or from a last-level cache that holds
  them.
- Prefill multiplies: the products of quantized weights at the int8 rate (at that of float32 with
  `--activations float32`), those of float weights and attention at that of float32, both measured
  in the same run. Its roof is the sum of these times; the bytes that it reads once per chunk count
  nothing, nor do norms, softmax and the quantization of activations. So 100 % is out of reach.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace import _native
from headrace.backends.layout import BLOCK_LEN, DEFAULT_KV_DTYPE, KVLayout, make_layout
from headrace.bench.roof import Rate, Roof
from headrace.bench.workload import Workload, workload_of
from headrace.engine.base import ChoiceDelta, RequestFailed
from headrace.engine.load import LoadedEngine, LoadOptions, freq_factors, load_engine
from headrace.engine.sampling import SamplingParams
from headrace.errors import HeadraceError
from headrace.models.registry import build_program
from headrace.weights.open import open_source

# Working sets of the roof: not so small that they measure an inner cache, and no more memory than
# shows the difference.
MIN_READ_BYTES = 32 << 20
MAX_READ_BYTES = 1 << 30
ROOF_REPEAT = 5
# Half a second each: on a busy machine a short look at the multipliers sees its neighbours.
COMPUTE_REPEAT = 20
WARM_STEPS = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. Decode: every batch at every context, `repeat` stretches of `steps`."""

    prompt_lens: tuple[int, ...] = (128, 512, 2048)
    batches: tuple[int, ...] = (1, 8, 32)
    contexts: tuple[int, ...] = (128, 2048)
    steps: int = 16
    repeat: int = 3

    def output_len(self, batch: int, context: int, chunk: int) -> int:
        """Tokens that a sequence may come to until the last stretch ends: while the prompts of
        later ones are computed, earlier ones decode already."""
        early = -(-batch * context // max(1, chunk - batch)) + batch if batch > 1 else 0
        return early + 1 + WARM_STEPS + self.steps * self.repeat


@dataclass(slots=True)
class Run:
    """One measured stretch of steps: (wall, native) seconds of each."""

    tokens: int
    context: float = 0.0  # positions that a sequence saw, on average
    steps: list[tuple[float, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(wall for wall, _ in self.steps)


@dataclass(frozen=True, slots=True)
class Figure:
    """One point: tokens/s over the runs, and what the roof allows. `python_*_ms`: wall minus native
    time of its steps."""

    name: str
    median: float
    least: float
    most: float
    roof: float
    roof_share: float
    step_ms: float
    python_median_ms: float
    python_p99_ms: float


class EngineBench:
    """Drives a loaded engine that nobody else uses. Prompts are random tokens, no two alike."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self._loaded = loaded
        self._engine = loaded.engine
        self._numbers = itertools.count()

    @property
    def chunk(self) -> int:
        """Tokens of a step at most."""
        return self._engine.config.max_step_tokens

    def warm_up(self) -> None:
        """Touch pages, threads and caches."""
        self.prefill(min(64, self._engine.max_model_len - 1))

    def prefill(self, length: int) -> Run:
        """One prompt to its first token."""
        (key,) = self._add(1, length, 1)
        run = Run(length)
        while self._engine.has_work():
            self._step(run, {key: 0})
        return run

    def decode(self, batch: int, context: int, plan: Plan) -> Iterator[Run]:
        """Stretches of steps of sequences that begin near `context`; the prompts are computed once.

        `context` of a stretch is what its sequences saw indeed.
        """
        keys = self._add(batch, context, plan.output_len(batch, context, self.chunk))
        lengths = dict.fromkeys(keys, 0)
        try:
            while not all(lengths.values()):
                self._step(Run(0), lengths)
            for _ in range(WARM_STEPS):
                self._step(Run(0), lengths)
            for _ in range(plan.repeat):
                seen = context + statistics.mean(lengths.values()) + (plan.steps - 1) / 2
                run = Run(batch * plan.steps, seen)
                for _ in range(plan.steps):
                    self._step(run, lengths)
                yield run
        finally:
            for key in lengths:
                self._engine.abort(key)

    def does_not_fit(self, batch: int, length: int) -> str | None:
        """Why that many sequences cannot be measured, or None."""
        longest = self._engine.max_model_len
        if length > longest:
            return f"sequences of {length} tokens are needed, at most {longest} are possible"
        backend = self._loaded.backend
        needed = batch * blocks_of(length, backend.layout)
        if needed > backend.num_blocks:
            mib = -(-needed * backend.layout.block_bytes >> 20)
            return f"it needs {mib} MiB of keys and values, give --kv-cache-memory {mib}M"
        return None

    def _add(self, count: int, length: int, output_len: int) -> list[str]:
        params = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)
        keys = [f"bench-{next(self._numbers)}" for _ in range(count)]
        for key in keys:
            self._engine.add(key, self._prompt(length), params)
        return keys

    def _prompt(self, length: int) -> list[int]:
        """Token ids from a linear congruence (Knuth's MMIX constants)."""
        state, ids = time.monotonic_ns() + next(self._numbers), []
        for _ in range(length):
            state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
            ids.append((state >> 33) % self._loaded.tokenizer.vocab_size)
        return ids

    def _step(self, run: Run, lengths: dict[str, int]) -> None:
        """One step, timed; `lengths` counts the tokens of every sequence."""
        started = time.perf_counter()
        events = self._engine.step()
        wall = time.perf_counter() - started
        run.steps.append((wall, self._engine.stats.last_native_s))
        for event in events:
            if isinstance(event, RequestFailed):
                raise HeadraceError(f"A request of the measurement failed: {event.message}")
            if isinstance(event, ChoiceDelta):
                lengths[event.request_id] = event.num_output


def blocks_of(length: int, layout: KVLayout) -> int:
    """Blocks of a sequence, with one in every group that is being begun."""
    return (length // BLOCK_LEN + 2) * len(layout.groups)


@dataclass(frozen=True, slots=True)
class Model:
    """A model's file, before it is loaded."""

    path: Path
    workload: Workload
    layout: KVLayout

    @classmethod
    def open(cls, path: Path, kv_dtype: str = DEFAULT_KV_DTYPE) -> Model:
        """Read what the file says; raises ModelFormatError."""
        source = open_source(path)
        try:
            program = build_program(source.config, freq_factors(source))
            layout = make_layout(
                program.kv_windows, program.num_kv_heads, program.head_dim, kv_dtype
            )
            kv_bytes = layout.region_block_bytes // BLOCK_LEN
            return cls(path, workload_of(program, source.tensors, kv_bytes), layout)
        finally:
            source.close()

    def kv_cache_bytes(self, plan: Plan, chunk: int) -> int:
        """KV of the largest point, and of the longest prompt."""
        blocks = [blocks_of(length + 1, self.layout) for length in plan.prompt_lens]
        for batch, context in itertools.product(plan.batches, plan.contexts):
            length = context + plan.output_len(batch, context, chunk)
            blocks.append(batch * blocks_of(length, self.layout))
        return max(blocks, default=0) * self.layout.block_bytes


def load(model: Model, plan: Plan, options: LoadOptions) -> LoadedEngine:
    """An engine with room for the plan, or for as much of it as memory allows."""
    options = replace(
        options,
        max_num_seqs=max(plan.batches, default=1),
        max_waiting=1 << 30,
        max_waiting_tokens=1 << 62,
    )
    if options.kv_cache_bytes is None:
        needed = model.kv_cache_bytes(plan, max(options.max_step_tokens, options.max_num_seqs))
        room = _native.memory_info().available_bytes // 2
        options = replace(options, kv_cache_bytes=min(needed, room))
    return load_engine(model.path, options)


class Limits:
    """The roof of each point, measured when it is asked for."""

    def __init__(
        self, workload: Workload, threads: int | None, *, float_activations: bool = False
    ) -> None:
        room = _native.memory_info().available_bytes // 2
        self._workload = workload
        self._float_activations = float_activations
        self._max_bytes = max(MIN_READ_BYTES, min(MAX_READ_BYTES, room))
        self._roof = Roof(threads=threads, max_bytes=self._max_bytes)
        self.isa, self.threads = self._roof.isa, threads or _native.default_threads()
        self.memory = self._roof.read(self._max_bytes, ROOF_REPEAT)
        self.integer = self._roof.compute("int8", COMPUTE_REPEAT)
        self.float = self._roof.compute("fma", COMPUTE_REPEAT)

    @property
    def rates(self) -> tuple[Rate, ...]:
        return self.memory, self.integer, self.float

    def prefill_s(self, length: int) -> float:
        """Seconds that a prompt must take at least."""
        work = self._workload
        quantized = self.float if self._float_activations else self.integer
        integer = work.integer_ops * length
        floats = work.float_ops * length + work.attention_ops(length)
        head = quantized if work.has_integer_head else self.float
        integer_s = integer / (quantized.together * 1e9)
        return (
            integer_s + floats / (self.float.together * 1e9) + work.head_ops / (head.together * 1e9)
        )

    def decode_s(self, batch: int, context: float) -> float:
        """Seconds that a step must take at least."""
        num_bytes = self._workload.weight_bytes + batch * self._workload.kv_bytes(round(context))
        working_set = min(max(num_bytes, MIN_READ_BYTES), self._max_bytes)
        rate = self._roof.read(working_set, ROOF_REPEAT)
        return num_bytes / (rate.together * 1e9)


def figure_of(name: str, runs: list[Run], roof: float) -> Figure:
    """Medians over the runs; the roof in tokens/s."""
    rates = [run.tokens / run.seconds for run in runs]
    steps = [step for run in runs for step in run.steps]
    python = sorted(1e3 * (wall - native) for wall, native in steps)
    median = statistics.median(rates)
    return Figure(
        name,
        median,
        min(rates),
        max(rates),
        roof,
        median / roof,
        1e3 * statistics.median(wall for wall, _ in steps),
        statistics.median(python),
        python[min(len(python) - 1, int(len(python) * 0.99))],
    )
