"""Whether a model fits into the memory at hand, by the size of its file alone."""

from __future__ import annotations

from enum import StrEnum

from headrace.weights.catalog import CATALOG, CatalogEntry

# The process itself, and the least KV cache that is worth starting with.
PROCESS_BYTES = 150 << 20
LEAST_KV_BYTES = 256 << 20
# Beyond this share of the free memory there is no room for a useful cache.
COMFORTABLE_SHARE = 0.75


class Fit(StrEnum):
    """Whether a model can be served here."""

    YES = "yes"
    TIGHT = "tightly"
    NO = "no"


def needed_bytes(model_bytes: int) -> int:
    """Weights (packed lossless: at most 3 % more than the file), process, and the least cache."""
    return int(model_bytes * 1.03) + PROCESS_BYTES + LEAST_KV_BYTES


def model_fit(model_bytes: int, memory_bytes: int) -> Fit:
    """Fit of a model file of `model_bytes` into `memory_bytes` of free memory."""
    needed = needed_bytes(model_bytes)
    if needed > memory_bytes:
        return Fit.NO
    return Fit.YES if needed <= memory_bytes * COMFORTABLE_SHARE else Fit.TIGHT


def better_models(than_bytes: int, memory_bytes: int, count: int = 3) -> list[CatalogEntry]:
    """Catalog entries larger than `than_bytes` that fit well, spread evenly from small to large."""
    fitting = sorted(
        (e for e in CATALOG if e.size_bytes > than_bytes
         and model_fit(e.size_bytes, memory_bytes) is Fit.YES),
        key=lambda entry: entry.size_bytes,
    )  # fmt: skip
    if len(fitting) <= count:
        return fitting
    return [fitting[i * (len(fitting) - 1) // (count - 1)] for i in range(count)]
