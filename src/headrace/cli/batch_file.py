"""The files of `headrace batch`: OpenAI's batch lines in, one line per finished request out."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from headrace.cli.console import say
from headrace.errors import HeadraceError

URLS = frozenset({"/v1/chat/completions", "/v1/completions"})
MAX_LINE_BYTES = 10 << 20
MAX_TRIES = 5
TOO_MANY_REQUESTS = 429
SERVER_ERROR = 500
# How every line of an output begins: what a torn one is known by.
ANSWER_START = b'{"id": "batch_req_'
# A line of progress is said at most this often.
REPORT_S = 2.0

# (path, JSON body) -> (status, retry-after in seconds or None, JSON body).
Post = Callable[[str, bytes], Awaitable[tuple[int, float | None, bytes]]]


@dataclass(slots=True)
class BatchInput:
    """A checked input file. Lines are read again when their turn comes, so memory stays small.

    `served_names`: model as the lines name it -> id under which it is served.
    """

    path: Path
    model: str | None
    done: frozenset[str]
    num_lines: int
    num_left: int
    models: frozenset[str]
    served_names: dict[str, str] = field(default_factory=dict)

    def requests(self) -> Iterator[tuple[str, str, bytes]]:
        """(custom_id, url, body) of every line that is not answered yet."""
        for _, line in _lines(self.path):
            if line["custom_id"] in self.done:
                continue
            body = dict(line["body"])
            body["model"] = self.served_names[self.model or body["model"]]
            yield line["custom_id"], line["url"], json.dumps(body).encode()


def answered_ids(path: Path, in_path: Path) -> frozenset[str]:
    """Ids that the output already answers. A line that was cut off halfway is taken away.

    Raises HeadraceError, and leaves the file as it is, if it is anything but a batch's output.
    """
    if not path.exists():
        return frozenset()
    if not path.is_file():
        raise HeadraceError(f"{path} is no regular file, so no batch could be resumed from it.")
    if in_path.exists() and path.samefile(in_path):
        raise HeadraceError(f"{path} is the input; name another output file.")
    ids = set()
    with _open(path, "r+b") as file:
        whole_bytes = 0
        for number, line in enumerate(file, 1):
            is_torn = not line.endswith(b"\n")
            answered_id = None if is_torn else _answered_id(line)
            if is_torn and _is_torn_answer(line):
                file.truncate(whole_bytes)
            elif answered_id is not None:
                ids.add(answered_id)
            else:
                raise HeadraceError(
                    f"{path} line {number} is no answer of a batch; name another output file."
                )
            whole_bytes += len(line)
    return frozenset(ids)


def _answered_id(line: bytes) -> str | None:
    try:
        answer = json.loads(line)
        return str(answer["custom_id"]) if "response" in answer else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _is_torn_answer(line: bytes) -> bool:
    return line.startswith(ANSWER_START[: len(line)])


def open_output(path: Path) -> BinaryIO:
    """The output, to append to; without a buffer, so that an answer is there once it is written."""
    return _open(path, "ab", buffering=0)


def _open(path: Path, mode: str, buffering: int = -1) -> BinaryIO:
    try:
        return cast(BinaryIO, path.open(mode, buffering))
    except OSError as error:
        raise HeadraceError(f"Cannot write {path}: {error.strerror}.") from None


def read_input(path: Path, model: str | None, done: frozenset[str]) -> BatchInput:
    """Check every line before anything is loaded. Raises HeadraceError naming the first bad one."""
    ids: set[str] = set()
    models: set[str] = set()
    num_left = 0
    for number, line in _lines(path):
        custom_id = line["custom_id"]
        if custom_id in ids:
            raise HeadraceError(f"{path} line {number}: custom_id {custom_id!r} appears twice.")
        ids.add(custom_id)
        named = model or line["body"].get("model")
        if not isinstance(named, str) or not named:
            raise HeadraceError(f"{path} line {number}: body names no model; or give --model.")
        if custom_id not in done:
            num_left += 1
            models.add(named)
    if not ids:
        raise HeadraceError(f"{path} holds no request.")
    return BatchInput(path, model, done, len(ids), num_left, frozenset(models))


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise HeadraceError(f"{path} line {number} is longer than 10 MiB.")
                if line.strip():
                    yield number, _checked(path, number, line)
    except OSError as error:
        raise HeadraceError(f"Cannot read {path}: {error.strerror}.") from None


def _checked(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise HeadraceError(f"{path} line {number} is not JSON.") from None
    problem = _problem(value)
    if problem is not None:
        raise HeadraceError(f"{path} line {number}: {problem}")
    checked: dict[str, Any] = value
    return checked


def _problem(value: object) -> str | None:
    if not isinstance(value, dict):
        return "not a JSON object."
    if not isinstance(value.get("custom_id"), str) or not value["custom_id"]:
        return "custom_id must be a text."
    if any("\ud800" <= character <= "\udfff" for character in value["custom_id"]):
        return "custom_id holds half of a surrogate pair, which no file can hold."
    if value.get("method", "POST") != "POST":
        return "method must be POST."
    if value.get("url") not in URLS:
        return f"url must be one of {', '.join(sorted(URLS))}."
    if not isinstance(value.get("body"), dict):
        return "body must be a JSON object."
    if value["body"].get("stream"):
        return "a batch cannot stream; leave out stream."
    return None


class BatchRunner:
    """Sends requests, `num_at_once` in flight, and writes each answer as one whole line."""

    def __init__(self, post: Post, out: BinaryIO, *, num_at_once: int) -> None:
        self._post = post
        self._out = out
        self._num_at_once = num_at_once
        self._num_done = 0
        self._num_failed = 0
        self._reported_s = time.monotonic()

    async def run(self, work: BatchInput) -> int:
        """The number of requests without an answer; they are not in the output.

        Raises HeadraceError if the output cannot be written to its end.
        """
        pending = work.requests()
        workers = min(self._num_at_once, work.num_left)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._drain(pending, work.num_left))
        except ExceptionGroup as errors:  # the first one ended the others
            raise errors.exceptions[0] from None
        say(f"{self._num_done} of {work.num_left} requests answered.")
        return self._num_failed

    async def _drain(self, pending: Iterator[tuple[str, str, bytes]], total: int) -> None:
        for custom_id, url, body in pending:
            status, answer = await self._ask(url, body)
            if status >= SERVER_ERROR or status == TOO_MANY_REQUESTS:
                self._num_failed += 1
                say(f"{custom_id}: {_message(answer)}")
                continue
            self._write(custom_id, status, answer)
            self._num_done += 1
            if time.monotonic() - self._reported_s >= REPORT_S:
                self._reported_s = time.monotonic()
                say(f"{self._num_done} of {total} requests answered.")

    async def _ask(self, url: str, body: bytes) -> tuple[int, bytes]:
        """Status and body; a full queue is waited for as the server advises."""
        for _ in range(MAX_TRIES - 1):
            status, retry_after_s, answer = await self._post(url, body)
            if retry_after_s is None:
                return status, answer
            await asyncio.sleep(retry_after_s)
        status, _, answer = await self._post(url, body)
        return status, answer

    def _write(self, custom_id: str, status: int, answer: bytes) -> None:
        body = json.loads(answer)
        request_id = body.get("id") or f"req_{custom_id}"
        line = {
            "id": f"batch_req_{request_id}",
            "custom_id": custom_id,
            "response": {"status_code": status, "request_id": request_id, "body": body},
            "error": None,
        }
        left = memoryview(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        try:
            while left:
                left = left[self._out.write(left) :]
        except OSError as error:
            raise HeadraceError(
                f"Cannot write an answer: {error.strerror}; mend that and run the same command."
            ) from None


def _message(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return "no answer"
