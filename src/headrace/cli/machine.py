"""What this machine grants the process, for `doctor` and for advice: cores, memory, compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from enum import StrEnum

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


def usable_cores() -> int:
    """Cores of the affinity mask, bounded by the cgroup's quota."""
    from headrace import _native

    return _native.default_threads()


def available_bytes() -> int:
    """Memory this process may still take, within the machine and its cgroup."""
    from headrace import _native

    return _native.memory_info().available_bytes


def needed_bytes(model_bytes: int) -> int:
    """Weights (packed lossless: at most 3 % more than the file), process, and the least cache."""
    return int(model_bytes * 1.03) + PROCESS_BYTES + LEAST_KV_BYTES


def model_fit(model_bytes: int, memory_bytes: int) -> Fit:
    needed = needed_bytes(model_bytes)
    if needed > memory_bytes:
        return Fit.NO
    return Fit.YES if needed <= memory_bytes * COMFORTABLE_SHARE else Fit.TIGHT


def compiler_version() -> str | None:
    """First line of `g++ --version` (or $CXX), or None when there is none."""
    command = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if command is None:
        return None
    try:
        listed = subprocess.run(
            [command, "--version"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return listed.stdout.split("\n", 1)[0] or None
