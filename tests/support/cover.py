"""Pairwise cover of a product of factors: every pair of levels occurs in some row."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

Row = dict[str, object]


def row_name(row: Row) -> str:
    """The levels of a row, as a test id."""
    return "-".join(str(v) for v in row.values())


def full_product(factors: Mapping[str, Sequence[object]]) -> list[Row]:
    """Every combination."""
    names = list(factors)
    return [dict(zip(names, c, strict=True)) for c in itertools.product(*factors.values())]


def pairwise_cover(
    factors: Mapping[str, Sequence[object]], seed: int = 0, apart: Row | None = None
) -> list[Row]:
    """Few rows in which every pair of levels of two factors occurs (greedy, seeded), but for the
    levels of two factors in `apart`, which never meet."""
    names, rng = list(factors), random.Random(seed)
    never = {n: factors[n].index(level) for n, level in (apart or {}).items()}
    never_pairs = _pairs(never, [n for n in names if n in never])
    open_pairs = {
        (a, x, b, y)
        for a, b in itertools.combinations(names, 2)
        for x in range(len(factors[a]))
        for y in range(len(factors[b]))
    } - never_pairs
    rows: list[Row] = []
    while open_pairs:
        best: dict[str, int] = {}
        best_gain = -1
        for _ in range(60):
            row = {n: rng.randrange(len(factors[n])) for n in names}
            a, x, b, y = rng.choice(sorted(open_pairs))
            row[a], row[b] = x, y
            pairs = _pairs(row, names)
            gain = len(pairs & open_pairs)
            if gain > best_gain and not pairs & never_pairs:
                best, best_gain = row, gain
        open_pairs -= _pairs(best, names)
        rows.append({n: factors[n][best[n]] for n in names})
    return rows


def _pairs(row: Mapping[str, int], names: Sequence[str]) -> set[tuple[str, int, str, int]]:
    return {(a, row[a], b, row[b]) for a, b in itertools.combinations(names, 2)}
