"""The NumPy twin of every operation, of KV paging and of sampling: the oracle of every backend."""

from headrace.backends.reference.backend import (
    CPU_LIKE,
    EXACT,
    EXACT64,
    LOGITS,
    Numerics,
    ReferenceBackend,
)

__all__ = ["CPU_LIKE", "EXACT", "EXACT64", "LOGITS", "Numerics", "ReferenceBackend"]
