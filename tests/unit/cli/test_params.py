"""Declared parameters: plain lines read in place mean what typer makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
from enum import StrEnum
from typing import Annotated, Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.cli.app import register
from headrace.cli.params import Arg, Opt, choice, integer, number, parse, size, utf8


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


calls: list[dict[str, Any]] = []


def verb(
    name: Annotated[str, Arg("NAME", "A name.")],
    rest: Annotated[list[str] | None, Arg("REST", "More names.")] = None,
    count: Annotated[int, Opt("--count", "How many.", "N", integer(0, 10))] = 3,
    share: Annotated[float | None, Opt("--share", "How much.", "X", number(0, 1))] = None,
    colour: Annotated[Colour, Opt("--colour", "Which.", "C", choice(Colour))] = Colour.RED,
    tag: Annotated[list[str] | None, Opt("--tag", "Labels.", "T")] = None,
    memory: Annotated[int | None, Opt("--memory", "Bytes.", "SIZE", size)] = None,
    key: Annotated[str | None, Opt("--key", "Secret.", "K", envvar="TEST_KEY")] = None,
    fast: Annotated[bool, Opt("--fast", "Hurry.")] = False,
) -> None:
    """Do it."""
    calls.append({key: value for key, value in locals().items() if value not in (None, [], ())})


def by_typer(words: list[str], environment: dict[str, str] | None = None) -> dict[str, Any] | None:
    """What the verb is called with through typer, or None for a usage error."""
    app = typer.Typer()
    register(app, verb)
    calls.clear()
    status = CliRunner().invoke(app, words, env={"TEST_KEY": None, **(environment or {})}).exit_code
    assert status in {0, 2}
    return calls[0] if status == 0 else None


def by_parse(words: list[str], environment: dict[str, str] | None = None) -> dict[str, Any] | None:
    arguments = parse(verb, words, environment or {})
    if arguments is None:
        return None
    calls.clear()
    verb(**arguments)
    return calls[0]


PLAIN = [
    ["a"],
    ["a", "b", "c"],
    ["--count", "7", "a"],
    ["a", "--count=0"],
    ["a", "--share", "0.25", "--fast"],
    ["a", "--colour", "blue"],
    ["a", "--tag", "x", "--tag=y"],
    ["a", "--memory", "1.5G"],
    ["--fast", "--", "--count"],
    ["-"],
    ["a", "--key", "s"],
    ["a", "--tag=", "--key=x=y"],
]
WRONG = [
    [],
    ["a", "--nope"],
    ["a", "--count", "11"],
    ["a", "--count", "x"],
    ["a", "--count"],
    ["a", "--share", "nan"],
    ["a", "--colour", "green"],
    ["a", "--memory", "3X"],
    ["a", "--fast=yes"],
]


@pytest.mark.parametrize("words", PLAIN)
def test_plain_lines_mean_the_same_both_ways(words: list[str]) -> None:
    found = by_parse(words)
    assert found is not None
    assert found == by_typer(words)


@pytest.mark.parametrize("words", WRONG)
def test_mistakes_are_left_to_typer_which_refuses_them(words: list[str]) -> None:
    assert by_parse(words) is None
    assert by_typer(words) is None


@pytest.mark.parametrize("words", [["--help"], ["a", "-h"]])
def test_help_is_left_to_typer(words: list[str]) -> None:
    assert by_parse(words) is None


def test_environment_fills_what_the_line_leaves_out() -> None:
    environment = {"TEST_KEY": "from outside"}
    for read in (by_parse, by_typer):
        found = read(["a"], environment)
        assert found is not None
        assert found["key"] == "from outside"
        found = read(["a", "--key", "given"], environment)
        assert found is not None
        assert found["key"] == "given"


WORDS = st.sampled_from(
    ["a", "b", "-", "--", "--count", "--count=4", "5", "99", "--fast", "--tag", "--tag=t",
     "--share", "0.5", "--colour=blue", "--nope", "--memory", "2M"]
)  # fmt: skip


@given(st.lists(WORDS, max_size=7))
def test_any_line_that_is_read_in_place_means_what_typer_says(words: list[str]) -> None:
    found = by_parse(words)
    if found is not None:
        assert found == by_typer(words)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1048576", 1 << 20),
        ("512M", 512 << 20),
        ("512MiB", 512 << 20),
        ("2g", 2 << 30),
        ("1.5 GB", 3 << 29),
        ("1K", 1024),
    ],
)
def test_size(text: str, num_bytes: int) -> None:
    assert size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "0", "-1", "G", "1P", "1e9", "1G2", "0.0001", "one"])
def test_size_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no size"):
        size(text)


@pytest.mark.parametrize("text", ["9" * 400, "9" * 400 + "T", str(1 << 64), "8388608T"])
def test_size_refuses_what_no_machine_has(text: str) -> None:
    with pytest.raises(ValueError, match="is more than any machine has"):
        size(text)


def test_bytes_that_are_no_text_are_refused() -> None:
    """The system hands them over as lone surrogates, which nothing can send on."""
    assert utf8("Grüße 水") == "Grüße 水"
    with pytest.raises(ValueError, match=r"'x\\udcff' is no UTF-8 text\."):
        utf8(os.fsdecode(b"x\xff"))


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "m.gguf", "--api-key"],
        ["serve", "m.gguf", "--cors-origin"],
        ["serve", "m.gguf", "--served-model-name"],
        ["bench", "serve", "http://127.0.0.1:1", "--model"],
        ["batch", "in.jsonl", "out.jsonl", "--model"],
    ],
)
def test_names_and_keys_that_are_no_text_are_wrong_usage(words: list[str]) -> None:
    command = [sys.executable, "-m", "headrace.cli", *words, os.fsdecode(b"\xff")]
    result = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert result.returncode == 2, result.stderr
    assert b"is no UTF-8 text" in result.stderr
    assert b"Traceback" not in result.stderr
