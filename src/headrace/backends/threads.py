"""The threads of a worker, or one sentence on why there are none."""

from __future__ import annotations

from headrace import _native
from headrace.errors import ResourceError


def make_pool(
    threads: int | None = None, lease: _native.ComputeLease | None = None
) -> _native.ThreadPool:
    """A pool of `threads`, or of as many as the affinity mask and the cgroup grant.

    Raises ResourceError for a number that cannot be, or that the system refuses to start.
    """
    count = threads or _native.default_threads()
    try:
        return _native.ThreadPool(count, lease)
    except ValueError as error:
        raise ResourceError(f"{error}.") from error
    except RuntimeError as error:
        raise ResourceError(
            f"{count} threads cannot be started ({error}); use fewer: --threads."
        ) from error
