"""Typed reading of the JSON files of a model folder; every error names the file and the key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import ModelFormatError

MAX_JSON_BYTES = 16 << 20


def read_bounded(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """The whole file. Raises ModelFormatError if it is larger than `limit` or unreadable."""
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise ModelFormatError(f"Cannot read {path.name!r}: {error.strerror}.") from None
    if len(raw) > limit:
        raise ModelFormatError(f"{path.name!r} is larger than {limit} bytes.")
    return raw


class Fields:
    """A JSON object. A key that is null counts as absent, as in transformers."""

    def __init__(self, file_name: str, values: Mapping[str, Any]) -> None:
        self.file_name = file_name
        self._values = values

    @classmethod
    def read(cls, path: Path) -> Fields:
        try:
            values = json.loads(read_bounded(path))
        except (ValueError, RecursionError):
            raise ModelFormatError(f"{path.name!r} is not valid JSON.") from None
        if not isinstance(values, dict):
            raise ModelFormatError(f"{path.name!r} is not a JSON object.")
        return cls(path.name, values)

    @classmethod
    def read_optional(cls, path: Path) -> Fields:
        """Empty if there is no such file."""
        return cls.read(path) if path.is_file() else cls(path.name, {})

    def fail(self, message: str) -> ModelFormatError:
        return ModelFormatError(f"{self.file_name!r}: {message}")

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if type(value) is not int:
            raise self.fail(f"{key!r} must be an integer.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if type(value) not in (int, float) or not _is_finite(value):
            raise self.fail(f"{key!r} must be a number.")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if type(value) is not str:
            raise self.fail(f"{key!r} must be a string.")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if type(value) is not bool:
            raise self.fail(f"{key!r} must be true or false.")
        return value

    def fields(self, key: str) -> Fields | None:
        """A nested object, or None if the key is absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fail(f"{key!r} must be an object.")
        return Fields(self.file_name, value)

    def _value(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            if default is None:
                raise self.fail(f"{key!r} is missing.")
            return default
        return value


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False  # An integer beyond the range of a float.
