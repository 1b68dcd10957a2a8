"""Log lines that no input can break."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.observe.logging import JsonFormatter, TextFormatter, safe, setup_logging


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("headrace.api", logging.INFO, "f", 1, message, args, info)


@given(st.text(alphabet=st.characters(codec=None)))
def test_safe_text_is_one_line_without_controls(text: str) -> None:
    shown = safe(text)
    assert len(shown.splitlines()) <= 1
    assert all(c.isprintable() or not c.isascii() for c in shown)
    assert not any(0x80 <= ord(c) < 0xA0 for c in shown)
    shown.encode()


def test_plain_text_is_unchanged() -> None:
    assert safe("żółw 漢字 \\n") == "żółw 漢字 \\n"
    assert safe("a\r\n\x1b[31m\x00") == "a\\r\\n\\x1b[31m\\x00"
    assert safe("x" * 5000) == "x" * 2000 + "..."


def test_text_lines() -> None:
    line = TextFormatter().format(record("hello %s", "a\nb"))
    assert line.endswith(" info api: hello a\\nb")
    assert line[4] == "-"
    assert line[23] == "Z"


@given(st.text(alphabet=st.characters(codec=None)))
def test_json_lines(text: str) -> None:
    line = JsonFormatter().format(record("%s", text))
    assert "\n" not in line
    entry = json.loads(line)
    assert entry["message"] == safe(text)
    assert entry["level"] == "info"


def test_tracebacks_are_kept_and_safe() -> None:
    try:
        raise ValueError("bad \x1b[31m value")
    except ValueError as error:
        made = record("failed", error=error)
    text = TextFormatter().format(made)
    assert "ValueError: bad \\x1b[31m value" in text
    assert "test_logging.py" in text
    entry = json.loads(JsonFormatter().format(made))
    assert "\x1b" not in entry["exception"]


@pytest.fixture
def clean_root() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("headrace")
    before = (root.handlers[:], root.level, ours.level)
    yield
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)


@pytest.mark.usefixtures("clean_root")
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_logs_go_to_stderr(
    capsys: pytest.CaptureFixture[str], log_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    setup_logging("info", log_format)
    logging.getLogger("headrace.x").info("seen")
    logging.getLogger("headrace.x").debug("not seen")
    logging.getLogger("other").info("not seen")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("seen") == 1
    assert shown.err.startswith("{") == (log_format == "json")
