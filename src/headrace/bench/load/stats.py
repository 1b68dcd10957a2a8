"""What a run's outcomes come to: percentiles, rates, goodput, errors by kind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from headrace.bench.load.client import Outcome
from headrace.bench.load.run import LoadRun

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a good answer keeps within, in ms; None: whatever it takes."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def are_met(self, outcome: Outcome) -> bool:
        """False for a request that failed. An answer of one token has no time per token."""
        if outcome.error:
            return False
        bounds = (
            (self.ttft_ms, outcome.ttft_s),
            (self.tpot_ms, outcome.tpot_s),
            (self.e2e_ms, outcome.e2e_s),
        )
        return all(
            bound is None or value is None or value * 1e3 <= bound for bound, value in bounds
        )

    @property
    def is_any(self) -> bool:
        return not (self.ttft_ms is None and self.tpot_ms is None and self.e2e_ms is None)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in order, linear between the two nearest (NumPy's default); nan for none."""
    if not ordered:
        return math.nan
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def describe_ms(values_s: Iterable[float | None]) -> dict[str, float] | None:
    """Mean, percentiles and most in ms; None when there is no value."""
    ordered = sorted(value * 1e3 for value in values_s if value is not None)
    if not ordered:
        return None
    found = {"mean": math.fsum(ordered) / len(ordered)}
    found |= {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    return {**found, "max": ordered[-1]}


def gaps_s(outcomes: Iterable[Outcome]) -> list[float]:
    """Times between two pieces of the same answer."""
    return [
        later - earlier for outcome in outcomes for earlier, later in pairwise(outcome.token_times)
    ]


def most_at_once(outcomes: Iterable[Outcome]) -> int:
    """Requests under way at the same time."""
    changes = [(outcome.sent_s, 1) for outcome in outcomes if outcome.sent_s is not None]
    changes += [
        (outcome.end_s, -1)
        for outcome in outcomes
        if outcome.sent_s is not None and outcome.end_s is not None
    ]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def summarize(run: LoadRun, objectives: Objectives) -> dict[str, Any]:
    """The whole summary, for JSON. Latencies are those of answers that succeeded."""
    good = [outcome for outcome in run.outcomes if not outcome.error]
    num_met = sum(objectives.are_met(outcome) for outcome in run.outcomes)
    prompt_tokens = sum(outcome.prompt_tokens for outcome in good)
    output_tokens = sum(outcome.output_tokens for outcome in good)
    seconds = max(run.duration_s, 1e-9)
    failed = [outcome for outcome in run.outcomes if outcome.error]
    return {
        "model": run.model,
        "duration_s": run.duration_s,
        "stopped": run.stopped,
        "sent": len(run.outcomes),
        "completed": len(good),
        "failed": len(failed),
        "errors": dict(Counter(outcome.error for outcome in failed)),
        "error_examples": {o.error: o.message for o in reversed(failed) if o.message},
        "most_at_once": most_at_once(run.outcomes),
        "total_input_tokens": prompt_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": len(good) / seconds,
        "output_throughput": output_tokens / seconds,
        "total_token_throughput": (prompt_tokens + output_tokens) / seconds,
        "request_goodput": num_met / seconds,
        "good_share": num_met / len(run.outcomes) if run.outcomes else 0.0,
        "ttft_ms": describe_ms(outcome.ttft_s for outcome in good),
        "tpot_ms": describe_ms(outcome.tpot_s for outcome in good),
        "itl_ms": describe_ms(gaps_s(good)),
        "e2e_ms": describe_ms(outcome.e2e_s for outcome in good),
        "generator": {
            "late_ms": describe_ms(outcome.late_s for outcome in run.outcomes),
            "cpu_share": run.cpu_s / seconds,
            "words_per_token": run.words_per_token,
        },
    }
