"""What this machine grants the process, for `doctor` and for advice: cores, memory, compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def usable_cores() -> int:
    """Cores of the affinity mask, bounded by the cgroup's quota."""
    from headrace import _native

    return _native.default_threads()


def available_bytes() -> int:
    """Memory this process may still take, within the machine and its cgroup."""
    from headrace import _native

    return _native.memory_info().available_bytes


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


def file_bytes(model: str) -> int:
    """Bytes of a model's files by name or path; 0 for a Hub model that is not here."""
    from headrace.weights.open import open_source
    from headrace.weights.pull import info

    path = Path(model).expanduser()
    if not path.exists():
        return info(model).num_bytes
    source = open_source(path)
    try:
        return source.file_bytes
    finally:
        source.close()
