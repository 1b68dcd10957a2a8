"""The staged set-up: what is current costs nothing, what was cut off runs again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
# Stands for the machine's Python and for the environment's: makes a bare environment, notes what
# pip is asked for, waits where it is told to, and is the real Python for everything else.
PYTHON = f"""#!/bin/sh
case "$1 $2" in
  "-m venv")
    echo venv >>calls
    mkdir -p .venv/bin .venv/lib/python3.11/site-packages
    cp "$0" .venv/bin/python ;;
  "-m pip")
    echo "pip $*" >>calls
    if [ -f slow-pip ]; then sleep 60; fi ;;
  *) exec {sys.executable} "$@" ;;
esac
"""
BUILD = """#!/bin/sh
echo build >>calls
echo '[1/2] compiling'
if [ -f slow-build ]; then sleep 60; fi
if [ -f broken-build ]; then echo 'error: no such thing'; exit 1; fi
mkdir -p src/headrace && touch src/headrace/_native.so
"""


class Checkout:
    """A small tree with the real scripts around a fake Python and a fake build."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("setup", "stages.sh", "stage.py"):
            (root / "scripts").mkdir(exist_ok=True)
            shutil.copy(SCRIPTS / name, root / "scripts" / name)
        self.write("python", PYTHON)
        self.write("scripts/preflight", f"#!/bin/sh\necho preflight >>calls\necho {root}/python\n")
        self.write("scripts/build", BUILD)
        self.write("native/a.cpp", "int a;\n")
        self.write("CMakeLists.txt", "\n")
        for lock in ("runtime", "build", "dev"):
            self.write(f"requirements/{lock}.txt", f"{lock}==1 \\\n    --hash=sha256:00\n")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(0o755)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.root / "scripts" / "setup", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHON": ""},
        )

    def setup(self, *arguments: str) -> tuple[int, str, list[str]]:
        """Exit status, what was printed, and the first words of what was called since the last."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output, self.calls()

    def calls(self) -> list[str]:
        path = self.root / "calls"
        calls = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [call.split()[0] for call in calls]

    def wait_for(self, call: str) -> None:
        path, deadline_s = self.root / "calls", time.monotonic() + 30
        while not (path.exists() and f"\n{call}" in f"\n{path.read_text()}"):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    def kill_during(self, slow: str, call: str) -> None:
        """Start, wait until `call` runs, and kill all of it at once, as a power cut would."""
        self.write(slow, "")
        process = self.start()
        self.wait_for(call)
        for group in children(process.pid):
            os.killpg(group, signal.SIGKILL)
        process.communicate()
        (self.root / slow).unlink()
        self.calls()


def children(pid: int) -> set[int]:
    """Process groups of a process and its descendants (stages have groups of their own)."""
    groups, pending = set(), [pid]
    while pending:
        current = pending.pop()
        groups.add(os.getpgid(current))
        tasks = Path(f"/proc/{current}/task").glob("*/children")
        pending += [int(child) for task in tasks for child in task.read_text().split()]
    return groups


def running(groups: set[int]) -> list[str]:
    """The processes of these groups, except those that only wait to be reaped."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = path.read_text().rsplit(") ", 1)
        except OSError:  # it ended meanwhile
            continue
        state, _, group = rest.split()[:3]
        if int(group) in groups and state != "Z":
            found.append(name)
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_first_run_does_everything_in_order_and_the_second_nothing(checkout: Checkout) -> None:
    status, output, calls = checkout.setup()
    assert (status, calls) == (0, ["preflight", "venv", "pip", "build"])
    titles = [" ".join(line.split()[:2]) for line in output.splitlines()]
    assert titles == ["Virtual environment", "Locked packages", "Native build"]
    assert checkout.setup() == (0, "", [])
    link = checkout.root / ".venv/lib/python3.11/site-packages/headrace.pth"
    assert (link.parent / link.read_text().strip()).resolve() == checkout.root / "src"


