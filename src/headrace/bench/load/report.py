"""A run's results as rows for a file and as a table for people."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from headrace.bench.load.client import Outcome
from headrace.bench.load.run import LoadRun
from headrace.bench.load.stats import Objectives

COLUMNS = (
    "index", "scheduled_s", "late_ms", "prompt_len", "output_len", "prompt_tokens",
    "output_tokens", "ttft_ms", "tpot_ms", "e2e_ms", "is_good", "error", "message", "token_ms",
)  # fmt: skip
METRICS = {
    "ttft_ms": "time to first token",
    "tpot_ms": "time per output token",
    "itl_ms": "between two tokens",
    "e2e_ms": "end to end",
}
HEAD = ["ms", "mean", "p50", "p90", "p99", "most"]


def write_csv(path: Path, run: LoadRun, objectives: Objectives) -> None:
    """One row per request; `token_ms`: when each piece arrived, after the scheduled moment."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for outcome in run.outcomes:
            writer.writerow(_csv_row(outcome, objectives))


def _csv_row(outcome: Outcome, objectives: Objectives) -> list[object]:
    return [
        outcome.index,
        f"{outcome.scheduled_s:.6f}",
        _ms(outcome.late_s),
        outcome.prompt_len,
        outcome.output_len,
        outcome.prompt_tokens,
        outcome.output_tokens,
        _ms(outcome.ttft_s),
        _ms(outcome.tpot_s),
        _ms(outcome.e2e_s),
        int(objectives.are_met(outcome)),
        outcome.error,
        outcome.message,
        " ".join(_ms(moment - outcome.scheduled_s) for moment in outcome.token_times),
    ]


def _ms(value_s: float | None) -> str:
    return "" if value_s is None else f"{value_s * 1e3:.3f}"


def latency_rows(summary: dict[str, Any]) -> list[list[str]]:
    """The table of latencies; what was never measured is a dash."""
    rows = []
    for key, name in METRICS.items():
        found = summary[key]
        values = ("mean", "p50", "p90", "p99", "max")
        cells = ["-" if found is None else f"{found[value]:.2f}" for value in values]
        rows.append([name, *cells])
    return rows


def lines_of(summary: dict[str, Any], objectives: Objectives) -> list[str]:
    """What the table does not say: rates, errors, the generator itself."""
    lines = [
        f"{summary['completed']} of {summary['sent']} requests succeeded in "
        f"{summary['duration_s']:.1f} s, at most {summary['most_at_once']} at once.",
        f"{summary['request_throughput']:.2f} requests/s, {summary['output_throughput']:.1f} output"
        f" tokens/s, {summary['total_token_throughput']:.1f} tokens/s with the prompts.",
    ]
    if objectives.is_any:
        lines.append(
            f"Goodput: {summary['request_goodput']:.2f} requests/s within the objectives, "
            f"{summary['good_share']:.1%} of all."
        )
    for kind, count in summary["errors"].items():
        example = summary["error_examples"].get(kind, "")
        lines.append(f"{count} failed: {kind}{f' ({example})' if example else ''}.")
    generator = summary["generator"]
    late = generator["late_ms"]
    if late is not None:
        lines.append(
            f"The generator sent {late['p50']:.2f} ms late (p99 {late['p99']:.2f}, most "
            f"{late['max']:.2f}) and used {generator['cpu_share']:.0%} of a core."
        )
    if summary["stopped"]:
        lines.append(f"Stopped early: {summary['stopped']}")
    return lines
