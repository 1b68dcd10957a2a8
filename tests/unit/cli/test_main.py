"""What every command line has in common: status, streams, suggestions, and what is not imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headrace
from headrace.cli import serve_options
from headrace.cli.verbs import GROUPS, VERBS
from headrace.engine.base import SERVING
from headrace.engine.order import QueueOrder
from headrace.kv.lookahead.base import Allocation
from tests.unit.cli.conftest import Cli, environment

HEAVY = "numpy rich pydantic jinja2 tokenizers starlette uvicorn zmq huggingface_hub msgspec"


def test_help_lists_every_verb(cli: Cli) -> None:
    result = cli("--help")
    assert (result.returncode, result.stderr) == (0, "")
    for verb in (*VERBS, *GROUPS, "models"):
        assert f"\n  {verb} " in result.stdout


GROUPED = [f"{group} {verb}" for group, verbs in GROUPS.items() for verb in verbs]


@pytest.mark.parametrize(
    "verb", [*VERBS, *GROUPS, *GROUPED, "models", "models list", "models info", "models rm"]
)
def test_every_verb_has_help(cli: Cli, verb: str) -> None:
    result = cli(*verb.split(), "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: headrace {verb} ")


@pytest.mark.parametrize("words", [["--help"], ["version"]])
def test_nothing_heavy_is_imported_to_speak(words: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom headrace.cli.main import main\n"
        f"sys.argv = ['headrace', *{words!r}]\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY.split()!r} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment(tmp_path),
    )
    assert result.stderr.strip() == "[]"


def test_a_plain_line_does_not_even_need_typer(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom headrace.cli.main import main\nsys.argv = ['headrace', 'version']\n"
        "try: main()\nexcept SystemExit: pass\nassert 'typer' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(tmp_path))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["serv"], "Did you mean 'serve'?"),
        (["serve", "--prot", "1"], "--port"),
        (["run", "m", "p", "--temprature", "1"], "--temperature"),
        (["serve", "--port", "70000"], "70000 is not from 0 to 65535."),
        (["serve", "--log-level", "loud"], "'loud' is none of: debug, info, warning, error."),
        (["run"], "Missing argument 'MODEL'"),
    ],
)
def test_wrong_usage_is_status_2_and_points_to_what_is_right(
    cli: Cli, words: list[str], hint: str
) -> None:
    result = cli(*words)
    assert (result.returncode, result.stdout) == (2, "")
    assert hint in result.stderr


def test_an_error_is_status_1_and_one_sentence(cli: Cli) -> None:
    result = cli("run", "no-such-model", "hello")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("headrace: There is no model 'no-such-model'.")
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback(cli: Cli) -> None:
    result = cli("run", "no-such-model", "hello", HEADRACE_DEBUG="1")
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_version(cli: Cli) -> None:
    assert cli("--version").stdout == f"headrace {headrace.__version__}\n"
    assert cli("version").stdout.startswith(f"headrace {headrace.__version__} (Python ")
    assert json.loads(cli("version", "--json").stdout)["headrace"] == headrace.__version__


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path, tiny_model: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", "run", tiny_model, "x", "--max-tokens", "200"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("words", [["version"], ["models", "--available"]])
def test_a_full_disk_is_one_sentence(words: list[str], tmp_path: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        result = subprocess.run(
            [sys.executable, "-m", "headrace.cli", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment(tmp_path),
        )
    assert result.returncode == 1
    assert result.stderr == "headrace: No space left on device.\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("verb", "status"), [("run", 0), ("version", 0), ("nonsense", 2)])
def test_closed_streams_are_empty_ones(
    closed: str, verb: str, status: int, tiny_model: Path, tmp_path: Path
) -> None:
    words = [str(tiny_model), "--max-tokens", "2"] if verb == "run" else []
    result = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-m", "headrace.cli", verb, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=environment(tmp_path),
    )
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("encoding", "written"),
    [("utf-8", "café-😀".encode()), ("latin-1", b"caf\xe9-?"), ("ascii", b"caf?-?")],
)
def test_any_text_can_be_written_in_any_encoding(
    tmp_path: Path, encoding: str, written: bytes
) -> None:
    path = tmp_path / "café-😀.gguf"
    path.write_bytes(b"GGUF")
    result = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "pull", path],
        capture_output=True,
        check=True,
        env=environment(tmp_path, PYTHONIOENCODING=encoding, PYTHONUTF8="1"),
    )
    assert result.stdout.rpartition(b"/")[2] == written + b".gguf\n"


def test_interrupt_at_the_prompt_of_a_chat_gives_up_the_line(
    tmp_path: Path, tiny_model: Path
) -> None:
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", "chat", tiny_model],
        stdin=read_end,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
    os.write(write_end, b"/set max_tokens 4\n")
    assert process.stderr is not None
    assert process.stderr.readline() == b"max_tokens = 4\n"
    # At the prompt Ctrl-C only gives up the line; the end of input leaves.
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    os.close(write_end)
    os.close(read_end)
    assert process.wait(timeout=60) == 0
    process.communicate()


def test_interrupt_while_modules_are_read_is_silent(tmp_path: Path) -> None:
    code = (
        "import runpy, sys\n"
        "class Ctrl_C:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'headrace.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Ctrl_C())\n"
        "runpy.run_module('headrace.cli', run_name='__main__')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment(tmp_path),
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_interrupting_a_run(tmp_path: Path, tiny_model: Path) -> None:
    words = ["run", tiny_model, "x", "--max-tokens", "400", "--temperature", "1"]
    process = subprocess.Popen(
        [sys.executable, "-c", _SLOW_RUN, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"")


# A step of the tiny model takes a fraction of a millisecond: slow enough to be interrupted.
_SLOW_RUN = """
import sys, time
from headrace.engine.engine import Engine
step = Engine.step
def slow(self):
    time.sleep(0.05)
    return step(self)
Engine.step = slow
sys.argv[0] = "headrace"
from headrace.cli.main import main
main()
"""


def test_how_serve_shares_its_steps() -> None:
    assert [o.value for o in serve_options.QueueOrder] == [o.value for o in QueueOrder]
    orders, allocations = serve_options.QueueOrder, serve_options.KvAllocation
    assert [a.value for a in allocations] == [a.value for a in Allocation]
    usual = serve_options.scheduling(orders.SHORTEST, 600.0, 4, None, allocations.LOOKAHEAD)
    assert usual == SERVING
    made = serve_options.scheduling(orders.LPM, 5.0, 2, 80.0, allocations.RESERVE_MAX)
    assert made.order is QueueOrder.LPM
    assert (made.max_wait_s, made.max_partial, made.itl_target_s) == (5.0, 2, 0.08)
    assert made.allocation is Allocation.RESERVE_MAX
