"""The examples run, do what they say, and find the same in process and over HTTP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples import chat, classify, tree_of_thought, until_valid, voting
from headrace import LLM
from headrace.program import Session
from tests.support.real_server import serve_model
from tests.support.serving import ROOT, Server

pytestmark = pytest.mark.slow

# What an example does, and what must be true of what it found.
EXAMPLES: dict[str, tuple[Callable[[Session], Any], Callable[[Any], bool]]] = {
    "chat": (
        lambda session: chat.run(session, chat.QUESTIONS),
        lambda answers: len(answers) == 3 and all(answers),
    ),
    "classify": (
        lambda session: classify.run(session, classify.REVIEWS),
        lambda found: (
            [label[:3] for label, _ in found] == ["pos", "neg", "neg", "pos", "neg", "pos"]
        ),
    ),
    "tree_of_thought": (
        lambda session: tree_of_thought.run(session, tree_of_thought.QUESTION, width=2, depth=2),
        lambda found: [line[:7] for line in found[0].split("\n")[2:4]] == ["Step 1:", "Step 2:"],
    ),
    "voting": (
        lambda session: voting.run(session, voting.QUESTION, num_votes=3),
        lambda found: found[1].total() == 3 and found[1][found[0]] == max(found[1].values()),
    ),
    "until_valid": (
        until_valid.run,
        lambda found: set(found[0]) == {"name", "age", "city"} and 1 <= found[1] <= 20,
    ),
}


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(smollm2_path, kv_cache_bytes=64 << 20) as made:
        yield made


@pytest.fixture(scope="module")
def served(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log_path = tmp_path_factory.mktemp("examples") / "log"
    with serve_model(smollm2_path, log_path, max_model_len=1024) as running:
        yield running


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_in_process_and_over_http(llm: LLM, served: Server, name: str) -> None:
    run, is_right = EXAMPLES[name]
    with Session(llm, seed=1) as near, Session(served.url, seed=1) as far:
        found = run(near)
        assert is_right(found)
        assert run(far) == found
        assert not near._branches
    assert not llm.engine.has_work()
    llm.engine.check()


def test_an_example_from_the_command_line(smollm2_path: Path) -> None:
    command = [sys.executable, "-m", "examples.classify", "--model", str(smollm2_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.count("positive") == done.stdout.count("negative") == 3
