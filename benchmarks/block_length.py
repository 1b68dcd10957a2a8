"""Blocks of other lengths: the same engine, built with another constant, side by side.

    python -m benchmarks.block_length MODEL.gguf --rounds 3 --out rows.csv

The length of a block is a constant of the native core and of the Python code. For each length the
checkout is copied below --builds with that constant and compiled (minutes; what is there already is
used), and the builds take turns. Shorter blocks than 16 there cannot be: that many keys fill the
widest register. Figures of a round and length:

  prefill 2,048, decode 1 at 8,000, decode 32 at 1,000    tokens per second
  Python per step      of 64 sequences that decode, median
  match of 8,000 tokens    in the prefix cache's tree, a path being one node
  table entries of 8,000 tokens
  unfilled    positions of a sequence's last block, on average
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.arguments import count
from benchmarks.machine import ROOT
from benchmarks.prefix_tree import NUM_SAMPLES, Forest
from benchmarks.python_step import measure as measure_python
from benchmarks.rows import Figure, medians, write_figures
from headrace.backends.layout import BLOCK_LEN
from headrace.bench.engine import EngineBench, Plan
from headrace.engine.load import LoadOptions, load_engine

LENGTHS = (16, 32, 64)
# Where the constant stands: file, and what is around it.
CONSTANTS = {
    "native/common/types.h": r"(constexpr int kBlockLen = )16(;)",
    "src/headrace/backends/layout.py": r"(?m)(^BLOCK_LEN = )16($)",
}
KV_BYTES = 1 << 30
LONG = 8_000
DECODES = {"decode 1 at 8,000": (1, LONG), "decode 32 at 1,000": (32, 1000)}
PLAN = Plan(steps=24, repeat=3)


def with_length(text: str, pattern: str, length: int) -> str:
    """A source file with another constant. Raises ValueError unless it stands there once."""
    changed, num_changed = re.subn(pattern, rf"\g<1>{length}\g<2>", text)
    if num_changed != 1:
        raise ValueError(f"the constant of a block's length is found {num_changed} times")
    return changed


def build(length: int, folder: Path) -> None:
    """A copy of this checkout with that length, compiled in place."""
    if (folder / "built").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    for name, pattern in CONSTANTS.items():
        path = folder / name
        path.write_text(with_length(path.read_text(), pattern, length))
    (folder / ".venv").symlink_to(Path(sys.prefix))
    subprocess.run(["scripts/build"], cwd=folder, check=True, stdout=sys.stderr)
    (folder / "built").touch()


def measure(model: Path, threads: int | None) -> dict[str, tuple[float, str]]:
    """The figures of the build that this process has imported."""
    values: dict[str, tuple[float, str]] = {}
    options = LoadOptions(
        threads=threads, kv_cache_bytes=KV_BYTES, max_num_seqs=64, prefix_cache=False
    )
    loaded = load_engine(model, options)
    bench = EngineBench(loaded)
    bench.warm_up()
    runs = [bench.prefill(2048) for _ in range(3)]
    rate = statistics.median(run.tokens / run.seconds for run in runs)
    values["prefill 2,048"] = (rate, "tokens/s")
    for name, (batch, context) in DECODES.items():
        rates = [run.tokens / run.seconds for run in bench.decode(batch, context, PLAN)]
        values[name] = (statistics.median(rates), "tokens/s")
    values["Python per step"] = (1e3 * statistics.median(measure_python(loaded, 64)), "ms")
    loaded.close()
    values["match of 8,000 tokens"] = (1e6 * _match_s(), "us")
    values["table entries of 8,000 tokens"] = (-(-LONG // BLOCK_LEN), "entries")
    values["unfilled"] = ((BLOCK_LEN - 1) / 2, "positions")
    return values


def _match_s() -> float:
    """Median seconds to find and hold a path of 8,000 tokens, in a tree of such paths."""
    forest = Forest("long", 100_000 // BLOCK_LEN, random.Random(0), LONG // BLOCK_LEN)
    return statistics.median(forest.match() for _ in range(NUM_SAMPLES))


def ask(folder: Path, arguments: list[str]) -> dict[str, tuple[float, str]]:
    """The figures of a build, measured in a process of its own."""
    env = {**os.environ, "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}"}
    command = [sys.executable, "-m", "benchmarks.block_length", *arguments, "--this"]
    done = subprocess.run(
        command, cwd=folder, env=env, check=True, stdout=subprocess.PIPE, text=True
    )
    return {name: (value, unit) for name, (value, unit) in json.loads(done.stdout).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=count, default=None)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS)
    parser.add_argument("--builds", type=Path, default=Path(tempfile.gettempdir()) / "block-length")
    parser.add_argument("--this", action="store_true", help="measure this build alone, as JSON")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    if args.this:
        print(json.dumps(measure(args.model, args.threads)))
        return
    for length in args.lengths:
        build(length, args.builds / str(length))
    arguments = [str(args.model.resolve())]
    arguments += [] if args.threads is None else ["--threads", str(args.threads)]
    figures: list[Figure] = []
    for number in range(args.rounds):
        for length in args.lengths:
            for name, (value, unit) in ask(args.builds / str(length), arguments).items():
                figures.append(Figure(number, f"blocks of {length}, {name}", value, unit))
        if args.out is not None:
            write_figures(args.out, figures)
    print(json.dumps({name: round(value, 4) for name, (value, _, _) in medians(figures).items()}))


if __name__ == "__main__":
    main()
