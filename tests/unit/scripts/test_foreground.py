"""Ctrl-C in a terminal ends what `make` runs, and `make` itself ends well."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

FOREGROUND = Path(__file__).resolve().parents[3] / "scripts" / "foreground.py"
# Says that it runs, and ends well on the signals that a server ends well on.
SERVER = """
import signal, sys, time
def end(number, frame):
    print("ended by", signal.Signals(number).name, flush=True)
    sys.exit(0)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
print("serving", flush=True)
time.sleep(60)
"""


class Terminal:
    """`make` as the first process of a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / "server.py").write_text(SERVER)
        recipe = f"@{sys.executable} {FOREGROUND} {sys.executable} server.py"
        (folder / "Makefile").write_text(f"run:\n\t{recipe}\n")
        self.output = b""
        self.file, other_end = pty.openpty()
        self.make = subprocess.Popen(
            ["setsid", "--ctty", "make", "--no-print-directory", "run"],
            cwd=folder,
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
        )
        os.close(other_end)

    def read_until(self, text: bytes | None) -> None:
        """Until the text was seen, or the end of the output if None."""
        deadline_s = time.monotonic() + 30
        while text is None or text not in self.output:
            assert time.monotonic() < deadline_s, self.output
            ready, _, _ = select.select([self.file], [], [], 0.1)
            if not ready:
                continue
            try:
                data = os.read(self.file, 4096)
            except OSError:  # the other end is closed
                return
            if not data:
                return
            self.output += data

    def status(self) -> int:
        self.read_until(None)
        os.close(self.file)
        return self.make.wait(timeout=30)


def test_ctrl_c_is_status_0_and_no_complaint_of_make(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    terminal.read_until(b"serving")
    os.write(terminal.file, b"\x03")
    assert terminal.status() == 0
    assert b"ended by SIGINT" in terminal.output
    assert b"make:" not in terminal.output


def test_ctrl_z_is_no_trap(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    terminal.read_until(b"serving")
    os.write(terminal.file, b"\x1a\x03")
    assert terminal.status() == 0


def test_terminating_make_ends_the_server(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    terminal.read_until(b"serving")
    terminal.make.terminate()
    terminal.read_until(b"ended by SIGTERM")
    assert terminal.status() != 0


def test_without_a_terminal_nothing_changes() -> None:
    code = "import os; print(os.getpgrp())"
    result = subprocess.run(
        [sys.executable, FOREGROUND, sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"{os.getpgrp()}\n"
