"""Strict JSON: typed decoding, and what a typed decoder lets pass (duplicates, depth, number)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from headrace.api.errors import clip
from headrace.errors import RequestError

T = TypeVar("T")

MAX_DEPTH = 64
MAX_VALUES = 1 << 17
# Bodies above this size are decoded in a thread.
LARGE_BYTES = 64 << 10
_LONG_STRING = 256
_AT = re.compile(r" - at (?:`key` in )?`\$(.*)`$")
_NUMBERS = re.compile(rb"\[[\s\d,-]{64,}+\]")
_INDEX = re.compile(r"\[(\d+|\.\.\.)\]")


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> tuple[T, dict[str, Any]]:
    """The typed value, and the fields of the outermost object (long strings in it are cut off).

    Raises RequestError 400 that names the field. Takes time linear in the body.
    """
    try:
        short = _shortened(body)
        value = decoder.decode(body)
        return value, _check(short)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if "truncated" in str(error) and body.rstrip().endswith(b"}"):
            # What it says of half a surrogate pair.
            raise _malformed(
                "a string or bracket does not end, or has half a \\ud8.. pair"
            ) from None
        raise _malformed(str(error)) from None
    except RecursionError:
        raise _malformed(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise _malformed(f"{error.msg} at byte {error.pos}") from None
    except ValueError:
        raise _malformed("a number is too large") from None


def _shortened(body: bytes) -> bytes:
    """The body without its long strings and lists of numbers. Refuses one of too many values."""
    short = body if len(body) <= LARGE_BYTES else b"".join(_cut_long_strings(body))
    if short.count(b",") > MAX_VALUES:
        raise _malformed(
            f"it holds more than {MAX_VALUES} values; send fewer token ids at a time, or text"
        )
    return _NUMBERS.sub(b"[]", short)


def _check(short: bytes) -> dict[str, Any]:
    """Refuse duplicate keys and deep nesting; returns the fields."""
    value = json.loads(short, object_pairs_hook=_no_duplicates)
    if short.count(b"[") + short.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    if not isinstance(value, dict):
        raise RequestError("The body must be a JSON object.")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise RequestError(
                    f"The field {clip(name, 100)!r} is given twice.", param=clip(name, 100)
                )
            seen.add(name)
    return made


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for item in level:
            if type(item) is dict:
                below.extend(v for v in item.values() if type(v) is dict or type(v) is list)
            elif type(item) is list:
                below.extend(v for v in item if type(v) is dict or type(v) is list)
        if not below:
            return
        level = below
    raise _malformed(f"it is nested deeper than {MAX_DEPTH} levels")


def _cut_long_strings(body: bytes) -> Iterator[bytes]:
    """The body with long strings shortened, so that checking it costs little.

    Only short calls: one that takes long would keep every other thread from running.
    """
    # Same length, but every quote in it begins or ends a string.
    plain = body.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    find = plain.find
    done = 0
    while (start := find(b'"', done)) >= 0:
        end = find(b'"', start + 1)
        if end < 0:
            raise _malformed("a string does not end")
        if end - start > _LONG_STRING:
            yield body[done : start + 1]
            yield b'..."'
            if body[end + 1 : end + 33].lstrip().startswith(b":"):
                raise RequestError(f"A field's name is longer than {_LONG_STRING} bytes.")
        else:
            yield body[done : end + 1]
        done = end + 1
    yield body[done:]


def _malformed(reason: str) -> RequestError:
    return RequestError(f"The body is not acceptable JSON: {clip(reason, 300)}.")


def _invalid_field(message: str) -> RequestError:
    """The message of msgspec, its path as `messages.2.content`."""
    found = _AT.search(message)
    param = None
    if found is not None:
        message = message[: found.start()]
        # The path of an item of an object ends with [...]: msgspec does not name its key.
        path = found[1].removesuffix("[...]")
        param = _INDEX.sub(r".\1", path).lstrip(".") or None
    missing = re.search(r"missing required field `(\w+)`", message)
    if missing is not None:
        param = f"{param}.{missing[1]}" if param else missing[1]
    where = f"{clip(param, 200)}: " if param else ""
    return RequestError(f"{where}{clip(message, 300)}.", param=param, code="invalid_value")
