"""Every error a user can cause or must act on. Anything else that escapes is a bug in headrace."""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of all errors meant for a person: one sentence, the thing and the way out."""


class RequestError(HeadraceError):
    """A request that cannot be served as asked.

    `status` is the HTTP status, `param` the dotted field name (`messages.2.content`), `code` the
    OpenAI error code (`context_length_exceeded`, `invalid_value`, `unsupported_parameter`,
    `model_not_found`, ...) or None.
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


class OverloadedError(RequestError):
    """The bounded queue is full; `retry_after_s` tells the client when to come back."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message, code="rate_limit_exceeded", status=429)
        self.retry_after_s = retry_after_s


class ModelFormatError(HeadraceError):
    """A model file is truncated, corrupt, hostile, or uses something that is not supported."""


class ModelNotFoundError(HeadraceError):
    """No source could provide the model; the message lists each source and its cause."""


class ResourceError(HeadraceError):
    """Memory, disk, a port or a processor feature lacks; the message names need and supply."""


class TemplateError(RequestError):
    """The chat template raised, ran out of its limits, or attacked the sandbox."""


class ProgramError(HeadraceError):
    """A program used a prompt in a way that has no meaning (joined twice, failed, not its own)."""


class CancelledBranchError(ProgramError):
    """An operation ended because its branch, its session or what it is part of was cancelled."""
