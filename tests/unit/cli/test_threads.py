"""Odd numbers of threads and processors, forced kernel tables: the same text or one sentence."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import _native
from tests.unit.cli.conftest import Cli, environment

FLAGS = ("--max-tokens", 12, "--temperature", 0)
TABLES = ("avx512", "avx2", "neon", "scalar")


@pytest.fixture(scope="module")
def expected(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_on(None, tiny_model, tmp_path_factory.mktemp("cache"))


def run_on(cpus: set[int] | None, model: Path, cache: Path) -> str:
    """The text of a run whose affinity mask is `cpus`."""
    words = ["run", str(model), "hello", *map(str, FLAGS)]
    code = f"""
import os, sys
cpus = {cpus!r}
if cpus:
    os.sched_setaffinity(0, cpus)
os.execv(sys.executable, [sys.executable, "-m", "headrace.cli", *{words!r}])
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=environment(cache),
    )
    assert result.stderr == ""
    return result.stdout


def test_more_threads_than_processors(cli: Cli, tiny_model: Path, expected: str) -> None:
    for threads in (2 * (os.cpu_count() or 1), 1000):
        result = cli("run", tiny_model, "hello", *FLAGS, "--threads", threads)
        assert (result.returncode, result.stdout, result.stderr) == (0, expected, "")


@pytest.mark.parametrize("words", [["run", "MODEL", "hello"], ["bench", "kernels"]])
def test_threads_that_the_system_refuses(
    tiny_model: Path, tmp_path: Path, words: list[str]
) -> None:
    """Their stacks are larger than the process may be."""
    words = [str(tiny_model) if word == "MODEL" else word for word in words]
    result = subprocess.run(
        [sys.executable, "-m", "headrace.cli", *words, "--threads", "1000"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment(tmp_path),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)),
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert "headrace: 1000 threads cannot be started (" in result.stderr
    assert result.stderr.endswith("; use fewer: --threads.\n")


@pytest.mark.parametrize("threads", [0, -1, 1025, 100_000, 10**30])
@pytest.mark.parametrize("verb", ["run", "serve"])
def test_a_number_of_threads_that_cannot_be(
    cli: Cli, tiny_model: Path, verb: str, threads: int
) -> None:
    result = cli(verb, tiny_model, "--threads", threads)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"{threads} is not from 1 to 1024." in result.stderr


def test_one_processor(tiny_model: Path, tmp_path: Path, expected: str) -> None:
    assert run_on({min(os.sched_getaffinity(0))}, tiny_model, tmp_path) == expected


@pytest.mark.parametrize("table", [*TABLES, "nonsense"])
def test_a_forced_kernel_table(cli: Cli, tiny_model: Path, expected: str, table: str) -> None:
    result = cli("run", tiny_model, "hello", *FLAGS, HEADRACE_ISA=table)
    if table in _native.isas():
        assert (result.returncode, result.stdout, result.stderr) == (0, expected, "")
    else:
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.count("\n") == 1
        assert f"HEADRACE_ISA={table} is not a kernel table of this processor" in result.stderr


def test_a_server_says_why_a_forced_table_cannot_be(cli: Cli, tiny_model: Path) -> None:
    result = cli("serve", tiny_model, "--port", 0, HEADRACE_ISA="nonsense")
    assert result.returncode == 1
    assert "HEADRACE_ISA=nonsense is not a kernel table of this processor" in result.stderr
