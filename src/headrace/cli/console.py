"""How the command line speaks: results on stdout, talk on stderr, bars on a terminal only."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

BAR_LEN = 24
# A progress line is redrawn at most this often.
REDRAW_S = 0.1


def say(text: str = "") -> None:
    """Talk: what the program is doing, never data."""
    print(text, file=sys.stderr, flush=True)


def fail(message: str) -> NoReturn:
    """End with status 1 and one sentence."""
    say(f"headrace: {message}")
    sys.exit(1)


def usage_error(message: str) -> NoReturn:
    """End with status 2 and one sentence: the command line itself is wrong."""
    say(f"headrace: {message}")
    sys.exit(2)


def print_json(value: object) -> None:
    """Data for programs: one JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Data for people: columns as wide as their longest cell; numbers are right-aligned."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    filled = [[row[i] for row in rows if row[i]] for i in range(len(head))]
    numeric = [bool(cells) and all(cell[:1].isdigit() for cell in cells) for cells in filled]
    for row in (head, *rows):
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        print("  ".join(cells).rstrip())


def use_colour(is_terminal: bool) -> bool:
    """Colours on a terminal, unless NO_COLOR is set (no-color.org)."""
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def dim(text: str) -> str:
    """Secondary text for stderr."""
    return f"\x1b[2m{text}\x1b[0m" if use_colour(sys.stderr.isatty()) else text


def human_bytes(num_bytes: int) -> str:
    """`1.4 GiB`; three digits at most."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1000 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


class ProgressLine:
    """Progress of a download: a bar on a terminal, one line elsewhere, nothing without a download.

    Call it with (done, total) in bytes; total 0 means unknown. `close` ends the line.
    """

    def __init__(self, label: str) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._label = label
        self._started_s: float | None = None
        self._drawn_s = 0.0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        now_s = time.monotonic()
        if self._started_s is None:
            self._started_s = now_s
            if not self._is_terminal:
                size = f" ({human_bytes(total_bytes)})" if total_bytes else ""
                say(f"Fetching {self._label}{size}.")
        is_end = bool(total_bytes) and done_bytes >= total_bytes
        if self._is_terminal and (is_end or now_s - self._drawn_s >= REDRAW_S):
            self._drawn_s = now_s
            self._draw(done_bytes, total_bytes, now_s - self._started_s)

    def _draw(self, done_bytes: int, total_bytes: int, elapsed_s: float) -> None:
        speed = human_bytes(int(done_bytes / elapsed_s)) if elapsed_s > 0 else "-"
        state = human_bytes(done_bytes)
        if total_bytes:
            filled = min(BAR_LEN, done_bytes * BAR_LEN // total_bytes)
            bar = "█" * filled + "░" * (BAR_LEN - filled)
            state = f"{bar} {state} of {human_bytes(total_bytes)}"
        sys.stderr.write(f"\r\x1b[K  {self._label} {state}, {speed}/s")
        sys.stderr.flush()

    def close(self) -> None:
        if self._started_s is not None and self._is_terminal:
            sys.stderr.write("\n")
        self._started_s = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
