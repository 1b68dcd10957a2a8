"""The NumPy twin of every operation, of KV paging and of sampling: the oracle of every backend."""

from headrace.backends.reference.backend import (
    CPU_LIKE,
    CPU_LIKE_INT8_KV,
    EXACT,
    EXACT64,
    LOGITS,
    Numerics,
    ReferenceBackend,
)

__all__ = [
    "CPU_LIKE",
    "CPU_LIKE_INT8_KV",
    "EXACT",
    "EXACT64",
    "LOGITS",
    "Numerics",
    "ReferenceBackend",
]
