"""Orders of the queue against first come, first served, in the simulator.

    HEADRACE_DATA=... python -m benchmarks.queue_order --rounds 3 --out rows.csv

The engine that serves, in virtual time, on a machine like SmolLM2-135M on two cores. Each round
draws requests from Azure's conversation trace (lengths alone: nothing is shared) and lets them
arrive at random, 1.2 times as fast as the machine can answer them, with the server's settings for
everything but the order. Without the trace, lengths are drawn from a lognormal distribution.

`sharing`: the same with a piece of Mooncake's conversation trace, prompts and answers 1:32, so that
one of its block ids is one KV block, in the trace's order. Without it, conversations are made.

Every order bounds how long anybody waits (engine.order); `unbounded` orders do not, as elsewhere.
Their figures are means and 99th percentiles of the time to the first token, over those of fcfs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.arguments import count
from benchmarks.hit_rate import DIVISOR, made_conversations
from benchmarks.hit_rate import traces as sharing_traces
from benchmarks.rows import Figure, medians, write_figures
from headrace.bench.load.lengths import Lengths
from headrace.bench.load.shapes import Shape, made_shapes
from headrace.bench.load.traces import read_trace
from headrace.bench.simulate import Summary, overload, scaled
from headrace.engine.base import SERVING, EngineConfig, Scheduling
from headrace.engine.order import QueueOrder
from headrace.engine.step_time import StepTime
from headrace.sim.machine import LinearMachine
from headrace.sim.run import Site, simulate

TRACE = "traces/azure_llm_2023_conv.csv.gz"
LOAD = 1.2
REQUESTS = 1500
SHARING_REQUESTS = 1000
NUM_BLOCKS = 20_000
# Seconds: SmolLM2-135M (Q4_1) on two cores with AVX-512.
MACHINE = LinearMachine(
    StepTime(
        base=2e-3, decode_row=7.8e-4, decode_context=4e-7, prompt_row=4.7e-4, prompt_context=2e-7
    )
)


@dataclass(frozen=True, slots=True)
class Mix:
    """Requests of a round. `prefix` of its figures' names; `divisor` of its prompts' blocks."""

    prefix: str
    shapes: list[Shape]
    divisor: int = 1


def mixes(number: int, requests: int, sharing: int, data: Path | None) -> Iterator[Mix]:
    """What a round is made of."""
    rng = random.Random(f"round {number}")
    if data is None or not (data / TRACE).is_file():
        yield Mix("", made_shapes(requests, 1155, 211, Lengths.LOGNORMAL, number))
    else:
        yield Mix("", rng.sample(read_trace(data / TRACE), requests))
    name, shapes = next(sharing_traces(data))
    if name == "made":
        yield Mix("sharing: ", made_conversations(sharing, number), DIVISOR)
        return
    shapes = [scaled(shape, 1, DIVISOR) for shape in shapes]
    start = number * sharing % max(1, len(shapes) - sharing)
    yield Mix("sharing: ", shapes[start : start + sharing], DIVISOR)


def schedulings() -> Iterator[tuple[str, Scheduling]]:
    """The server's settings with every order, fcfs first."""
    for order in QueueOrder:
        yield order.value, msgspec.structs.replace(SERVING, order=order)
    for order in QueueOrder:
        if order is not QueueOrder.FCFS:
            free = msgspec.structs.replace(
                SERVING, order=order, patience=math.inf, max_wait_s=math.inf
            )
            yield f"{order.value} unbounded", free


def measure(number: int, mix: Mix) -> list[Figure]:
    """One round of a mix: every order on the same arrivals."""
    jobs = overload(_site(SERVING), mix.shapes, LOAD, number, divisor=mix.divisor)
    figures: list[Figure] = []
    fcfs: Summary | None = None
    for name, scheduling in schedulings():
        summary = Summary.of(simulate(_site(scheduling), jobs))
        fcfs = fcfs or summary
        figures += _figures(number, f"{mix.prefix}{name}", summary, fcfs)
    return figures


def _site(scheduling: Scheduling) -> Site:
    config = EngineConfig(max_waiting=1 << 30, max_waiting_tokens=1 << 60, scheduling=scheduling)
    return Site(MACHINE, NUM_BLOCKS, config)


def _figures(number: int, name: str, found: Summary, fcfs: Summary) -> Sequence[Figure]:
    return [
        Figure(number, f"{name}, mean", found.ttft_mean, "s"),
        Figure(number, f"{name}, mean over fcfs", found.ttft_mean / fcfs.ttft_mean, "x"),
        Figure(number, f"{name}, p99 over fcfs", found.ttft_p99 / fcfs.ttft_p99, "x"),
        Figure(number, f"{name}, longest", found.ttft_max, "s"),
        Figure(number, f"{name}, p99 gap", 1e3 * found.gap_p99, "ms"),
        Figure(number, f"{name}, throughput", found.tokens_per_s, "tokens/s"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--requests", type=count, default=REQUESTS)
    parser.add_argument(
        "--sharing", type=count, default=SHARING_REQUESTS, help="requests that share"
    )
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    data = os.environ.get("HEADRACE_DATA")
    figures: list[Figure] = []
    for number in range(args.rounds):
        folder = None if data is None else Path(data)
        for mix in mixes(number, args.requests, args.sharing, folder):
            figures += measure(number, mix)
            if args.out is not None:
                write_figures(args.out, figures)
    print(json.dumps({name: round(value, 4) for name, (value, _, _) in medians(figures).items()}))


if __name__ == "__main__":
    main()
