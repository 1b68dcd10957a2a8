"""Seconds from the start of a process to the first token of a prompt of 16 tokens, per system.

    python -m benchmarks.start MODEL.gguf --rivals FOLDER --out rows.csv

Files are in the page cache. A system that compiles keeps what it has compiled in its own cache, so
its first start ever takes longer than these.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.arguments import count
from benchmarks.lineup import Lineup
from benchmarks.process import System, UnavailableError
from benchmarks.rivals.environment import default_folder
from benchmarks.rows import Row, write_run
from benchmarks.speed import refuse_when_busy, say

POINT = "start to first token"


def measure(lineup: Lineup, rounds: int, out: Path | None) -> list[Row]:
    """Every system in turn, once per round, after a round that is not counted."""
    rows: list[Row] = []
    left_out = lineup.missing()
    launches = list(lineup.launches())
    for number in range(-1, rounds):
        for launch in launches:
            if launch.name in left_out:
                continue
            before = machine.CpuClock.read()
            try:
                system = System(launch)
                seconds = system.first_token_s()
                seen = machine.Contention.between(before, system.clock())
                system.close()
            except UnavailableError as error:
                left_out[launch.name] = str(error)
                continue
            row = Row(number, POINT, launch.name, seconds, 1, "starts", 1, int(seen.is_contended))
            say(f"{number} {launch.name}: {seconds:.2f} s")
            rows += [row] if number >= 0 else []
        if out is not None:
            facts = {"machine": machine.facts(), "model": lineup.model.name, "left_out": left_out}
            write_run(out, rows, facts)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure starts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rivals", type=Path, default=default_folder())
    parser.add_argument("--only", action="append", default=[], help="a rival; may be repeated")
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--busy", action="store_true", help="measure although others are busy")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args(arguments)
    if not args.busy:
        refuse_when_busy()
    measure(
        Lineup(args.model.resolve(), args.threads, args.rivals, args.only), args.rounds, args.out
    )


if __name__ == "__main__":
    main()
