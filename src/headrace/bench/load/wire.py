"""What arrives on a connection, as it arrives: an HTTP answer, its events, and their moments."""

from __future__ import annotations

from typing import Any

import httptools
import msgspec

MAX_LINE_BYTES = 8 << 20
MAX_HEADER_BYTES = 64 << 10
MAX_ERROR_BYTES = 16 << 10
MESSAGE_LEN = 200


class BadAnswer(Exception):
    """The server said what no OpenAI-compatible server says."""


class Usage(msgspec.Struct):
    """The server's own counts of tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Chunk)


class Answer:
    """One answer, fed with bytes and the moment they came. Raises BadAnswer.

    `token_times`: when each piece of text arrived. `is_done`: the stream ended as it should.
    """

    def __init__(self) -> None:
        self.status = 0
        self.token_times: list[float] = []
        self.usage: Usage | None = None
        self.is_done = False
        self.is_complete = False
        self._finished = False
        self._now_s = 0.0
        self._header_bytes = 0
        self._content_type = b""
        self._rest = b""
        self._problem: BadAnswer | None = None
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes, now_s: float) -> None:
        """Bytes of the connection, in order."""
        self._now_s = now_s
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise self._problem or BadAnswer(f"it is no HTTP ({error})") from None
        except (BadAnswer, MemoryError) as error:
            raise BadAnswer(str(error)) from None
        if self.status == 0:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._fail(f"its headers are longer than {MAX_HEADER_BYTES >> 10} KiB")
        if self._problem is not None:
            raise self._problem

    def end(self) -> None:
        """The connection is closed: an answer without a length ends with it."""
        if self._finished:
            self.is_done = True

    @property
    def error_message(self) -> str:
        """What the body of a refusal says, shortened."""
        body = self._rest[:MAX_ERROR_BYTES]
        try:
            found = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _shown(body.decode("utf-8", "replace"))
        return _message_of(found)

    # ---- called by the parser; an exception here would be told as one of the parser's ----

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._content_type = value.lower()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status == 200 and not self._content_type.startswith(b"text/event-stream"):
            kind = _shown(self._content_type.decode("latin-1")) or "of no type"
            self._fail(f"it is no stream of events but {kind}")

    def on_body(self, body: bytes) -> None:
        if self._problem is not None:
            return
        if self.status != 200:
            self._rest = (self._rest + body)[:MAX_ERROR_BYTES]
            return
        *lines, self._rest = (self._rest + body).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self._fail(f"it has a line longer than {MAX_LINE_BYTES >> 20} MiB")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    def on_message_complete(self) -> None:
        self.is_complete = True
        self.end()

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            chunk = _DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._fail(f"an event of it is no chunk of a completion ({_shown(str(error))})")
            return
        if chunk.error is not None:
            self._fail(f"an error came in the stream: {_message_of({'error': chunk.error})}")
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices:
            delta = choice.delta
            text = choice.text or (delta and (delta.content or delta.reasoning_content))
            if text:
                self.token_times.append(self._now_s)
            self._finished = self._finished or choice.finish_reason is not None

    def _fail(self, message: str) -> None:
        self._problem = self._problem or BadAnswer(message)


def _message_of(value: Any) -> str:
    """`error.message`, `error` or the whole."""
    found = value.get("error", value) if isinstance(value, dict) else value
    found = found.get("message", found) if isinstance(found, dict) else found
    return _shown(str(found))


def _shown(text: str) -> str:
    """One printable line."""
    kept = "".join(c if c.isprintable() else " " for c in text[: 2 * MESSAGE_LEN])
    return " ".join(kept.split())[:MESSAGE_LEN]
