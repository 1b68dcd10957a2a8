"""Log lines on stderr, as text or JSON. What a client sent can never break a line or colour it."""

from __future__ import annotations

import logging
import sys
import time

import msgspec

# Control characters and the line separators that some viewers break at.
_UNSAFE = {c: f"\\x{c:02x}" for c in [*range(0x20), *range(0x7F, 0xA0)]}
_UNSAFE |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
_UNSAFE |= {0x2028: "\\u2028", 0x2029: "\\u2029"}
_UNSAFE |= dict.fromkeys(range(0xD800, 0xE000), "\\ufffd")

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def safe(text: str, limit: int = 2000) -> str:
    """`text` on one line, without control characters, at most `limit` characters of it."""
    if len(text) > limit:
        text = text[:limit] + "..."
    return text.translate(_UNSAFE)


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z info gateway: message`; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix("headrace.")
        line = f"{_time(record)} {record.levelname.lower()} {name}: {safe(record.getMessage())}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join("\n  " + safe(part) for part in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": safe(record.getMessage()),
        }
        if record.exc_info:
            entry["exception"] = safe(self.formatException(record.exc_info), 20_000)
        return msgspec.json.encode(entry).decode()


def setup_logging(level: str, log_format: str) -> None:
    """Send this process's logs to stderr. `level` is one of LEVELS, `log_format` text or json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("headrace").setLevel(LEVELS.get(level, logging.INFO))
