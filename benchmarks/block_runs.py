"""What it costs attention that a sequence's blocks are scattered, and what runs of them save.

    python -m benchmarks.block_runs MODEL.gguf --rounds 3 --out rows.csv

The same steps of decode, of one sequence with 8,000 keys and of 16 with 1,000 each, over block
tables that are one run of ids, runs of 6 blocks in random order, or blocks in random order. All
read the same bytes of the same arena. They take turns, in another order each time, so that what
disturbs the machine disturbs all of them. Milliseconds of attention: the step less one whose
sequences have a single key each; ratios are medians over pairs of steps that followed each other.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from array import array
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import count
from benchmarks.rows import Figure, medians, write_figures
from headrace.backends.base import StepPlan
from headrace.backends.cpu import CpuBackend
from headrace.backends.layout import KV_DTYPES
from headrace.engine.load import LoadOptions, load_engine
from headrace.kv.tables import blocks_for

SHAPES = {"1 x 8000": (1, 8000), "16 x 1000": (16, 1000)}  # sequences, keys of each
ONE_RUN, RUNS, SCATTERED = "one run", "runs of 6", "scattered"
RUN_LEN = {ONE_RUN: 0, RUNS: 6, SCATTERED: 1}  # blocks; 0: all of a sequence's
NUM_BLOCKS = 1152  # more than any shape takes: scattered ones lie among others
TURNS = 24
_ROWS = 64  # of the prompt that the arena is filled with


def tables_of(arrangement: str, num_seqs: int, num_keys: int, seed: int) -> list[array[int]]:
    """Block tables of sequences that lie in the arena like this; no block is in two of them."""
    length, rng = blocks_for(num_keys), random.Random(f"block runs {seed}")
    run_len = RUN_LEN[arrangement] or length
    starts = list(range(0, NUM_BLOCKS - run_len + 1, run_len))
    if arrangement != ONE_RUN:
        rng.shuffle(starts)
    per_table = -(-length // run_len)
    tables = []
    for index in range(num_seqs):
        own = starts[index * per_table : (index + 1) * per_table]
        blocks = [block for start in own for block in range(start, start + run_len)]
        tables.append(array("i", blocks[:length]))
    return tables


def _plan(positions: Sequence[Sequence[int]], tables: Sequence[array[int]]) -> StepPlan:
    """A step of these rows of each sequence; none of them is wanted."""
    starts, table_starts, joined = array("i", [0]), array("i"), array("i")
    for rows, table in zip(positions, tables, strict=True):
        starts.append(starts[-1] + len(rows))
        table_starts.append(len(joined))
        joined.extend(table)
    flat = array("i", (p for rows in positions for p in rows))
    tokens = array("i", (3 + p % 256 for p in flat))
    return StepPlan(tokens, flat, starts, [joined], [table_starts])


def fill(backend: CpuBackend) -> None:
    """Write every block of the arena: pages that nobody wrote would all be the same one."""
    num = blocks_for(_ROWS)
    backend.submit(_plan([range(_ROWS)], [array("i", range(num))]))
    plan = _plan([[0]], [array("i", [0])])
    plan.copies = [(i % num, i) for i in range(num, NUM_BLOCKS)]
    backend.submit(plan)


def step_s(backend: CpuBackend, tables: Sequence[array[int]], num_keys: int) -> float:
    """Seconds of one step of decode."""
    plan = _plan([[num_keys - 1]] * len(tables), tables)
    return backend.collect(backend.submit(plan)).native_s


def measure(backend: CpuBackend, kv_dtype: str, number: int) -> list[Figure]:
    """One round of every shape."""
    figures: list[Figure] = []
    for shape, (num_seqs, num_keys) in SHAPES.items():
        tables = {name: tables_of(name, num_seqs, num_keys, number) for name in RUN_LEN}
        seconds: dict[str, list[float]] = {name: [] for name in RUN_LEN}
        rest, order = [], list(RUN_LEN)
        for turn in range(-2, TURNS):
            random.Random(f"{number} {turn}").shuffle(order)
            taken = {name: step_s(backend, tables[name], num_keys) for name in order}
            alone_s = step_s(backend, tables[ONE_RUN], 1)
            if turn < 0:
                continue  # caches and clocks are cold
            rest.append(alone_s)
            for name, value in taken.items():
                seconds[name].append(value)
        rest_s = statistics.median(rest)
        figures += _figures(number, f"{kv_dtype}, {shape} keys", seconds, rest_s)
    return figures


def _figures(
    number: int, name: str, seconds: dict[str, list[float]], rest_s: float
) -> list[Figure]:
    figures = []
    for each, values in seconds.items():
        attention_s = statistics.median(values) - rest_s
        figures.append(Figure(number, f"{name}, {each}", 1e3 * attention_s, "ms"))
    best = seconds[ONE_RUN]
    for each in (RUNS, SCATTERED):
        pairs = zip(seconds[each], best, strict=True)
        ratio = statistics.median((a - rest_s) / (b - rest_s) for a, b in pairs)
        figures.append(Figure(number, f"{name}, {each} over {ONE_RUN}", ratio, "x"))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=count, default=None)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    figures: list[Figure] = []
    for kv_dtype in KV_DTYPES:
        options = LoadOptions(threads=args.threads, kv_dtype=kv_dtype, kv_cache_bytes=1 << 30)
        loaded = load_engine(args.model, options)
        if len(loaded.backend.layout.groups) != 1 or loaded.backend.num_blocks < NUM_BLOCKS:
            raise SystemExit("It takes a small model without windows.")
        fill(loaded.backend)
        for number in range(args.rounds):
            figures += measure(loaded.backend, kv_dtype, number)
            if args.out is not None:
                write_figures(args.out, figures)
        loaded.close()
    print(json.dumps({name: round(value, 4) for name, (value, _, _) in medians(figures).items()}))


if __name__ == "__main__":
    main()
