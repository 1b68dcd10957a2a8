"""`headrace bench kernels`: single kernels beside the machine's limits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from headrace.cli import console, options
from headrace.cli.params import Opt, integer

HEAD = ["kernel", "best", "unit", "roof", "share"]


def kernels(
    repeat: Annotated[
        int, Opt("--repeat", "Runs of each measurement; the best counts.", "N", integer(1, 1000))
    ] = 5,
    threads: options.Threads = None,
    isa: options.Isa = None,
    json: options.Json = False,
) -> None:
    """Measure single kernels beside what the machine can do.

    Products at one row, attention of a decoded token, packing and row work by the bytes they move;
    products at more rows and attention of a prompt by their multiply-adds.
    """
    from headrace.bench.kernels import KernelRates

    bench = KernelRates(threads=threads, isa=isa, repeat=repeat)
    console.say(f"{bench.threads} threads, kernels {bench.isa}.")
    found = list(bench.rates())
    if json:
        rates = [asdict(rate) for rate in found]
        console.print_json({"isa": bench.isa, "threads": bench.threads, "rates": rates})
    else:
        rows = [
            [rate.name, f"{rate.value:.1f}", rate.unit, f"{rate.roof:.1f}", f"{rate.share:.0%}"]
            for rate in found
        ]
        console.print_table(HEAD, rows)
