"""The numbered runs: what each measures, of which model, and where its rows lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks import servers
from benchmarks.rivals import llama_cpp, vllm_cpu
from benchmarks.speed import LONG_POINTS, POINTS, VERIFY_POINTS, Command

MODELS = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma": "gemma-3-270m-q4_k_m.gguf",
    "qwen": "qwen2.5-coder-0.5b.gguf",
}


@dataclass(frozen=True)
class Run:
    """One numbered run.

    `kind` speed: systems take turns (benchmarks.speed); start: benchmarks.start; accuracy:
    benchmarks.accuracy once per model; figures: `module` is run with `--out` and writes figures
    (benchmarks.rows), `model` being "" if it needs none. `only`: rivals that take part, None for
    ours alone, empty for all. `repeats`: its module measures contended rows again, and
    takes `--busy`.
    """

    number: str
    name: str
    what: str
    kind: Literal["speed", "start", "accuracy", "figures"]
    model: str = "smollm2"
    points: Mapping[str, Command] = field(default_factory=dict)
    only: tuple[str, ...] | None = ()
    kv_dtypes: tuple[str, ...] = ()
    module: str = ""
    repeats: bool = False

    def path(self, folder: Path, model: str = "") -> Path:
        """Its rows; accuracy has one file per model."""
        return folder / f"{self.number}-{self.name}{f'-{model}' if model else ''}.csv"


_LLAMA = (llama_cpp.NAME,)
_RUNS = (
    Run("01", "speed-smollm2", "prefill and decode beside all rivals", "speed", points=POINTS),
    Run("02", "speed-gemma", "the same, Gemma 3", "speed", "gemma", POINTS),
    Run("03", "speed-qwen", "the same, Qwen2.5-Coder", "speed", "qwen", POINTS),
    Run(
        "04",
        "long-context",
        "decode at 8,000 positions, KV as fp16 and as int8",
        "speed",
        points=LONG_POINTS,
        only=_LLAMA,
        kv_dtypes=("fp16", "int8"),
    ),
    Run(
        "05",
        "verify",
        "rows of one sequence in one step, as speculation checks a draft",
        "speed",
        points=VERIFY_POINTS,
        only=_LLAMA,
    ),
    Run("06", "accuracy", "divergence from float32 beside llama.cpp", "accuracy", only=_LLAMA),
    Run(
        "07",
        "two-workers",
        "two busy workers on one machine beside one",
        "figures",
        only=None,
        module="benchmarks.two_workers",
    ),
    Run(
        "08",
        "python-step",
        "time of a step outside the native core",
        "figures",
        only=None,
        module="benchmarks.python_step",
        repeats=True,
    ),
    Run(
        "09",
        "http",
        "32 streams over HTTP beside the offline engine",
        "figures",
        only=None,
        module="benchmarks.http_streams",
    ),
    Run(
        "10",
        "memory",
        "peak memory of a server under a heavy mix",
        "figures",
        only=None,
        module="benchmarks.memory",
    ),
    Run("11", "start", "start of the process to the first token", "start"),
    Run(
        "12",
        "queue-order",
        "orders of the queue beside first come, first served, simulated",
        "figures",
        model="",
        only=None,
        module="benchmarks.queue_order",
    ),
    Run(
        "13",
        "interference",
        "a long prompt beside 16 streams",
        "figures",
        only=(vllm_cpu.NAME,),
        module="benchmarks.interference",
    ),
    Run(
        "14",
        "overcommit",
        "allocation policies on a pool that is too small for everybody, simulated",
        "figures",
        model="",
        only=None,
        module="benchmarks.overcommit",
    ),
    Run(
        "15",
        "prefix-tree",
        "match, insertion and eviction in the prefix cache's tree",
        "figures",
        model="",
        only=None,
        module="benchmarks.prefix_tree",
    ),
    Run(
        "16",
        "hit-rate",
        "token hit rates beside LRU, LFU and Belady's bound",
        "figures",
        model="",
        only=None,
        module="benchmarks.hit_rate",
    ),
    Run(
        "17",
        "programs",
        "prefill that the prefix cache saves programs, and what it costs others",
        "figures",
        only=None,
        module="benchmarks.prefix_programs",
        repeats=True,
    ),
    Run(
        "18",
        "warm-ttft",
        "first tokens behind a shared prefix over HTTP, and a crowd that begins alike",
        "figures",
        only=servers.RIVALS,
        module="benchmarks.warm_ttft",
        repeats=True,
    ),
    Run(
        "19",
        "block-runs",
        "attention over runs of blocks beside scattered ones",
        "figures",
        only=None,
        module="benchmarks.block_runs",
    ),
    Run(
        "20",
        "block-length",
        "blocks of 16, 32 and 64 positions",
        "figures",
        only=None,
        module="benchmarks.block_length",
    ),
)
RUNS: dict[str, Run] = {run.number: run for run in _RUNS}


def models_folder() -> Path:
    """Where scripts/fetch_test_models.py puts models."""
    cache = os.environ.get("HEADRACE_CACHE")
    root = Path(cache).expanduser() if cache else Path.home() / ".cache" / "headrace"
    return root / "test-models"
