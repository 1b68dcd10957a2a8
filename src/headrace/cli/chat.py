"""`headrace chat`: a conversation in the terminal."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

from headrace.cli import options
from headrace.cli.console import dim, say
from headrace.cli.params import Parser, integer, number
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.engine.llm import LLM

PROMPT = "> "
MORE = "… "
HELP = '''
  """             begin or end a message of several lines
  /reset          forget the conversation
  /set            show the settings
  /set NAME VALUE change one: temperature, top_p, top_k, min_p, max_tokens, seed, system
  /help           this list
  /exit           leave (or Ctrl-D)
  Ctrl-C          stop the answer'''

_NUMBERS: dict[str, Parser] = {
    "temperature": number(0, 100),
    "top_p": number(0, 1),
    "top_k": integer(0),
    "min_p": number(0, 1),
    "max_tokens": integer(1),
    "seed": options.ANY_INTEGER,
}


@dataclass(slots=True)
class Conversation:
    """What was said and how the next answer is drawn."""

    settings: dict[str, float | int] = field(default_factory=dict)
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def prompt(self) -> list[dict[str, str]]:
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + self.messages


class Interrupts:
    """Ctrl-C while the chat runs: at the prompt it gives up the line, elsewhere it is only noted.

    So a step of the engine is never torn apart. Use it as a context manager.
    """

    def __init__(self) -> None:
        self.at_prompt = False
        self.seen = False
        self._before: signal.Handlers | Callable[[int, FrameType | None], object] | int | None

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        if self.at_prompt:
            self.at_prompt = False
            raise KeyboardInterrupt
        self.seen = True

    def read_line(self, prompt: str) -> str:
        """`input`; raises KeyboardInterrupt or EOFError."""
        try:
            self.at_prompt = True
            return input(prompt)
        finally:
            self.at_prompt = False


def chat(
    model: options.Model,
    system: options.System = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = 0.7,
    seed: options.Seed = None,
    threads: options.Threads = None,
    activations: options.ActivationsOption = options.Activations.QUANTIZED,
    kv_cache_memory: options.KvCacheMemory = None,
    max_model_len: options.MaxModelLen = None,
    kv_dtype: options.KvDtypeOption = options.KvDtype.FP16,
) -> None:
    """Talk with a model in the terminal.

    Ctrl-C stops the answer, Ctrl-D leaves; /help lists what else there is.
    """
    from headrace.cli.session import open_llm

    talk = Conversation(system=system)
    talk.settings["temperature"] = temperature
    for name, value in (("max_tokens", max_tokens), ("seed", seed)):
        if value is not None:
            talk.settings[name] = value
    with open_llm(
        model,
        threads=threads,
        activations=activations.value,
        kv_cache_bytes=kv_cache_memory,
        max_model_len=max_model_len,
        max_num_seqs=1,
        kv_dtype=kv_dtype.value,
    ) as llm:
        if not llm.has_chat_template:
            raise HeadraceError(
                f"{model} has no chat template, so it cannot hold a conversation; "
                "complete text with `headrace run` instead."
            )
        if sys.stdin.isatty():
            import readline  # noqa: F401 - gives input() line editing and history

            say(dim(f"{model}; /help lists the commands."))
        with Interrupts() as interrupts:
            for message, is_command in messages(interrupts):
                if not is_command:
                    turn(llm, talk, message, interrupts)
                elif not command(talk, message):
                    return


def messages(interrupts: Interrupts) -> Iterator[tuple[str, bool]]:
    """What is typed until the end of the input, and whether it is a command.

    A slash within triple quotes is the text's own.
    """
    lines: list[str] | None = None  # of a message between two triple quotes
    while True:
        try:
            prompt = PROMPT if lines is None else MORE
            line = interrupts.read_line(prompt if sys.stdin.isatty() else "")
        except KeyboardInterrupt:  # gives up the line, or the message of several lines
            lines = None
            say()
            continue
        except EOFError:
            return
        if lines is not None:
            end = line.rstrip().endswith('"""')
            lines.append(line.rstrip().removesuffix('"""') if end else line)
            if end:
                message, lines = "\n".join(lines).strip(), None
                if message:
                    yield message, False
        elif line.lstrip().startswith('"""'):
            rest = line.lstrip().removeprefix('"""')
            if not rest.rstrip().endswith('"""'):
                lines = [rest]
            elif message := rest.rstrip().removesuffix('"""').strip():
                yield message, False
        elif line.strip():
            yield line.strip(), line.strip().startswith("/")


def command(talk: Conversation, line: str) -> bool:
    """Carry out a command that begins with a slash. False: leave."""
    try:
        name, *arguments = shlex.split(line)
    except ValueError:
        name, *arguments = line.split()
    if name in {"/exit", "/quit", "/bye"}:
        return False
    if name == "/reset":
        talk.messages.clear()
        say(dim("The conversation is forgotten."))
    elif name == "/set":
        _set(talk, arguments)
    elif name in {"/help", "/?"}:
        say(HELP.strip("\n"))
    else:
        say(f"There is no command {name}; /help lists them.")
    return True


def _set(talk: Conversation, arguments: list[str]) -> None:
    if not arguments:
        shown = {**talk.settings, "system": talk.system or "none"}
        say("\n".join(f"  {name} = {value}" for name, value in shown.items()))
        return
    name, value = arguments[0], " ".join(arguments[1:])
    if name == "system":
        talk.system = value or None
    elif name not in _NUMBERS:
        say(f"There is no setting {name}; there are: {', '.join([*_NUMBERS, 'system'])}.")
        return
    elif not value:
        talk.settings.pop(name, None)
    else:
        try:
            talk.settings[name] = _NUMBERS[name](value)
        except ValueError as error:
            say(f"{name}: {error}")
            return
    say(dim(f"{name} = {value or 'default'}"))


def turn(llm: LLM, talk: Conversation, message: str, interrupts: Interrupts) -> None:
    """One question and its answer. What was said before Ctrl-C stays part of the conversation."""
    import msgspec

    from headrace.engine.sampling import SamplingParams

    talk.messages.append({"role": "user", "content": message})
    parts: list[str] = []
    try:
        params = msgspec.convert(talk.settings, SamplingParams)
        answer_chunks = llm.chat_stream(talk.prompt(), params)
        interrupts.seen = False
        with closing(answer_chunks) as chunks:
            for chunk in chunks:
                parts.append(chunk.text)
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
                if interrupts.seen:
                    say(dim(" (stopped)"))
                    break
    except HeadraceError as error:
        say(f"headrace: {error}")
    answer = "".join(parts)
    if answer:
        sys.stdout.write("\n")
        talk.messages.append({"role": "assistant", "content": answer})
    else:
        talk.messages.pop()
