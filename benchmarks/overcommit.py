"""Allocation policies on a pool that is too small for everybody, in the simulator.

    HEADRACE_DATA=... python -m benchmarks.overcommit --rounds 3 --out rows.csv
    HEADRACE_DATA=... python -m benchmarks.overcommit --model MODEL.gguf --requests 200

64 clients send requests with the lengths of Azure's conversation trace (prompts a sixteenth of it,
answers as they are), each the next one when it has its answer; the engine knows only that answers
have at most 1,024 tokens. The pool holds 40 % of what 64 requests come to on average. Without the
trace, lengths are drawn from a lognormal distribution.

Machines, in virtual time: `cores`, SmolLM2-135M on two cores, where every row costs about the same;
`bandwidth`, 16 GB of weights at 300 GB/s and 8 Tops/s, where a step of few rows takes what reading
the weights takes; `accelerator`, the same model at 2 TB/s and 250 Tops/s, where computing again is
next to free. `on-demand keeping one` admits whoever leaves a block free for each of the running.

Goodput is answers' tokens per second. Recomputed tokens are rows that had been computed before.
Kept free: blocks that could be allocated in steps that refused somebody who fits, over all steps.
Deadlocks: steps that could not go on, and answers that never came (there is no row for none).
"""

from __future__ import annotations

import argparse
import json
import os
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.arguments import count
from benchmarks.ended_backend import EndedBackend, WallClock
from benchmarks.queue_order import MACHINE as CORES
from benchmarks.queue_order import TRACE
from benchmarks.rows import Figure, medians, write_figures
from headrace.bench.load.lengths import Lengths
from headrace.bench.load.shapes import Shape, made_shapes
from headrace.bench.load.traces import read_trace
from headrace.bench.simulate import jobs_of, scaled
from headrace.engine.base import EngineConfig, Scheduling
from headrace.engine.engine import Engine
from headrace.engine.foresight import Foresight
from headrace.engine.load import LoadedEngine, LoadOptions, load_engine
from headrace.kv.lookahead.base import Allocation, AllocationPolicy
from headrace.kv.lookahead.forecast import SCORED
from headrace.kv.lookahead.on_demand import OnDemand
from headrace.kv.lookahead.policies import make_policy
from headrace.kv.tables import blocks_for
from headrace.sim.machine import Machine, RooflineMachine
from headrace.sim.run import Job, Play, SimRun, Simulation, Site

CLIENTS = 64
MAX_TOKENS = 1024
SHARE = 0.4
REQUESTS = 600
MACHINES: dict[str, Machine] = {
    "cores": CORES,
    "bandwidth": RooflineMachine(16e9, 131072, 16e9, 5e5, bytes_per_s=3e11, ops_per_s=8e12),
    "accelerator": RooflineMachine(16e9, 131072, 16e9, 5e5, bytes_per_s=2e12, ops_per_s=2.5e14),
}
ON_DEMAND = Allocation.ON_DEMAND.value
POLICIES: dict[str, tuple[Allocation, Callable[[], AllocationPolicy]]] = {
    ON_DEMAND: (Allocation.ON_DEMAND, OnDemand),
    "on-demand keeping one": (Allocation.ON_DEMAND, lambda: OnDemand(1)),
    Allocation.RESERVE_MAX.value: (
        Allocation.RESERVE_MAX,
        lambda: make_policy(Allocation.RESERVE_MAX),
    ),
    Allocation.LOOKAHEAD.value: (Allocation.LOOKAHEAD, lambda: make_policy(Allocation.LOOKAHEAD)),
}


def shapes_of(number: int, requests: int, data: Path | None) -> list[Shape]:
    """The requests of a round, all of which are there from the beginning."""
    rng = random.Random(f"overcommit {number}")
    if data is None or not (data / TRACE).is_file():
        shapes = made_shapes(requests, 1155, 211, Lengths.LOGNORMAL, number)
    else:
        shapes = rng.sample(read_trace(data / TRACE), requests)
    short = [scaled(replace(shape, at_s=0.0), 16) for shape in shapes]
    return [replace(s, output_len=min(s.output_len, MAX_TOKENS)) for s in short]


def pool_for(shapes: Sequence[Shape]) -> int:
    """Blocks of a pool that is too small, and holds the longest."""
    blocks = [blocks_for(s.prompt_len + s.output_len) for s in shapes]
    longest = max(blocks_for(s.prompt_len + MAX_TOKENS) for s in shapes)
    return max(longest, round(SHARE * CLIENTS * sum(blocks) / len(blocks)))


@dataclass(frozen=True, slots=True)
class Found:
    """What one run came to."""

    run: SimRun
    foresight: Foresight
    kept_free: float  # of the pool, mean over the steps
    num_stuck: int

    @property
    def goodput(self) -> float:
        return self.run.output_tokens / self.run.duration_s


Stage = Callable[[EngineConfig, int, Sequence[Job]], Play]


def simulated(machine: Machine) -> Stage:
    """Virtual time."""
    return lambda config, num_blocks, jobs: Simulation(
        Site(machine, num_blocks, config), jobs, CLIENTS
    )


