"""Runs a command as the only reader of the terminal's Ctrl-C: `foreground.py COMMAND ARGUMENT...`.

`make` passes on no status of a recipe that ended well on an interrupt: it dies of the same signal.
So the command becomes a process group of its own and the terminal's foreground. It stays the same
process, so whoever started it can still signal it; the shell takes the terminal back at the end.
"""

from __future__ import annotations

import os
import signal
import sys


def take_terminal() -> None:
    """Does nothing without a terminal, or where this process leads its session or group already."""
    if not os.isatty(0) or os.getpgrp() == os.getpid():
        return
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # setting the foreground group from behind
        os.tcsetpgrp(0, os.getpgrp())
    except OSError:  # the terminal is another session's: Ctrl-C will not come from it
        return
    finally:
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    # Nobody could continue it: the shell watches `make`, which would not be stopped.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)


if __name__ == "__main__":
    take_terminal()
    os.execvp(sys.argv[1], sys.argv[1:])
