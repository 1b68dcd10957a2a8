"""`headrace run` end to end on a tiny model."""

from __future__ import annotations

from pathlib import Path

from headrace import LLM, SamplingParams
from tests.unit.cli.conftest import Cli

FLAGS = ("--max-tokens", 12, "--temperature", 0)
PARAMS = SamplingParams(max_tokens=12, temperature=0.0)


def test_run_answers_with_the_chat_template(cli: Cli, tiny_model: Path) -> None:
    result = cli("run", tiny_model, "hello", "--system", "be brief", *FLAGS)
    assert (result.returncode, result.stderr) == (0, "")
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ]
    with LLM(tiny_model, kv_cache_bytes=1 << 24) as llm:
        assert result.stdout == llm.chat(messages, PARAMS).text + "\n"


def test_run_raw_and_base_models_complete_the_text(
    cli: Cli, tiny_model: Path, base_model: Path
) -> None:
    with LLM(tiny_model, kv_cache_bytes=1 << 24) as llm:
        expected = llm.generate("hello", PARAMS)[0].text + "\n"
    assert cli("run", tiny_model, "hello", "--raw", *FLAGS).stdout == expected
    result = cli("run", base_model, "hello", *FLAGS, "--system", "x")
    assert result.stdout == expected
    assert "--system is ignored" in result.stderr


def test_run_reads_the_prompt_from_stdin(cli: Cli, tiny_model: Path) -> None:
    given = cli("run", tiny_model, "hello", *FLAGS).stdout
    assert cli("run", tiny_model, "-", *FLAGS, stdin="hello\n").stdout == given
    assert cli("run", tiny_model, *FLAGS, stdin="hello").stdout == given


def test_same_seed_same_text(cli: Cli, tiny_model: Path) -> None:
    words = ("run", tiny_model, "hello", "--max-tokens", 12, "--temperature", 1, "--seed", 7)
    assert cli(*words).stdout == cli(*words, "--threads", 1).stdout


def test_a_prompt_that_is_too_long_is_one_sentence(cli: Cli, tiny_model: Path) -> None:
    result = cli("run", tiny_model, "hello", "--max-tokens", 100_000)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert "100000" in result.stderr
