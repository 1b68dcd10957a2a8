"""`headrace chat`: messages, commands, and what Ctrl-C does to an answer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from headrace import LLM, SamplingParams
from headrace.cli import chat
from headrace.cli.chat import Conversation, command
from tests.unit.cli.conftest import Cli


def test_a_conversation_keeps_what_was_said(cli: Cli, tiny_model: Path) -> None:
    script = "hello\nand then?\n/reset\nhello\n/exit\nnever\n"
    result = cli("chat", tiny_model, "--max-tokens", 6, "--temperature", 0, stdin=script)
    assert result.returncode == 0
    params = SamplingParams(max_tokens=6, temperature=0.0)
    with LLM(tiny_model, kv_cache_bytes=1 << 24) as llm:
        first = llm.chat([{"role": "user", "content": "hello"}], params).text
        messages = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": first},
            {"role": "user", "content": "and then?"},
        ]
        second = llm.chat(messages, params).text
    assert result.stdout == f"{first}\n{second}\n{first}\n"


def test_a_message_of_several_lines(cli: Cli, tiny_model: Path) -> None:
    flags = ("--max-tokens", 6, "--temperature", 0)
    several = cli("chat", tiny_model, *flags, stdin='"""one\ntwo"""\n').stdout
    same_line = cli("chat", tiny_model, *flags, stdin='"""one two"""\n').stdout
    with LLM(tiny_model, kv_cache_bytes=1 << 24) as llm:
        params = SamplingParams(max_tokens=6, temperature=0.0)
        for content, output in (("one\ntwo", several), ("one two", same_line)):
            expected = llm.chat([{"role": "user", "content": content}], params).text
            assert output == expected + "\n"


def test_a_slash_in_quotes_is_text_and_nothing_in_quotes_is_nothing(
    cli: Cli, tiny_model: Path
) -> None:
    script = '"""/exit\n"""\n"""/exit"""\n""""""\n"""\n \n"""\n'
    result = cli("chat", tiny_model, "--max-tokens", 6, "--temperature", 0, stdin=script)
    assert (result.returncode, result.stderr) == (0, "")
    with LLM(tiny_model, kv_cache_bytes=1 << 24) as llm:
        params = SamplingParams(max_tokens=6, temperature=0.0)
        talk = [{"role": "user", "content": "/exit"}]
        first = llm.chat(talk, params).text
        talk += [{"role": "assistant", "content": first}, {"role": "user", "content": "/exit"}]
        assert result.stdout == f"{first}\n{llm.chat(talk, params).text}\n"


def test_a_base_model_cannot_chat(cli: Cli, base_model: Path) -> None:
    result = cli("chat", base_model, stdin="hello\n")
    assert result.returncode == 1
    assert "has no chat template" in result.stderr


def test_an_error_ends_the_turn_not_the_chat(cli: Cli, tiny_model: Path) -> None:
    script = "/set max_tokens 100000\nhello\n/set max_tokens 2\nhello\n"
    result = cli("chat", tiny_model, stdin=script)
    assert result.returncode == 0
    assert "headrace: " in result.stderr
    assert result.stdout.count("\n") >= 1


@pytest.mark.parametrize(
    ("lines", "settings", "system"),
    [
        (["/set temperature 0.5"], {"temperature": 0.5}, None),
        (["/set top_k 40", "/set top_k"], {}, None),
        (['/set system "be brief"'], {}, "be brief"),
        (["/set system it's fine"], {}, "it's fine"),
        (["/set system x", "/set system"], {}, None),
        (["/set seed many"], {}, None),
        (["/set colour red"], {}, None),
        (["/set temperature 5000", "/set temperature nan", "/set temperature -1"], {}, None),
        (["/set top_p 1.1", "/set min_p -1", "/set max_tokens 0", "/set top_k 1.5"], {}, None),
    ],
)
def test_set(lines: list[str], settings: dict[str, float], system: str | None) -> None:
    talk = Conversation()
    for line in lines:
        assert command(talk, line)
    assert (talk.settings, talk.system) == (settings, system)


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    talk = Conversation(messages=[{"role": "user", "content": "x"}])
    assert command(talk, "/reset")
    assert talk.messages == []
    assert command(talk, "/help")
    assert command(talk, "/nonsense")
    assert "There is no command /nonsense" in capsys.readouterr().err
    assert not command(talk, "/exit")


def test_interrupt_stops_the_answer_and_frees_its_blocks(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = Conversation(settings={"temperature": 0.0, "max_tokens": 200})
    with LLM(tiny_model, kv_cache_bytes=1 << 24) as llm:
        step, num_steps = llm.engine.step, 0

        def interrupted_step() -> object:
            nonlocal num_steps
            num_steps += 1
            if num_steps == 5:
                os.kill(os.getpid(), signal.SIGINT)
            return step()

        llm.engine.step = interrupted_step  # type: ignore[method-assign,assignment]  # a probe
        with chat.Interrupts() as interrupts:
            chat.turn(llm, talk, "hello", interrupts)
        assert num_steps <= 7
        assert not llm.engine.has_work()
        llm.engine.check()
    assert "(stopped)" in capsys.readouterr().err
    # What was said before stays part of the conversation.
    assert [message["role"] for message in talk.messages] == ["user", "assistant"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
