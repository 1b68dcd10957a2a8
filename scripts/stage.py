"""Runs one stage of the set-up: one line, a bar on a terminal, the log's end if it fails."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

BAR_LEN = 24
TAIL_LEN = 20


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--title", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--match", default="", help="lines that mean progress; groups: done, total")
    parser.add_argument("--total", type=int, default=0, help="matches expected, without groups")
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


class Line:
    """The stage's one line. On anything but a terminal it is written once, at the end."""

    def __init__(self, title: str, out: TextIO) -> None:
        self.title = f"{title:<22}"
        self.out = out
        self.is_terminal = out.isatty()
        self.started_s = time.monotonic()
        self.update(0.0)

    def update(self, share: float) -> None:
        if not self.is_terminal:
            return
        filled = min(BAR_LEN, int(share * BAR_LEN))
        bar = "█" * filled + "░" * (BAR_LEN - filled)
        self.out.write(f"\r\x1b[K  {self.title} {bar} {self.elapsed_s:4.0f} s")
        self.out.flush()

    def end(self, outcome: str) -> None:
        start = "\r\x1b[K" if self.is_terminal else ""
        self.out.write(f"{start}  {self.title} {outcome} ({self.elapsed_s:.1f} s)\n")
        self.out.flush()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s


def shares(lines: Iterator[str], match: str, total: int, log: TextIO) -> Iterator[float]:
    """Copies every line to the log and yields the share of the work done, as far as it is known."""
    pattern = re.compile(match) if match else None
    done = 0
    for line in lines:
        log.write(line)
        log.flush()
        found = pattern.match(line) if pattern else None
        if found is None:
            continue
        done += 1
        if found.re.groups == 2:  # "[done/total]" carries its own count
            done, total = int(found[1]), int(found[2])
        yield done / max(total, done)


def run(args: argparse.Namespace, line: Line) -> int:
    """The command's exit status. It gets a process group of its own: Ctrl-C ends all of it.

    It inherits the lock of scripts/setup, too: if all above it is killed, the next set-up waits
    until it has ended, and does not work in the same folders beside it.
    """
    with args.log.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            args.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
            close_fds=False,
        )
        assert process.stdout is not None
        try:
            for share in shares(process.stdout, args.match, args.total, log):
                line.update(share)
            return process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise


def main() -> int:
    args = parse_args()
    line = Line(args.title, sys.stderr)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    try:
        status = run(args, line)
    except KeyboardInterrupt:
        line.end("interrupted")
        return 130
    if status == 0:
        line.end("done")
        return 0
    line.end(f"failed with status {status}")
    tail = args.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LEN:]
    print("\n".join(["", *tail, "", f"The whole log is in {args.log}."]), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
