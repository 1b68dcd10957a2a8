"""The protocol between driver and systems, with real processes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.lineup import Lineup
from benchmarks.machine import session_cpu_s
from benchmarks.process import ROOT, Launch, System, UnavailableError
from benchmarks.systems import protocol
from tests.support.make_model import make_gguf

ADAPTER = """
import sys, time
from benchmarks.systems import protocol

class Fake:
    version = "1"
    def prefill(self, prompt):
        print("noise on stdout")
        return len(prompt) / 1000
    def decode(self, prompts, tokens):
        if len(prompts) > 1:
            raise protocol.UnsupportedError("one at a time, see /opt/some/where/file.cpp:3")
        sys.exit("boom")

def load():
    if len(sys.argv) > 1:
        raise RuntimeError(sys.argv[1])
    import threading
    threading.Thread(target=spin, daemon=True).start()
    return Fake()

def spin():
    while True:
        pass

protocol.run("fake", load)
"""


def fake(*arguments: str) -> Launch:
    return Launch("fake", [sys.executable, "-c", ADAPTER, *arguments])


def test_answers_pass_and_what_is_printed_does_not_disturb() -> None:
    system = System(fake())
    try:
        got = system.measure({"do": "prefill", "tokens": 40})
        assert (system.version, got.seconds, got.tokens) == ("1", 0.04, 40)
        assert system.first_token_s() > 0
        with pytest.raises(UnavailableError, match=r"one at a time, see file\.cpp:3"):
            system.measure({"do": "decode", "sequences": 2, "context": 4, "tokens": 2})
        with pytest.raises(UnavailableError, match="it ended early: boom"):
            system.measure({"do": "decode", "sequences": 1, "context": 4, "tokens": 2})
    finally:
        system.close()


def test_who_waits_is_stopped() -> None:
    system = System(fake())
    try:
        system.measure({"do": "prefill", "tokens": 4})
        session = system.session
        time.sleep(0.05)
        before = session_cpu_s(session)
        time.sleep(0.2)
        assert session_cpu_s(session) == before > 0
    finally:
        system.close()
    assert session_cpu_s(session) == 0


def test_a_child_with_a_group_of_its_own_counts() -> None:
    """As the worker of a server has."""
    child = "import os; os.setpgrp(); print('ready', flush=True)\nwhile True: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        before = session_cpu_s(process.pid)
        deadline = time.monotonic() + 60
        while session_cpu_s(process.pid) < before + 0.1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert session_cpu_s(process.pid) >= before + 0.1
    finally:
        for pid in session_pids(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def session_pids(session: int) -> list[int]:
    """Every live process of a session."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[3]) == session:
                pids.append(int(path.parent.name))
    return pids


# Before it answers it starts a process in its group, one in a session of its own, and one whose
# parent has ended. Those tell their ids in a file.
FAMILY = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
start = f"subprocess.Popen({sleep!r}, start_new_session=True, stdout=subprocess.DEVNULL)"
orphan = f"import subprocess; print({start}.pid)"
children = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
made = subprocess.run([sys.executable, "-c", orphan], stdout=subprocess.PIPE, check=True)
with open(sys.argv[1], "w") as file:
    print(os.getpid(), *(child.pid for child in children), int(made.stdout), file=file)
"""


def pids_of(path: Path) -> list[int]:
    pids = [int(pid) for pid in path.read_text("utf-8").split()]
    assert len(pids) == 4
    return pids


def all_end(pids: list[int]) -> bool:
    """Within 20 s. A process that only waits to be waited for has ended."""
    deadline = time.monotonic() + 20
    while (alive := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive


def is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def test_a_killed_driver_leaves_nothing_behind(tmp_path: Path) -> None:
    script, told = tmp_path / "adapter.py", tmp_path / "pids"
    answers = ADAPTER.replace("len(sys.argv) > 1", "False")
    script.write_text(FAMILY + answers, "utf-8")
    driver = (
        "import os, signal, sys\n"
        "from benchmarks.process import Launch, System\n"
        f"paths = {{'PYTHONPATH': {str(ROOT)!r}}}\n"
        f"command = [sys.executable, {str(script)!r}, {str(told)!r}]\n"
        "system = System(Launch('fake', command, paths))\n"
        "system.first_token_s()\n"  # it is stopped now
        "print(system.session, flush=True)\n"
        "input()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        session = int(process.stdout.readline())
        pids = pids_of(told)
        assert pids[0] == session
        assert all(is_alive(pid) for pid in pids)
        process.communicate("\n")
    assert process.returncode == -9
    assert all_end(pids)


def test_a_system_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    family = Launch("family", [sys.executable, "-c", FAMILY, str(told)])
    with pytest.raises(UnavailableError, match="it ended early"):
        System(family)
    assert all_end(pids_of(told))


def test_a_system_that_cannot_be_run_says_why() -> None:
    with pytest.raises(UnavailableError, match="no/such/program: No such file"):
        System(Launch("none", ["no/such/program"]))


def test_a_system_that_cannot_load_says_why() -> None:
    with pytest.raises(UnavailableError, match="RuntimeError: no such model"):
        System(fake("no such model"))


def test_prompts_are_new_every_time_and_have_no_control_tokens() -> None:
    rng = random.Random(0)
    first, second = protocol.random_prompt(rng, 500), protocol.random_prompt(rng, 500)
    assert first != second
    assert min(first + second) >= protocol.FIRST_ID


def test_ours_answers_every_measurement(tmp_path: Path) -> None:
    made = make_gguf(tmp_path / "m.gguf", vocab_size=protocol.LAST_ID)
    (launch,) = Lineup(made.path, 1, None).launches()
    system = System(launch)
    try:
        commands: list[tuple[dict[str, object], int]] = [
            ({"do": "prefill", "tokens": 30}, 30),
            ({"do": "decode", "sequences": 3, "context": 20, "tokens": 4}, 12),
            ({"do": "verify", "rows": 5, "context": 20, "tokens": 3}, 15),
        ]
        for command, tokens in commands:
            got = system.measure(command)
            assert got.seconds > 0
            assert got.tokens == tokens
    finally:
        system.close()
