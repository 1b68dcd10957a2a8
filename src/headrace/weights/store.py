"""Our own cache on disk: where it is, atomic publication, free space, locks, verified digests."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from headrace.errors import ResourceError

MARGIN_BYTES = 64 << 20  # Left free on the disk beside what a download needs.
LOCK_STALL_S = 120.0
_CHUNK_BYTES = 1 << 20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
DISK_ERRNOS = _FULL | {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


class Progress(Protocol):
    """Called often and from the pulling thread; must return quickly."""

    def __call__(self, done_bytes: int, total_bytes: int, /) -> None: ...


class SourceError(Exception):
    """One source could not provide the model; the text is the cause shown to the user."""


def no_progress(done_bytes: int, total_bytes: int) -> None:
    """The callback of a pull that nobody watches."""


def cache_dir() -> Path:
    """HEADRACE_CACHE, or `headrace` under XDG_CACHE_HOME or ~/.cache."""
    override = os.environ.get("HEADRACE_CACHE")
    if override:
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def check_free(folder: Path, needed_bytes: int) -> None:
    """Raises ResourceError if the disk of `folder` lacks room for `needed_bytes` and a margin."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed_bytes + MARGIN_BYTES:
        raise ResourceError(
            f"The disk of {str(folder)!r} has {free >> 20} MiB free, but"
            f" {(needed_bytes + MARGIN_BYTES) >> 20} MiB are needed; free some space or set"
            " HEADRACE_CACHE."
        )


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turns a full disk or an unwritable cache into a ResourceError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            free = shutil.disk_usage(folder).free if folder.exists() else 0
            raise ResourceError(
                f"The disk of {str(folder)!r} is full ({free >> 20} MiB free); free some space or"
                " set HEADRACE_CACHE."
            ) from None
        if error.errno in DISK_ERRNOS:
            raise ResourceError(
                f"Cannot write to {str(folder)!r}: {error.strerror}; set HEADRACE_CACHE."
            ) from None
        raise


@contextlib.contextmanager
def single_flight(folder: Path, key: str, *, watched: Path) -> Iterator[None]:
    """One process at a time pulls `key`; the kernel frees the lock of a process that dies.

    Waiting ends with a ResourceError when the other process shows no progress (no change of the
    bytes in `watched`) for LOCK_STALL_S.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{key}.lock").open("w") as file:
        seen_bytes, since = -1, time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now_bytes = folder_bytes(watched)
                if now_bytes != seen_bytes:
                    seen_bytes, since = now_bytes, time.monotonic()
                elif time.monotonic() - since > LOCK_STALL_S:
                    raise ResourceError(
                        f"Another process holds the lock of {key!r} in {str(folder)!r} and makes"
                        " no progress; end it and try again."
                    ) from None
                time.sleep(0.2)
        yield


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below; files that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def publish(temporary: Path, target: Path) -> None:
    """Make `temporary` durable, then visible as `target` in one step."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def is_verified(path: Path, sha256: str) -> bool:
    """Whether the file has this digest. It is computed once; a stamp with size and modification
    time remembers it, so that a start does not read the whole file."""
    path = path.resolve()
    stamp = _stamp_path(path)
    identity = _identity(path)
    with contextlib.suppress(OSError, ValueError):
        if json.loads(stamp.read_bytes()) == {**identity, "sha256": sha256}:
            return True
    if file_sha256(path) != sha256:
        return False
    if _identity(path) == identity:
        write_stamp(path, sha256)
    return True


def write_stamp(path: Path, sha256: str) -> None:
    """Remember a digest that was just computed. A cache that cannot be written only costs time."""
    path = path.resolve()
    stamp = _stamp_path(path)
    with contextlib.suppress(OSError):
        stamp.parent.mkdir(parents=True, exist_ok=True)
        temporary = stamp.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps({**_identity(path), "sha256": sha256}))
        temporary.replace(stamp)


def drop_stamp(path: Path) -> None:
    _stamp_path(path.resolve()).unlink(missing_ok=True)


def _stamp_path(resolved: Path) -> Path:
    key = hashlib.sha256(os.fsencode(resolved)).hexdigest()[:32]
    return cache_dir() / "stamps" / f"{key}.json"


def _identity(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
