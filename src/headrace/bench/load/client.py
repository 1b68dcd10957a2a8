"""One streamed completion over a connection of its own, every moment taken as bytes arrive."""

from __future__ import annotations

import asyncio
import errno
import ssl
import time
from dataclasses import dataclass, field
from typing import cast

import msgspec

from headrace.bench.load.wire import Answer, BadAnswer
from headrace.errors import HeadraceError
from headrace.urls import Target

REFUSED = "connection refused"
TIMEOUT = "timeout"
DISCONNECTED = "ended early"
BAD_ANSWER = "bad answer"
UNFINISHED = "unfinished"
MAX_MODELS_BYTES = 8 << 20
_CLOSE = (("Connection", "close"),)


@dataclass(slots=True)
class Outcome:
    """What became of one request. Moments in seconds since the run began; `error` "" is success.

    `scheduled_s` is when it should have been sent: latencies count from there, so that a generator
    that lags, or a server that does not accept, cannot hide.
    """

    index: int
    scheduled_s: float
    prompt_len: int
    output_len: int
    sent_s: float | None = None
    end_s: float | None = None
    token_times: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str = ""
    message: str = ""

    @property
    def late_s(self) -> float | None:
        """How late the generator was."""
        return None if self.sent_s is None else self.sent_s - self.scheduled_s

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token."""
        return self.token_times[0] - self.scheduled_s if self.token_times else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first."""
        if self.output_tokens < 2 or len(self.token_times) < 2:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        return None if self.end_s is None else self.end_s - self.scheduled_s


class _Connection(asyncio.Protocol):
    """Sends one request and reads its answer; `done` ends with it, or with what went wrong."""

    def __init__(self, data: bytes, loop: asyncio.AbstractEventLoop) -> None:
        self._data = data
        self._transport: asyncio.Transport | None = None
        self.answer = Answer()
        self.done: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._transport.write(self._data)
        self._data = b""

    def data_received(self, data: bytes) -> None:
        if self.done.done():
            return
        try:
            self.answer.feed(data, time.monotonic())
        except BadAnswer as error:
            self.done.set_exception(error)
            return
        if self.answer.is_done or self.answer.is_complete:
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.answer.end()
        if not self.done.done():
            self.done.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Client:
    """Sends requests to one server. Moments are those of time.monotonic()."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context() if target.is_tls else None

    async def complete(self, path: str, body: bytes, outcome: Outcome, start_s: float) -> None:
        """Run one request to its end and note everything in `outcome`. Never raises but for
        cancellation, which leaves what is known."""
        request = self._target.request("POST", path, body, _CLOSE)
        connection = _Connection(request, asyncio.get_running_loop())
        outcome.error = UNFINISHED
        outcome.sent_s = time.monotonic() - start_s
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._connect(connection)
                await connection.done
            outcome.end_s = time.monotonic() - start_s
            _judge(connection.answer, outcome)
        except TimeoutError:
            outcome.error, outcome.message = TIMEOUT, f"no end within {self._timeout_s:g} s"
        except BadAnswer as error:
            outcome.error, outcome.message = BAD_ANSWER, str(error)
        except OSError as error:
            outcome.error, outcome.message = _kind_of(error), error.strerror or str(error)
        finally:
            connection.close()
            _note(connection.answer, outcome, start_s)

    async def models(self) -> list[str]:
        """Ids of GET /v1/models. Raises HeadraceError for a server that cannot be asked."""
        target = self._target
        try:
            async with asyncio.timeout(min(self._timeout_s, 20.0)):
                reader, writer = await asyncio.open_connection(
                    target.host, target.port, ssl=self._tls
                )
                try:
                    writer.write(target.request("GET", "/v1/models", headers=_CLOSE))
                    data = await reader.read(1 << 20)
                    while more := await reader.read(1 << 20):
                        data += more
                        if len(data) > MAX_MODELS_BYTES:
                            raise HeadraceError(f"{target.url} tells its models without end.")
                finally:
                    writer.close()
        except TimeoutError:
            raise HeadraceError(f"{target.url} does not answer; is the server running?") from None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise HeadraceError(
                f"{target.url} cannot be reached ({reason}); is the server running?"
            ) from None
        return _model_ids(target.url, data)

    async def _connect(self, connection: _Connection) -> None:
        target = self._target
        await asyncio.get_running_loop().create_connection(
            lambda: connection, target.host, target.port, ssl=self._tls
        )


def _judge(answer: Answer, outcome: Outcome) -> None:
    """Whether an answer that has ended is a success."""
    if answer.status == 200:
        outcome.error = "" if answer.is_done else DISCONNECTED
        outcome.message = "" if answer.is_done else "the stream ended without an end of its answer"
    elif answer.status:
        outcome.error, outcome.message = f"HTTP {answer.status}", answer.error_message
    else:
        outcome.error, outcome.message = DISCONNECTED, "the connection ended without an answer"


def _note(answer: Answer, outcome: Outcome, start_s: float) -> None:
    """Moments and counts; without the server's counts every event counts as one token."""
    outcome.token_times = [moment - start_s for moment in answer.token_times]
    outcome.output_tokens = len(answer.token_times)
    if answer.usage is not None:
        outcome.prompt_tokens = max(0, answer.usage.prompt_tokens)
        outcome.output_tokens = max(0, answer.usage.completion_tokens)


def _kind_of(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return REFUSED
    if isinstance(error, ConnectionError):
        return DISCONNECTED
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return "too many connections here"
    return "no connection"


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _model_ids(url: str, answer: bytes) -> list[str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ")
    if len(status) < 2 or not status[0].startswith(b"HTTP/"):
        raise HeadraceError(f"{url} does not speak HTTP; is it a server of models?")
    if status[1] == b"401":
        raise HeadraceError(f"{url} wants a key; give --api-key or set HEADRACE_API_KEY.")
    start, end = body.find(b"{"), body.rfind(b"}") + 1  # whatever the framing
    try:
        return [model.id for model in msgspec.json.decode(body[start:end], type=_Models).data]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        code = status[1].decode("latin-1")[:10]
        raise HeadraceError(
            f"{url} has no /v1/models (status {code}); is it an OpenAI-compatible server?"
        ) from None
