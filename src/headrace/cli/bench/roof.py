"""`headrace bench roof`: what memory and arithmetic of this machine can do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from headrace.cli import console, options
from headrace.cli.params import Opt, integer, size

if TYPE_CHECKING:
    from headrace.bench.roof import Rate

HEAD = ["measurement", "all threads", "one alone, least", "most", "unit", "from"]


def roof(
    working_set: Annotated[
        list[int] | None,
        Opt(
            "--working-set",
            "Memory to read again and again; may be repeated. Default: 64M, 96M, 256M and 1G.",
            "SIZE",
            size,
        ),
    ] = None,
    repeat: Annotated[
        int, Opt("--repeat", "Runs of each measurement; the best counts.", "N", integer(1, 1000))
    ] = 5,
    threads: options.Threads = None,
    isa: options.Isa = None,
    json: options.Json = False,
) -> None:
    """Measure what the machine can do: memory, multiply-adds.

    Each thread alone while the others sleep, then all at once; no more threads than there are
    processors. What a working set smaller than the last-level cache measures is that cache.
    """
    from headrace.bench.roof import WORKING_SETS, Roof

    sets = working_set or list(WORKING_SETS)
    probes = Roof(threads=threads, isa=isa, max_bytes=max(sets))
    smallest = probes.threads * 4096
    if min(sets) < smallest:
        console.usage_error(f"A working set is at least {smallest} bytes, a page for each thread.")
    cache = probes.cache_bytes
    known = "of unknown size" if cache is None else console.human_bytes(cache)
    console.say(f"{probes.threads} threads, kernels {probes.isa}, last-level cache {known}.")
    rates = list(probes.rates(sets, repeat))
    if json:
        console.print_json(
            {
                "isa": probes.isa,
                "threads": probes.threads,
                "last_level_cache_bytes": cache,
                "rates": [asdict(rate) for rate in rates],
            }
        )
    else:
        console.print_table(HEAD, [_row(rate) for rate in rates])


def _row(rate: Rate) -> list[str]:
    values = (rate.together, min(rate.alone), max(rate.alone))
    return [rate.name, *(f"{value:.1f}" for value in values), rate.unit, rate.where]
