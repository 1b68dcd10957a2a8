"""preflight under a PATH that lacks things: one line names all of them, and nothing is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PREFLIGHT = Path(__file__).resolve().parents[3] / "scripts" / "preflight"
PYTHON = getattr(sys, "_base_executable", sys.executable)
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


class Machine:
    """A folder of commands that is the whole PATH; each forwards to the real one."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.environment: dict[str, str] = {}
        for name in ("uname", "id", "g++", "make", "git"):
            self.add(name, str(shutil.which(name)))
        self.add(f"python{VERSION}", PYTHON)

    def add(self, name: str, target: str, setting: str = "") -> None:
        self.script(name, f'{setting} exec {target} "$@"')

    def script(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def remove(self, *names: str) -> None:
        for name in names:
            (self.bin / name).unlink()

    def preflight(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", PREFLIGHT],
            env={"PATH": str(self.bin), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def lacking(self) -> tuple[str, list[str]]:
        """The sentence and the packages of the one install line of a preflight that fails."""
        result = self.preflight()
        assert result.returncode == 1
        assert result.stdout == ""
        lines = [line for line in result.stderr.splitlines() if "apt-get install" in line]
        assert len(lines) == 1
        return result.stderr.splitlines()[0], lines[0].split("apt-get install")[1].split()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def broken_module(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(text)
    return f"PYTHONPATH={folder}"


def test_a_whole_machine_prints_the_python_to_use(machine: Machine) -> None:
    result = machine.preflight()
    assert (result.returncode, result.stderr) == (0, "")
    assert os.path.realpath(result.stdout.strip()) == os.path.realpath(PYTHON)


@pytest.mark.parametrize("tool", ["git", "make", "g++"])
def test_one_tool_lacks(machine: Machine, tool: str) -> None:
    machine.remove(tool)
    sentence, packages = machine.lacking()
    assert tool in sentence
    assert packages == [tool]


def test_no_python_at_all(machine: Machine) -> None:
    machine.remove(f"python{VERSION}")
    sentence, packages = machine.lacking()
    assert "Python 3.11, 3.12 or 3.13" in sentence
    assert packages == ["python3", "python3-venv", "python3-dev"]


def test_a_python_that_does_not_run_is_none(machine: Machine) -> None:
    machine.script(f"python{VERSION}", "exit 127")
    assert machine.lacking()[1] == ["python3", "python3-venv", "python3-dev"]


def test_a_python_that_is_too_old_names_a_newer_one(machine: Machine) -> None:
    machine.remove(f"python{VERSION}")
    machine.script("python3", 'case "$2" in "") exit 0 ;; *) exit 1 ;; esac')
    assert machine.lacking()[1] == ["python3.11", "python3.11-venv", "python3.11-dev"]


def test_no_ensurepip(machine: Machine, tmp_path: Path) -> None:
    setting = broken_module(tmp_path, "ensurepip", "raise ImportError")
    machine.add(f"python{VERSION}", PYTHON, setting)
    sentence, packages = machine.lacking()
    assert "ensurepip" in sentence
    assert packages == [f"python{VERSION}-venv"]


def test_no_headers(machine: Machine, tmp_path: Path) -> None:
    patch = "import sysconfig\nsysconfig.get_path = lambda *a: '/nonexistent'\n"
    machine.add(f"python{VERSION}", PYTHON, broken_module(tmp_path, "sitecustomize", patch))
    sentence, packages = machine.lacking()
    assert "headers" in sentence
    assert packages == [f"python{VERSION}-dev"]


def test_a_compiler_that_is_too_old(machine: Machine) -> None:
    machine.script("g++", "exit 1")
    assert machine.lacking()[1] == ["g++"]


def test_everything_lacks_in_one_line(machine: Machine, tmp_path: Path) -> None:
    setting = broken_module(tmp_path, "ensurepip", "raise ImportError")
    machine.add(f"python{VERSION}", PYTHON, setting)
    machine.remove("g++", "make", "git")
    assert machine.lacking()[1] == [f"python{VERSION}-venv", "g++", "make", "git"]


def test_a_complete_python_is_preferred_to_a_newer_torn_one(
    machine: Machine, tmp_path: Path
) -> None:
    machine.remove(f"python{VERSION}")
    setting = broken_module(tmp_path, "ensurepip", "raise ImportError")
    machine.add("python3.13", PYTHON, setting)
    machine.add("python3", PYTHON)
    assert machine.preflight().returncode == 0


def test_python_and_cxx_are_the_only_ones_considered(machine: Machine) -> None:
    for name in ("PYTHON", "CXX"):
        result = machine.preflight(**{name: "nonsense"})
        assert result.returncode == 1
        assert result.stderr.startswith(f"{name}=nonsense is no working ")
        assert len(result.stderr.splitlines()) == 1


def test_another_system_gets_one_sentence(machine: Machine) -> None:
    machine.script("uname", '[ "$1" = -s ] && echo Darwin || echo arm64')
    result = machine.preflight()
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "Darwin on arm64" in result.stderr


@pytest.mark.parametrize(("uid", "prefix"), [("0", "    apt-get"), ("1000", "    sudo apt-get")])
def test_sudo_only_where_it_is_needed(machine: Machine, uid: str, prefix: str) -> None:
    machine.script("id", f"echo {uid}")
    machine.remove("git")
    assert f"\n{prefix} install git\n" in machine.preflight().stderr
