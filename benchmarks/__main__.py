"""Numbered runs: raw rows into benchmarks/results, tables into the pages.

    python -m benchmarks --list
    python -m benchmarks 01 05 --rounds 5 --rivals FOLDER
    python -m benchmarks report

Without numbers every run is made. Rivals need environments (benchmarks.rivals); without one, a run
says so and measures the others.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine, report, start
from benchmarks.arguments import count, folder
from benchmarks.lineup import RIVALS, Lineup
from benchmarks.machine import MAX_ATTEMPTS
from benchmarks.rivals import llama_cpp
from benchmarks.rivals.environment import default_folder, python_of
from benchmarks.rows import RESULTS
from benchmarks.runs import MODELS, RUNS, Run, models_folder
from benchmarks.speed import Bench, refuse_when_busy, say


def main() -> None:
    """Make the chosen runs, or write the report."""
    args = _parse()
    if args.list:
        for run in RUNS.values():
            print(f"{run.number}  {run.name:<14}{run.what}")
        return
    if args.runs == ["report"]:
        report.main(args.results)
        return
    unknown = [number for number in args.runs if number not in RUNS]
    if unknown:
        raise SystemExit(f"There is no run {unknown[0]!r}; --list shows them.")
    for number in args.runs or RUNS:
        say(f"run {number} {RUNS[number].name}")
        make(RUNS[number], args)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="*", metavar="NUMBER", help="runs, or 'report'")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--threads", type=count, default=machine.usable_cores())
    parser.add_argument("--rivals", type=Path, default=default_folder())
    parser.add_argument("--only", action="append", default=[], choices=RIVALS, help="a rival")
    parser.add_argument("--models", type=Path, default=models_folder())
    parser.add_argument("--results", type=folder, default=RESULTS)
    parser.add_argument("--busy", action="store_true", help="measure although others are busy")
    return parser.parse_args()


def make(run: Run, args: argparse.Namespace) -> None:
    """One run; its rows replace those of the last."""
    if run.kind != "accuracy" and not args.busy:
        refuse_when_busy()
    if run.kind == "accuracy":
        _accuracy(run, args)
    elif run.kind == "figures":
        _figures(run, args)
    else:
        only = [name for name in run.only or RIVALS if name in (args.only or RIVALS)]
        rivals = args.rivals if only else None
        lineup = Lineup(_model(run.model, args), args.threads, rivals, only, run.kv_dtypes)
        if run.kind == "start":
            start.measure(lineup, args.rounds, run.path(args.results))
        else:
            attempts = 1 if args.busy else MAX_ATTEMPTS
            Bench(lineup, run.points, args.rounds, run.path(args.results), attempts).run()
    section = report.run_section(run, args.results)
    if section is not None:
        print(f"\n## {run.number} {run.what}\n\n{section}\n", flush=True)


def _model(name: str, args: argparse.Namespace) -> Path:
    path: Path = args.models / MODELS[name]
    if not path.is_file():
        raise SystemExit(
            f"{path.name} is not in {args.models}; scripts/fetch_test_models.py gets it."
        )
    return path.resolve()


def _accuracy(run: Run, args: argparse.Namespace) -> None:
    """Every model that is here, in a process of its own."""
    rival = python_of(args.rivals, llama_cpp.NAME)
    for name in MODELS:
        if not (args.models / MODELS[name]).is_file():
            say(f"{MODELS[name]} is left out: it is not in {args.models}")
            continue
        path = run.path(args.results, name)
        options = [str(_model(name, args)), "--out", str(path), "--threads", str(args.threads)]
        options += [] if rival is None else ["--rival-python", str(rival)]
        if _call("benchmarks.accuracy", options):
            _write_facts(path, MODELS[name])


def _figures(run: Run, args: argparse.Namespace) -> None:
    if importlib.util.find_spec(run.module) is None:
        say(f"{run.module} is not here; run {run.number} is left out")
        return
    path = run.path(args.results)
    options = [str(_model(run.model, args))] if run.model else []
    if run.only is not None:
        only = [name for name in run.only if name in (args.only or RIVALS)]
        options += ["--rivals", str(args.rivals), *(f"--only={name}" for name in only)]
    options += ["--busy"] if run.repeats and args.busy else []
    if _call(run.module, [*options, "--rounds", str(args.rounds), "--out", str(path)]):
        _write_facts(path, MODELS.get(run.model, "no model"))


def _call(module: str, options: Sequence[str]) -> bool:
    """Whether a module's program ended well."""
    done = subprocess.run([sys.executable, "-m", module, *options], check=False)
    if done.returncode:
        say(f"{module} failed with status {done.returncode}")
    return done.returncode == 0


def _write_facts(path: Path, model: str) -> None:
    facts = {"machine": machine.facts(), "model": model}
    path.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