def real(loaded: LoadedEngine) -> Stage:
    """The machine that it runs on, with a model whose answers end where the trace says."""
    tokenizer = loaded.tokenizer
    ordinary, num_ids = 300, tokenizer.vocab_size - 300

    def make(config: EngineConfig, num_blocks: int, jobs: Sequence[Job]) -> Play:
        if num_blocks > loaded.backend.num_blocks:
            raise SystemExit(f"The pool would need {num_blocks} blocks.")
        backend = EndedBackend(loaded.backend, num_blocks, min(tokenizer.eos_ids), ordinary)
        clock, length = WallClock(), loaded.engine.max_model_len
        engine = Engine(backend, tokenizer, length, config, clock=clock)
        known = [
            replace(job, prompt=array("i", (ordinary + i % num_ids for i in job.prompt)))
            for job in jobs
        ]
        return Play(engine, backend, clock, known, CLIENTS)

    return make


def play(stage: Stage, policy: str, num_blocks: int, jobs: Sequence[Job]) -> Found:
    """One policy on one machine."""
    allocation, make = POLICIES[policy]
    config = EngineConfig(
        max_num_seqs=CLIENTS,
        max_waiting_tokens=1 << 60,
        scheduling=Scheduling(allocation=allocation),
    )
    played = stage(config, num_blocks, jobs)
    foresight = played.engine.foresight
    foresight.policy = make()
    kept = steps = num_stuck = 0
    try:
        for _ in played.steps():
            kept += foresight.num_kept_free
            steps += 1
    except RuntimeError:
        num_stuck = 1
    run = played.result()
    num_stuck += sum(len(o.token_times) == 0 for o in run.outcomes)
    return Found(run, foresight, kept / (steps * num_blocks), num_stuck)


def measure(
    number: int, requests: int, data: Path | None, stages: dict[str, Stage]
) -> list[Figure]:
    """One round: every policy on every machine, with the same requests."""
    shapes = shapes_of(number, requests, data)
    jobs = jobs_of(shapes, number, max_tokens=MAX_TOKENS)
    num_blocks = pool_for(shapes)
    figures: list[Figure] = []
    for name, stage in stages.items():
        found = {policy: play(stage, policy, num_blocks, jobs) for policy in POLICIES}
        for policy, each in found.items():
            figures += _figures(number, f"{name}, {policy}", each, found)
        best = max(each.goodput for each in found.values())
        ours = found[Allocation.LOOKAHEAD.value].goodput
        figures.append(Figure(number, f"{name}, lookahead over the best", ours / best, "x"))
        reserved = ours / found[Allocation.RESERVE_MAX.value].goodput
        figures.append(Figure(number, f"{name}, lookahead over reserve-max", reserved, "x"))
    return figures


def _figures(number: int, name: str, found: Found, beside: dict[str, Found]) -> list[Figure]:
    run, foresight, base = found.run, found.foresight, beside[ON_DEMAND]
    values = [
        ("goodput", found.goodput, "tokens/s"),
        ("goodput over on-demand", found.goodput / base.goodput, "x"),
        ("recomputed", foresight.num_recomputed, "tokens"),
        (
            "recomputed over on-demand",
            100 * foresight.num_recomputed / max(1, base.foresight.num_recomputed),
            "%",
        ),
        ("preemptions", run.stats.num_preemptions, "times"),
        ("deadlocks", found.num_stuck, "times"),
        ("extents at the end", foresight.num_extents / max(1, foresight.num_tables), "runs"),
        ("kept free", 100 * found.kept_free, "%"),
        ("mean time to first token", sum(o.ttft_s for o in run.good) / len(run.good), "s"),
    ]
    score = foresight.score
    if score.num_outputs:
        for i, quantile in enumerate(SCORED):
            loss = score.losses[i] / score.num_outputs
            values.append((f"pinball loss of {quantile}", loss, "tokens"))
            covered = score.covered[i] / score.num_outputs
            values.append((f"coverage of {quantile}", 100 * covered, "%"))
    return [Figure(number, f"{name}, {what}", value, unit) for what, value, unit in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--model", type=Path, default=None, help="not simulated, but with this")
    parser.add_argument("--requests", type=count, default=REQUESTS)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    data = os.environ.get("HEADRACE_DATA")
    folder = None if data is None else Path(data)
    stages = {name: simulated(machine) for name, machine in MACHINES.items()}
    loaded = None
    if args.model is not None:
        loaded = load_engine(args.model, LoadOptions(max_num_seqs=CLIENTS, kv_cache_bytes=1 << 30))
        stages = {"real": real(loaded)}
    figures: list[Figure] = []
    for number in range(args.rounds):
        figures += measure(number, args.requests, folder, stages)
        if args.out is not None:
            write_figures(args.out, figures)
    if loaded is not None:
        loaded.close()
    print(json.dumps({name: round(value, 4) for name, (value, _, _) in medians(figures).items()}))


if __name__ == "__main__":
    main()
