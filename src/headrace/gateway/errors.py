"""Errors of the gateway itself, beside those a request can cause."""

from __future__ import annotations

from headrace.errors import RequestError
from headrace.worker.frames import Failed


class UnavailableError(RequestError):
    """The model cannot answer now. `retry_after_s` says when to come back, None: do not."""

    def __init__(
        self, message: str, *, code: str, status: int = 503, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, code=code, status=status)
        self.retry_after_s = retry_after_s


class FailedError(RequestError):
    """A worker's Failed frame as an exception."""

    def __init__(self, frame: Failed) -> None:
        super().__init__(frame.message, param=frame.param, code=frame.code, status=frame.status)
        self.retry_after_s = frame.retry_after_s