def test_dev_adds_only_its_own_stage(checkout: Checkout) -> None:
    checkout.setup()
    assert checkout.setup("dev")[2] == ["pip"]
    assert checkout.setup("dev")[2] == []


def test_what_changed_runs_again_and_nothing_else(checkout: Checkout) -> None:
    checkout.setup("dev")
    checkout.write("native/a.cpp", "int b;\n")
    assert checkout.setup("dev")[2] == ["build"]
    checkout.write("native/b.cpp", "int c;\n")
    assert checkout.setup("dev")[2] == ["build"]
    checkout.write("requirements/runtime.txt", "runtime==2 \\\n    --hash=sha256:00\n")
    assert checkout.setup("dev")[2] == ["pip"]
    checkout.write("requirements/dev.txt", "dev==2 \\\n    --hash=sha256:00\n")
    assert checkout.setup("dev")[2] == ["pip"]
    (checkout.root / "src/headrace/_native.so").unlink()
    assert checkout.setup("dev")[2] == ["build"]
    shutil.rmtree(checkout.root / ".venv")
    assert checkout.setup()[2] == ["preflight", "venv", "pip", "build"]


def test_a_moved_checkout_is_made_anew(
    checkout: Checkout, tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkout.setup()
    moved = tmp_path_factory.mktemp("moved") / "tree"
    shutil.move(checkout.root, moved)
    checkout.root = moved
    checkout.write("scripts/preflight", f"#!/bin/sh\necho preflight >>calls\necho {moved}/python\n")
    assert checkout.setup()[2] == ["preflight", "venv", "pip", "build"]


def test_killed_while_building(checkout: Checkout) -> None:
    checkout.kill_during("slow-build", "build")
    assert checkout.setup()[2] == ["build"]


def test_killed_while_installing_makes_the_environment_anew(checkout: Checkout) -> None:
    checkout.kill_during("slow-pip", "pip")
    assert checkout.setup()[2] == ["preflight", "venv", "pip", "build"]


def test_a_failing_stage_shows_the_end_of_its_log_and_runs_again(checkout: Checkout) -> None:
    checkout.write("broken-build", "")
    status, output, _ = checkout.setup()
    assert status == 1
    assert "Native build           failed with status 1" in output
    assert "error: no such thing" in output
    assert ".stamps/native.log" in output
    (checkout.root / "broken-build").unlink()
    assert checkout.setup()[2] == ["build"]


def test_two_at_once_do_the_work_once(checkout: Checkout) -> None:
    processes = [checkout.start(), checkout.start()]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    for process in processes:
        process.communicate()
    assert checkout.calls() == ["preflight", "venv", "pip", "build"]


def test_what_outlives_a_killed_setup_is_waited_for(checkout: Checkout) -> None:
    checkout.write("slow-pip", "")
    first = checkout.start()
    checkout.wait_for("pip")
    (left,) = children(first.pid) - {first.pid}
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    (checkout.root / "slow-pip").unlink()
    checkout.calls()
    second = checkout.start()
    assert second.stdout is not None
    assert second.stdout.readline().startswith("Another set-up of this folder is at work")
    assert running({left})
    assert checkout.calls() == []
    os.killpg(left, signal.SIGKILL)
    second.communicate(timeout=60)
    first.communicate()
    assert checkout.calls() == ["preflight", "venv", "pip", "build"]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_ends_the_stage_and_its_command(
    checkout: Checkout, ending: signal.Signals
) -> None:
    checkout.write("slow-build", "")
    process = checkout.start()
    checkout.wait_for("build")
    groups = children(process.pid)
    assert len(groups) == 2
    os.killpg(process.pid, ending)
    output, _ = process.communicate(timeout=20)
    assert process.returncode != 0
    assert "interrupted" in output
    deadline_s = time.monotonic() + 10
    while running(groups):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
