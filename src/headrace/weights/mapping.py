"""A read-only file mapping that knows when its file was changed under it."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from pathlib import Path

from headrace.errors import ModelFormatError, ModelNotFoundError


class MappedFile:
    """One regular file, mapped read-only. Owns the mapping; views are valid until `close`.

    A file that is truncated after it was mapped reads as zeros up to its page's end and as SIGBUS
    beyond; `check_unchanged` compares size and modification time with those at opening, so a reader
    that calls it after its last read never returns such data.
    """

    def __init__(self, path: Path) -> None:
        """Raises ModelNotFoundError if `path` cannot be opened, ModelFormatError if it is no file
        or is empty."""
        self.path = path
        try:
            # Non-blocking: opening a FIFO must not wait for a writer.
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            cause = error.strerror if isinstance(error, OSError) else "the name holds a NUL byte"
            raise ModelNotFoundError(f"Cannot open {path.name!r}: {cause}.") from None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise ModelFormatError(f"{path.name!r} is not a regular file.")
            if status.st_size == 0:
                raise ModelFormatError(f"{path.name!r} is empty; download it again.")
            self._map = mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self._identity = _identity(status)
        self.size = status.st_size
        self.view = memoryview(self._map)

    def check_unchanged(self) -> None:
        """Raises ModelFormatError if the file's size or content time differs from opening's."""
        if _identity(os.fstat(self._fd)) != self._identity:
            raise ModelFormatError(
                f"{self.path.name!r} changed while it was being read; wait until it is complete."
            )

    def release(self, start: int, num_bytes: int) -> None:
        """Drop the whole pages inside [start, start + num_bytes); they come back on access."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (start + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        """Idempotent. If a view is still alive, the mapping goes with the last view."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        self.view.release()
        # A caller's view may outlive us; unmapping under it would be a crash.
        with contextlib.suppress(BufferError):
            self._map.close()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns
