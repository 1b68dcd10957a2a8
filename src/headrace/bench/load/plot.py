"""Plots of a run as a PNG, by matplotlib: the optional extra `bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.bench.load.run import LoadRun
from headrace.bench.load.stats import gaps_s
from headrace.errors import HeadraceError


def check_matplotlib() -> None:
    """Raises HeadraceError without it: before a long run, not after."""
    try:
        import matplotlib  # noqa: F401  # only whether it is there
    except ImportError:
        raise HeadraceError(
            "Plots need matplotlib; install headrace with the extra: pip install 'headrace[bench]'."
        ) from None


def write_plot(path: Path, run: LoadRun) -> None:
    """Distributions of the latencies, latencies over time, and tokens/s over time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)
    first, second, third, fourth = figure.subplots(2, 2).flat
    good = [outcome for outcome in run.outcomes if not outcome.error]
    _distribution(first, "time to first token", [o.ttft_s for o in good])
    _distribution(second, "time per output token", [o.tpot_s for o in good])
    _distribution(second, "between two tokens", list(gaps_s(good)))
    _over_time(third, run)
    _throughput(fourth, run)
    figure.suptitle(f"{run.model}: {len(good)} of {len(run.outcomes)} requests succeeded")
    figure.savefig(path, format="png", dpi=100)


def _distribution(axes: Any, label: str, values_s: list[float | None]) -> None:
    ordered = sorted(value * 1e3 for value in values_s if value is not None)
    shares = [(index + 1) / len(ordered) for index in range(len(ordered))]
    axes.step(ordered, shares, where="post", label=label)
    axes.set(xlabel="ms", ylabel="share of all", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend()


def _over_time(axes: Any, run: LoadRun) -> None:
    """When a request was due, and what it took; those that failed at the bottom."""
    for label, get in (("end to end", "e2e_s"), ("time to first token", "ttft_s")):
        points = [(o.scheduled_s, getattr(o, get)) for o in run.outcomes if not o.error]
        known = [(at, value * 1e3) for at, value in points if value is not None]
        axes.plot([at for at, _ in known], [value for _, value in known], ".", label=label)
    failed = [o.scheduled_s for o in run.outcomes if o.error]
    axes.plot(failed, [0.0] * len(failed), "x", color="red", label="failed")
    axes.set(xlabel="s since the start", ylabel="ms")
    axes.grid(alpha=0.3)
    axes.legend()


def _throughput(axes: Any, run: LoadRun) -> None:
    """Output tokens of each second, spread over the pieces in which they came."""
    seconds = [0.0] * (int(run.duration_s) + 2)
    for outcome in run.outcomes:
        for moment in outcome.token_times:
            place = min(max(0, int(moment)), len(seconds) - 1)
            seconds[place] += max(1, outcome.output_tokens) / len(outcome.token_times)
    axes.step(range(len(seconds)), seconds, where="post")
    axes.set(xlabel="s since the start", ylabel="output tokens/s")
    axes.grid(alpha=0.3)
