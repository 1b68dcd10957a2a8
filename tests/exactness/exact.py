"""The exactness suite: one reference run per request, and every mechanism against it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace import _native
from headrace.backends.base import StepPlan, StepResult
from headrace.backends.cpu import CpuBackend
from headrace.backends.layout import KV_DTYPES, KVLayout
from headrace.engine.base import EngineConfig, Scheduling
from headrace.engine.engine import Engine
from headrace.engine.load import freq_factors
from headrace.engine.order import QueueOrder
from headrace.engine.sampling import SamplingParams
from headrace.kv.lookahead.base import Allocation
from headrace.kv.tables import blocks_to_hold
from headrace.models.registry import build_program
from headrace.text.base import Tokenizer
from headrace.text.tokenizer import load_tokenizer
from headrace.weights.open import open_source
from tests.support.cover import Row, full_product, row_name
from tests.support.engine_runs import Recorder, RequestRecord

MAX_STEP_ROWS = 512
KV_BYTES = 96 << 20
FASTEST = _native.isas()[0]
# A level of "kernels" beside the tables. Tables are held equal with float activations elsewhere, on
# small models: emulating fused multiply-adds, the scalar one takes minutes here.
FLOAT_ACTIVATIONS = "float32"
# A batch of so many requests of all lengths and kinds of sampling.
MIXED = "32 mixed"
_KINDS = ("greedy", "sampled", "filtered", "penalized")
_MIXED_OUTPUT = 6
_SHORT_LEN = 40  # of the longest prompts of a mixed batch, but for the first
_INDEXES: Mapping[object, list[int]] = {"alone": [0], "crowd": [0, 1, 3], MIXED: [0, *range(5, 36)]}
# Output tokens that a sequence has when it is preempted; at 0, some of its prompt was computed.
_PREEMPTED_AT: Mapping[object, tuple[int, ...]] = {0: (), 1: (2,), 3: (0, 1, 4)}

FACTORS: Mapping[str, tuple[object, ...]] = {
    "sampling": ("greedy", "sampled", "filtered", "penalized"),
    "batch": ("alone", "crowd", MIXED),
    "chunk": (512, 64, 17, 16, 7, 1),
    "scheduling": ("arrival", "paced", "shortest"),
    "pool": ("large", "tiny"),
    "threads": (1, 2, 3),
    "kernels": (*_native.isas(), FLOAT_ACTIVATIONS),
    "kv": tuple(KV_DTYPES),
    "cache": ("off", "cold", "warm", "partly evicted", "in-queue shared"),
    "allocation": tuple(Allocation),
    "preempted": (0, 1, 3),
}
# The scalar table takes minutes for the largest batch.
APART: Row = {"batch": MIXED, "kernels": "scalar"} if FASTEST != "scalar" else {}
# All of them meet in pairs in the cover. There are two whole products besides: of what the machine
# computes, and of what the engine does with it. What belongs to neither takes turns there.
_MACHINE = ("sampling", "threads", "kernels", "kv", "chunk")
_ENGINE = ("cache", "allocation", "preempted", "batch", "chunk")
_PLAIN: dict[str, object] = {
    "sampling": "sampled",
    "threads": 2,
    "kernels": FASTEST,
    "kv": "fp16",
    "cache": "off",
    "allocation": Allocation.ON_DEMAND,
    "preempted": 0,
}

_SAMPLING: Mapping[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0},
    "filtered": {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
    "penalized": {
        "temperature": 1.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": {11: 2.0, 12: -3.0},
    },
}


# "paced": no step keeps its bound, so that chunks beside decodes are as short as they may be.
_SCHEDULING: Mapping[str, Scheduling] = {
    "arrival": Scheduling(),
    "paced": Scheduling(order=QueueOrder.RESPONSE_RATIO, itl_target_s=1e-9),
    "shortest": Scheduling(order=QueueOrder.SHORTEST, itl_target_s=None, max_partial=1),
}


def whole_product(factors: Mapping[str, Sequence[object]]) -> list[Row]:
    """Every combination of what the machine does, and every one of what the engine does. Of the
    other factors, each row has some level, or the plain one."""
    rng = random.Random(0)
    rows: dict[str, Row] = {}
    for names in (_MACHINE, _ENGINE):
        for row in full_product({name: factors[name] for name in names}):
            whole = _complete(row, factors, rng)
            rows[row_name(whole)] = whole
    return list(rows.values())


def _complete(row: Row, factors: Mapping[str, Sequence[object]], rng: random.Random) -> Row:
    known = {**_PLAIN, **row}
    while True:
        whole = {
            name: known[name] if name in known else rng.choice(levels)
            for name, levels in factors.items()
        }
        if not APART or not APART.items() <= whole.items():
            return whole


@dataclass
class SmallerPool:
    """A backend that admits to fewer blocks, so that the engine must preempt."""

    backend: CpuBackend
    num_blocks: int

    @property
    def layout(self) -> KVLayout:
        return self.backend.layout

    @property
    def numerics_id(self) -> str:
        return self.backend.numerics_id

    @property
    def max_step_rows(self) -> int:
        return self.backend.max_step_rows

    def submit(self, plan: StepPlan) -> object:
        return self.backend.submit(plan)

    def collect(self, handle: object) -> StepResult:
        return self.backend.collect(handle)

    def hidden_states(self, plan: StepPlan, buffers: object) -> dict[str, list[list[float]]]:
        return {}

    def close(self) -> None:
        self.backend.close()


class ExactModel:
    """One model file, its backends by (kernels, threads, KV type), and the reference results."""

    def __init__(self, path: Path, *, prompt_len: int, num_output: int) -> None:
        self.path = path
        self.prompt_len = prompt_len
        self.num_output = num_output
        self._backends: dict[tuple[str, int, str], CpuBackend] = {}
        self._references: dict[tuple[str, int, str, bool], RequestRecord] = {}
        with closing(open_source(path)) as source:
            self.context_len = source.config.max_model_len
            self.tokenizer: Tokenizer = load_tokenizer(source.tokenizer, source.config.vocab_size)

    def close(self) -> None:
        for backend in self._backends.values():
            backend.close()

    def backend(self, kernels: str, threads: int, kv: str = "fp16") -> CpuBackend:
        """`kernels`: a table, or FLOAT_ACTIVATIONS on the fastest."""
        key = (kernels, threads, kv)
        if key not in self._backends:
            floats = kernels == FLOAT_ACTIVATIONS
            with closing(open_source(self.path)) as source:
                program = build_program(source.config, freq_factors(source))
                self._backends[key] = CpuBackend.load(
                    source,
                    program,
                    kv_bytes=KV_BYTES,
                    threads=threads,
                    max_step_rows=MAX_STEP_ROWS,
                    isa=FASTEST if floats else kernels,
                    kv_dtype=kv,
                    activations="float32" if floats else "quantized",
                )
        return self._backends[key]

    def prompt(self, index: int) -> list[int]:
        """A prompt of ordinary ids; its length differs by index and crosses blocks and splits."""
        rng = random.Random(index)
        base = self.prompt_len if index < 5 else _SHORT_LEN // (index // 5)
        length = max(2, base + (0, 1, -1, 16, -9)[index % 5])
        first = [self.tokenizer.bos_id] if self.tokenizer.bos_id is not None else []
        return first + [rng.randrange(300, 30000) for _ in range(length)]

    def params(self, sampling: str, index: int, **more: object) -> SamplingParams:
        """In the mixed batch, outputs are short."""
        if sampling == MIXED:
            sampling = _KINDS[index % len(_KINDS)]
            more = {"max_tokens": _MIXED_OUTPUT, **more}
        fields: dict[str, Any] = {
            "max_tokens": self.num_output,
            "seed": 1000 + index,
            "logprobs": 3,
            "ignore_eos": True,
            **_SAMPLING[sampling],
            **more,
        }
        return SamplingParams(**fields)

    def reference(
        self, sampling: str, index: int, kv: str = "fp16", *, floats: bool = False
    ) -> RequestRecord:
        """The request alone, in one chunk, on two threads with the fastest table."""
        key = (sampling, index, kv, floats)
        if key not in self._references:
            backend = self.backend(FLOAT_ACTIVATIONS if floats else FASTEST, 2, kv)
            engine = self.engine(backend, chunk=MAX_STEP_ROWS, prefix_cache=False)
            self._references[key] = run_together(engine, self, sampling, [index])[index]
        return self._references[key]

    def engine(
        self,
        backend: CpuBackend,
        *,
        chunk: int,
        num_blocks: int | None = None,
        scheduling: str = "arrival",
        allocation: Allocation = Allocation.LOOKAHEAD,
        prefix_cache: bool = True,
    ) -> Engine:
        used = backend if num_blocks is None else SmallerPool(backend, num_blocks)
        config = EngineConfig(
            max_num_seqs=min(32, chunk),
            max_step_tokens=chunk,
            scheduling=msgspec.structs.replace(_SCHEDULING[scheduling], allocation=allocation),
            prefix_cache=prefix_cache,
        )
        return Engine(used, self.tokenizer, self.context_len, config)

    def tiny_pool(self, backend: CpuBackend, indexes: list[int], chunk: int) -> int:
        """Blocks that admit two requests at their beginning, or hold the longest alone: a crowd
        that grows must preempt."""
        layout = backend.layout
        lengths = [len(self.prompt(i)) for i in indexes]
        alone = blocks_to_hold(layout, max(lengths) + self.num_output, chunk)
        two = sum(blocks_to_hold(layout, n + 1, chunk) for n in lengths[:2])
        return max(alone, two + len(layout.groups))


def run_together(
    engine: Engine,
    model: ExactModel,
    sampling: str,
    indexes: list[int],
    recorder: Recorder | None = None,
    preempted: object = 0,
) -> dict[int, RequestRecord]:
    """All requests at once, each preempted so many times; the pool must be whole afterwards."""
    recorder = recorder or Recorder()
    for index in indexes:
        engine.add(str(index), model.prompt(index), model.params(sampling, index))
    due = {str(index): list(_PREEMPTED_AT[preempted]) for index in indexes}
    while engine.has_work():
        recorder.take(engine.step())
        preempt_due(engine, due)
    assert not any(due.values()), "a request ended before it was preempted as often as it should"
    engine.check()
    return {index: recorder.requests[str(index)] for index in indexes}


def preempt_due(engine: Engine, due: Mapping[str, list[int]]) -> None:
    """Preempt, as the scheduler may, every running sequence that has come to the next output length
    in its list, and take that off the list."""
    for seq in list(engine._running.values()):
        at = due.get(seq.request.request_id)
        if at and seq.computed and seq.num_output >= at[0]:
            del at[0]
            engine._preempt(engine._running.pop(seq.key))


def prepare_cache(engine: Engine, model: ExactModel, level: str, indexes: list[int]) -> None:
    """What the cache knows, or is about to, when the requests of a row come."""
    if level == "in-queue shared":
        for index in indexes:
            sibling = [*model.prompt(index)[:-4], 300, 301, 302]
            engine.add(f"sibling {index}", sibling, SamplingParams(max_tokens=2, seed=index))
    elif level in {"warm", "partly evicted"}:
        for index in indexes:
            engine.add(f"before {index}", model.prompt(index), SamplingParams(max_tokens=2, seed=9))
        while engine.has_work():
            engine.step()
        cache = engine._reuse.cache
        assert cache is not None
        if level == "partly evicted":
            assert cache.evict(cache.num_blocks // 2) > 0


def run_row(model: ExactModel, row: Mapping[str, object]) -> tuple[dict[int, RequestRecord], int]:
    """The requests of one combination of mechanisms, and how often the engine preempted."""
    cache, allocation = str(row["cache"]), row["allocation"]
    assert isinstance(allocation, Allocation)
    threads, chunk, sampling = row["threads"], row["chunk"], row["sampling"]
    assert isinstance(threads, int)
    assert isinstance(chunk, int)
    assert isinstance(sampling, str)
    if row["batch"] == MIXED:
        sampling = MIXED
    backend = model.backend(str(row["kernels"]), threads, str(row["kv"]))
    indexes = _INDEXES[row["batch"]]
    num_blocks = model.tiny_pool(backend, indexes, chunk) if row["pool"] == "tiny" else None
    engine = model.engine(
        backend,
        chunk=chunk,
        num_blocks=num_blocks,
        scheduling=str(row["scheduling"]),
        allocation=allocation,
        prefix_cache=cache != "off",
    )
    prepare_cache(engine, model, cache, indexes)
    recorder = Recorder()
    results = run_together(engine, model, sampling, indexes, recorder, row["preempted"])
    found = [recorder.num_cached[str(index)] for index in indexes]
    if cache in {"off", "cold"}:
        assert not any(found)
    elif row["pool"] == "large":
        # The largest batch may need more than there is.
        is_sure = cache != "partly evicted" and row["batch"] != MIXED
        assert all(found) if is_sure else any(found)
    return results, engine.stats.num_preemptions


def check_row(model: ExactModel, row: Mapping[str, object]) -> None:
    """One combination of mechanisms gives every request what it gets alone."""
    results, num_preemptions = run_row(model, row)
    # With smaller chunks the first requests end before the last begin.
    grows = row["chunk"] in {512, 64} and row["scheduling"] != "paced"
    is_bound_to = row["allocation"] is Allocation.ON_DEMAND and row["cache"] in {"off", "cold"}
    if row["pool"] == "tiny" and row["batch"] == "crowd" and grows and is_bound_to:
        assert num_preemptions > 0, "the tiny pool must preempt, or this row proves nothing"
    for index, record in results.items():
        sampling = MIXED if row["batch"] == MIXED else str(row["sampling"])
        kv = str(row["kv"])
        floats = row["kernels"] == FLOAT_ACTIVATIONS
        assert record == model.reference(sampling, index, kv, floats=floats)


def check_scalar(path: Path) -> None:
    """The scalar table gives the bits of the fastest one, on a short sampled request."""
    model = ExactModel(path, prompt_len=8, num_output=3)
    try:
        engine = model.engine(model.backend("scalar", 2), chunk=MAX_STEP_ROWS)
        result = run_together(engine, model, "sampled", [0])[0]
        assert result == model.reference("sampled", 0)
    finally:
        model.close()
