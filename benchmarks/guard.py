"""Runs a command, and ends all that it has started when the driver is gone.

    python -I -S guard.py LIFELINE REPORT COMMAND...

LIFELINE is the reading end of a pipe whose other end the driver alone holds: it is closed with the
driver, however that ends. The id of the command's process, which leads a session of its own, is
written to REPORT. Descendants whose parents have ended become the guard's (PR_SET_CHILD_SUBREAPER,
prctl(2)), so that none escapes, whatever its group or session is. Ends with the command's status.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CANNOT_RUN = 127


def start(command: list[str]) -> int:
    """The id of a process that leads a new session, and that is killed with the guard."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_RUN)


def descendants(root: int) -> list[int]:
    """Processes below `root`, those that have ended and were not waited for among them."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it is gone
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def end_all() -> None:
    """Kill every descendant, until there is none."""
    while found := descendants(os.getpid()):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def main(arguments: Sequence[str]) -> int:
    """See above."""
    lifeline, report, *command = arguments
    for number in (int(lifeline), int(report)):
        os.set_inheritable(number, False)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    pid = start(command)
    os.write(int(report), b"%d" % pid)
    # Of the command's pipes it keeps no end open.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2, int(report)):
        os.dup2(nowhere, number)
    poll = select.poll()
    poll.register(os.pidfd_open(pid), select.POLLIN)
    poll.register(int(lifeline), select.POLLIN)
    poll.poll()
    status = 0
    ended, found = os.waitpid(pid, os.WNOHANG)
    if ended:
        status = os.waitstatus_to_exitcode(found)
    end_all()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
