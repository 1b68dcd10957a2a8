"""The compute lease of a server (native/threads/compute_lease.h): which one its workers share.

Workers whose threads would not fit on the processors side by side take turns, also those of two
servers of one user: they meet in a file of shared memory that is named after the processors. A
folder or file there that is not this user's own, and his alone, is left alone; the server then has
a lease of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import stat
import time
from pathlib import Path

from headrace import _native

logger = logging.getLogger("headrace.gateway")

# Memory, not a disk; gone after a restart of the machine.
SHARED_MEMORY = Path("/dev/shm")
_FORMAT = 1
# Others hold the file's lock for as long as it takes to look at a page, unless they are stopped.
LOCK_PATIENCE_S = 2.0


def needs_lease(threads: int | None) -> bool:
    """False when at least two workers of so many threads have room side by side."""
    granted = _native.default_threads()
    return 2 * (threads or granted) > granted


def open_lease(threads: int | None, base: Path = SHARED_MEMORY) -> int | None:
    """A descriptor for every worker, closed on exec; None when they need not take turns."""
    if not needs_lease(threads):
        return None
    try:
        return _open_shared(base)
    except (OSError, RuntimeError) as error:
        logger.warning("compute is not shared with other servers: %s", error)
    try:
        return _native.ComputeLease.make()
    except RuntimeError as error:
        logger.warning("workers will not take turns: %s", error)
        return None


def file_name() -> str:
    """The same for all processes that may run on the same processors and see the same threads."""
    processors = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    digest = hashlib.sha256(processors.encode()).hexdigest()[:16]
    # The owner is a thread id, which means something within one namespace.
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"compute-{_FORMAT}-{namespace}-{digest}"


def _open_shared(base: Path) -> int:
    if not base.is_dir():
        raise OSError(f"there is no folder {base}")
    folder = base / f"headrace-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _require_private(os.fstat(folder_fd), str(folder))
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(file_name(), flags, 0o600, dir_fd=folder_fd)
    finally:
        os.close(folder_fd)
    try:
        found = os.fstat(fd)
        _require_private(found, f"{folder}/{file_name()}")
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise OSError(f"{folder}/{file_name()} is no ordinary file")
        _format_if_new(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _require_private(found: os.stat_result, path: str) -> None:
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise OSError(f"{path} belongs to another user or is open to others")


def _format_if_new(fd: int) -> None:
    """Servers that start at the same time do this one after the other."""
    _lock(fd)
    try:
        try:
            _native.ComputeLease(fd)
        except ValueError:
            _native.ComputeLease.format(fd)
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _lock(fd: int) -> None:
    """Raises OSError when another process does not let go of the file."""
    end_s = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise OSError(f"another process keeps {file_name()} locked") from None
        time.sleep(0.01)
