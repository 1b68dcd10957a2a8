"""Published traces of arrivals and lengths: Azure's LLM traces (CSV) and Mooncake's (JSON lines).

Either may be compressed with gzip. Every line is checked; a wrong one is named. Azure (Patel et
al., Splitwise, ISCA 2024): TIMESTAMP, ContextTokens, GeneratedTokens. Mooncake (Qin et al., FAST
2025): timestamp in ms, input_length, output_length, hash_ids: one per block of 512 tokens.
"""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace.bench.load.shapes import BLOCK_LEN, MAX_LEN, Shape, spread
from headrace.errors import HeadraceError

MAX_LINE_BYTES = 4 << 20
MAX_LINES = 10_000_000  # a few compressed megabytes may hold more than memory
GZIP_MAGIC = b"\x1f\x8b"
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class _Row(msgspec.Struct):
    """A line of a Mooncake trace."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def read_trace(path: Path, limit: int | None = None) -> list[Shape]:
    """The first `limit` requests of a trace, in order of time from 0.

    Raises HeadraceError that names the file, the line and what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            shapes = list(_read(file, path.name, limit))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise HeadraceError(f"{path.name}: the compressed data is damaged ({error}).") from error
    if not shapes:
        raise HeadraceError(f"{path.name}: the trace has no requests.")
    shapes.sort(key=lambda shape: shape.at_s)
    first_s = shapes[0].at_s
    return list(spread([replace(shape, at_s=shape.at_s - first_s) for shape in shapes]))


def _read(file: BinaryIO, name: str, limit: int | None) -> Iterator[Shape]:
    is_gzip = file.read(2) == GZIP_MAGIC
    file.seek(0)
    stream: BinaryIO = io.BufferedReader(gzip.GzipFile(fileobj=file)) if is_gzip else file
    lines = _lines(stream, name)
    number, first = next(lines, (1, ""))
    if first.startswith("{"):
        shape = _mooncake(first, name, number)
        rows = (_mooncake(line, name, at) for at, line in lines)
        count = 1
        yield shape
    else:
        columns = _azure_columns(first, name)
        rows = (_azure(line, columns, name, at) for at, line in lines)
        count = 0
    for shape in rows if limit is None else _first(rows, limit - count):
        yield shape


def _first(rows: Iterator[Shape], count: int) -> Iterator[Shape]:
    """Without reading a line further than asked."""
    for _ in range(count):
        shape = next(rows, None)
        if shape is None:
            return
        yield shape


def _lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, str]]:
    """(number, text) of the lines that hold something."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if number > MAX_LINES:
            raise HeadraceError(f"{name}: longer than {MAX_LINES} lines; --limit takes the first.")
        if len(line) > MAX_LINE_BYTES:
            raise HeadraceError(f"{name} line {number}: longer than {MAX_LINE_BYTES >> 20} MiB.")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise HeadraceError(f"{name} line {number}: is no UTF-8 text.") from None
        if text:
            yield number, text


def _azure_columns(header: str, name: str) -> tuple[int, int, int]:
    """Where the three columns are."""
    columns = [column.strip() for column in header.split(",")]
    if not set(AZURE_COLUMNS) <= set(columns):
        raise HeadraceError(
            f"{name} is no trace that is known: it begins neither with a CSV header that has "
            f"{', '.join(AZURE_COLUMNS)} nor with a JSON object."
        )
    time, context, generated = (columns.index(column) for column in AZURE_COLUMNS)
    return time, context, generated


def _azure(line: str, columns: tuple[int, int, int], name: str, number: int) -> Shape:
    fields = line.split(",")
    if len(fields) <= max(columns):
        raise HeadraceError(
            f"{name} line {number}: {len(fields)} fields, at least {max(columns) + 1} are needed."
        )
    time, context, generated = (fields[column].strip() for column in columns)
    return Shape(
        _seconds(time, name, number),
        _length(context, "ContextTokens", name, number),
        _length(generated, "GeneratedTokens", name, number),
    )


def _seconds(text: str, name: str, number: int) -> float:
    """`2023-11-16 18:17:03.9799600`, with or without a zone; more digits than six are cut."""
    whole, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :]
    try:
        moment = datetime.fromisoformat(whole + dot + digits[:6].ljust(6 if dot else 0, "0") + zone)
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return zoned.timestamp()
    except (ValueError, OverflowError):
        raise HeadraceError(
            f"{name} line {number}: TIMESTAMP is {text[:40]!r}, not like 2023-11-16 18:17:03.979."
        ) from None


def _length(text: str, what: str, name: str, number: int) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    return _checked(value, text, what, name, number)


def _checked(value: int, shown: object, what: str, name: str, number: int) -> int:
    """A length; of 0, the 1 that a request needs at least."""
    if not 0 <= value <= MAX_LEN:
        raise HeadraceError(
            f"{name} line {number}: {what} is {str(shown)[:40]!r}, not a whole number from 0 to "
            f"{MAX_LEN}."
        )
    return max(1, value)


def _mooncake(line: str, name: str, number: int) -> Shape:
    try:
        row = msgspec.json.decode(line, type=_Row)
    except (msgspec.DecodeError, RecursionError) as error:
        raise HeadraceError(f"{name} line {number}: {error}.") from None
    if not (math.isfinite(row.timestamp) and 0 <= row.timestamp < 1e15):
        raise HeadraceError(f"{name} line {number}: timestamp is {row.timestamp}, not like 3000.")
    prompt_len = _checked(row.input_length, row.input_length, "input_length", name, number)
    needed = -(-prompt_len // BLOCK_LEN)
    if row.hash_ids and len(row.hash_ids) != needed:
        raise HeadraceError(
            f"{name} line {number}: {len(row.hash_ids)} hash_ids, but a prompt of {prompt_len} "
            f"tokens has {needed} blocks of {BLOCK_LEN}."
        )
    output_len = _checked(row.output_length, row.output_length, "output_length", name, number)
    return Shape(row.timestamp / 1e3, prompt_len, output_len, tuple(row.hash_ids))
