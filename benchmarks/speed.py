"""Tokens per second of headrace and of rivals on the same file, interleaved in one run.

    python -m benchmarks.speed MODEL.gguf --rivals FOLDER --out rows.csv

Rounds visit every point and at every point every system in turn, so that a slow minute of the
machine hits all. Systems that wait are stopped. The machine's own limits are measured in every
round. A row during which others were busy is measured again (benchmarks.machine has the rule).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.arguments import count
from benchmarks.lineup import OURS, Lineup
from benchmarks.machine import MAX_ATTEMPTS
from benchmarks.process import System, UnavailableError
from benchmarks.rivals.environment import default_folder
from benchmarks.roof import Machine, ModelCost, bytes_of, read_beside
from benchmarks.rows import Row, write_run
from headrace.weights.open import open_source

Command = Mapping[str, object]

# A row whose memory was so many times as fast on one side of it as on the other says nothing of the
# share that it got, and is made again, so often at most.
UNSTEADY = 1.15
MAX_UNSTEADY = 5

POINTS: dict[str, Command] = {
    "prefill 512": {"do": "prefill", "tokens": 512},
    "prefill 2048": {"do": "prefill", "tokens": 2048},
    "decode 1": {"do": "decode", "sequences": 1, "context": 128, "tokens": 64},
    "decode 8": {"do": "decode", "sequences": 8, "context": 128, "tokens": 32},
    "decode 32": {"do": "decode", "sequences": 32, "context": 128, "tokens": 16},
}
LONG_POINTS: dict[str, Command] = {
    "decode 1 at 8000": {"do": "decode", "sequences": 1, "context": 8000, "tokens": 64},
}
VERIFY_POINTS: dict[str, Command] = {
    f"verify {rows}": {"do": "verify", "rows": rows, "context": 32, "tokens": 64} for rows in (1, 5)
}


@dataclass
class Bench:
    """One run over `points`: its rows so far and the facts that belong to them."""

    lineup: Lineup
    points: Mapping[str, Command]
    rounds: int
    out: Path | None = None
    max_attempts: int = MAX_ATTEMPTS
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Start everything, measure every round, end everything."""
        cost = self._describe()
        systems = self._start()
        try:
            roof = Machine(self.lineup.threads, cost.weight_bytes)
            for number in range(self.rounds):
                self.rows += roof.measure(number)
                for point, command in self.points.items():
                    for system in systems:
                        self._take_turn(number, point, command, system, roof)
                self.save()
                say(f"round {number + 1}/{self.rounds}")
        finally:
            for system in systems:
                system.close()

    def save(self) -> None:
        if self.out is not None:
            write_run(self.out, self.rows, self.facts)

    def _describe(self) -> ModelCost:
        source = open_source(self.lineup.model)
        try:
            cost = ModelCost.of(source)
        finally:
            source.close()
        self.facts |= {
            "machine": machine.facts(),
            "model": self.lineup.model.name,
            "model_bytes": self.lineup.model.stat().st_size,
            "cost": asdict(cost),
            "threads": self.lineup.threads,
            "points": {name: dict(command) for name, command in self.points.items()},
            "systems": {},
            "left_out": dict(self.lineup.missing()),
        }
        return cost

    def _start(self) -> list[System]:
        """One after the other, each stopped once it has answered a short prompt."""
        systems: list[System] = []
        for launch in self.lineup.launches():
            try:
                system = System(launch)
                first_s = system.first_token_s()
            except UnavailableError as error:
                self._leave_out(launch.name, str(error))
                continue
            systems.append(system)
            started = {"version": system.version, "ready_s": system.ready_s}
            self.facts["systems"][launch.name] = started | {"first_token_s": first_s}
            say(f"{launch.name} {system.version}: first token after {first_s:.1f} s")
        if not any(system.name.startswith(OURS) for system in systems):
            for system in systems:
                system.close()
            raise SystemExit(f"{OURS} cannot be measured; the reason is above.")
        return systems

    def _take_turn(
        self, number: int, point: str, command: Command, system: System, roof: Machine
    ) -> None:
        """One row; ours, where bandwidth bounds it, between two looks at the roof."""
        if command["do"] != "decode" or not system.name.startswith(OURS):
            self._measure(number, point, command, system)
            return
        name = read_beside(point, system.name)
        num_bytes = bytes_of(ModelCost(**self.facts["cost"]), command, system.name)
        for attempt in range(MAX_UNSTEADY):
            before = len(self.rows)
            self.rows.append(roof.read(number, name, num_bytes))
            self._measure(number, point, command, system)
            self.rows.append(roof.read(number, name, num_bytes))
            looks = self.rows[before].rate, self.rows[-1].rate
            if max(looks) <= UNSTEADY * min(looks) or attempt + 1 == MAX_UNSTEADY:
                return
            del self.rows[before:]
            first, last = (f"{look / 1e9:.0f}" for look in looks)
            say(f"{number} {point}: memory gave {first}, then {last} GB/s")

    def _measure(self, number: int, point: str, command: Command, system: System) -> None:
        if f"{system.name}: {point}" in self.facts["left_out"]:
            return
        try:
            if number == 0:  # code that is compiled for a shape, memory that is touched first
                system.measure(warm_up(command))
            got = system.measure(command, max_attempts=self.max_attempts)
        except UnavailableError as error:
            self._leave_out(f"{system.name}: {point}", str(error))
            return
        contended = int(got.contended)
        row = Row(
            number, point, system.name, got.seconds, got.tokens, "tokens", got.attempts, contended
        )
        self.rows.append(row)
        note = " contended" if contended else ""
        say(f"{number} {point} {system.name}: {row.rate:.1f}/s, {got.attempts} attempts{note}")

    def _leave_out(self, what: str, why: str) -> None:
        self.facts["left_out"][what] = why
        say(f"{what} is left out: {why}")


def warm_up(command: Command) -> Command:
    """The same shapes, for as few steps as there may be."""
    return command if command["do"] == "prefill" else {**command, "tokens": 2}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def choose(points: Mapping[str, Command], names: Iterable[str]) -> dict[str, Command]:
    """The named points, or all; unknown names end the program."""
    chosen = list(names) or list(points)
    unknown = [name for name in chosen if name not in points]
    if unknown:
        raise SystemExit(f"There is no point {unknown[0]!r}; there are {', '.join(points)}.")
    return {name: points[name] for name in chosen}


def refuse_when_busy() -> None:
    """End the program with the reason when others use the machine now."""
    share = machine.busy_share()
    if share > machine.BUSY_SHARE:
        raise SystemExit(
            f"Others use {share:.0%} of this machine's cores; wait until it is idle, or take"
            " figures that mean little with --busy."
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure one model; prints the same table as the report."""
    from benchmarks.report import speed_table

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rivals", type=Path, default=default_folder())
    parser.add_argument("--only", action="append", default=[], help="a rival; may be repeated")
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--points", default="", help="comma-separated")
    parser.add_argument("--busy", action="store_true", help="measure although others are busy")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args(arguments)
    if not args.busy:
        refuse_when_busy()
    points = choose(POINTS, [p for p in args.points.split(",") if p])
    lineup = Lineup(args.model.resolve(), args.threads, args.rivals, args.only)
    bench = Bench(lineup, points, args.rounds, args.out, 1 if args.busy else MAX_ATTEMPTS)
    bench.run()
    print(speed_table(bench.rows, bench.facts))


if __name__ == "__main__":
    main()
