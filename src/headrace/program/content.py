"""What a prompt holds: messages, then runs of text. Values: never changed, only replaced."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.errors import ProgramError
from headrace.program.base import Message


@dataclass(frozen=True, slots=True)
class Run:
    """A piece of text. `ids` are fixed once they were part of a request (the model has read or
    written them); None: they still depend on what is appended."""

    text: str
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """`messages` of a conversation (none: a plain prompt), then the `runs` of the text after them.

    At most the last run is open (has no ids): texts that are appended to one another are one run,
    so that token ids depend on the text alone, never on how a program cut it.
    `head`: ids of the messages, once they are known.
    """

    messages: tuple[Message, ...] = ()
    runs: tuple[Run, ...] = ()
    head: tuple[int, ...] | None = None

    @property
    def text(self) -> str:
        """All text after the messages."""
        return "".join(run.text for run in self.runs)

    @property
    def open_text(self) -> str:
        """The text that has no ids yet."""
        return self.runs[-1].text if self.runs and self.runs[-1].ids is None else ""

    @property
    def fixed(self) -> tuple[Run, ...]:
        """The runs that have ids."""
        return self.runs[:-1] if self.runs and self.runs[-1].ids is None else self.runs

    def add_text(self, text: str) -> Content:
        """The content with more text at its end."""
        if not text:
            return self
        return replace(self, runs=(*self.fixed, Run(self.open_text + text)))

    def add_run(self, head: tuple[int, ...], open_ids: tuple[int, ...], run: Run) -> Content:
        """The content with an answer at its end. `head`, `open_ids`: of what was still open."""
        runs = self.fixed
        if open_ids or self.open_text:
            runs = (*runs, Run(self.open_text, open_ids))
        return Content(self.messages, (*runs, run), head if self.messages else None)

    def add_message(self, role: str, text: str) -> Content:
        """A conversation with one more turn; text after the messages was the assistant's turn."""
        if self.runs and not self.messages:
            raise ProgramError(
                f"A turn of the {role} cannot follow plain text; begin the prompt with turns."
            )
        messages = self.messages
        if self.runs:
            messages = (*messages, Message(role="assistant", content=self.text))
        return Content((*messages, Message(role=role, content=text)))
