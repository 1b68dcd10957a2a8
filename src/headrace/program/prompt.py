"""Prompts: text that grows by appending, by what the model writes, and by what it chooses."""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from headrace.engine.sampling import mix64
from headrace.errors import CancelledBranchError, ProgramError, RequestError
from headrace.program import scoring
from headrace.program.arguments import (
    GenOptions,
    check_tails,
    options_of,
    params_of,
    text_of,
)
from headrace.program.base import Counts, Message, Scored
from headrace.program.content import Content
from headrace.program.drive import Operation, Scope, run_async, run_sync, sections, settled

if TYPE_CHECKING:
    from headrace.program.branches import AsyncBranches, BaseBranches, Branches
    from headrace.program.session import BaseSession

T = TypeVar("T")

MAX_FORK = 256
_CANCELLED = "This branch was cancelled."


@dataclass(frozen=True, slots=True)
class Answer:
    """What `gen` got. `finish_reason`: "stop" or "length"; `stop_reason`: the stop string or id.
    `logprobs`: of its tokens, those that ended it included, if they were asked for."""

    text: str
    finish_reason: str
    stop_reason: str | int | None
    seed: int
    logprobs: tuple[float, ...] | None
    counts: Counts


@dataclass(frozen=True, slots=True)
class Selection:
    """What `select` chose. `scores`: of every option, in their order; see docs/program.md."""

    text: str
    index: int
    scores: tuple[float, ...]
    counts: Counts


class BasePrompt:
    """What both kinds of prompt share: everything that needs no model.

    Owned by one thread or task at a time: two operations at once are refused. An operation that
    fails leaves the prompt as it was.
    """

    def __init__(self, session: BaseSession, content: Content, seed: int) -> None:
        self.session = session
        self._content = content
        self._variables: dict[str, str] = {}
        self._results: dict[str, Answer | Selection] = {}
        self._named: dict[str, None] = {}  # variables set since it was forked, in order
        self._seed = seed
        self._num_drawn = 0
        self._sent: tuple[int, ...] = ()  # the last ids that the runtime has seen of it
        self._scope = Scope(_CANCELLED)
        self._at_work = threading.Lock()
        self._end: str | None = None  # why it can be used no more
        self.is_cancelled = False
        self._failure: BaseException | None = None
        self._groups: list[BaseBranches[Any]] = []  # forked from it and not over

    # ---- what it holds ----

    @property
    def text(self) -> str:
        """The text so far; in a conversation, that of the answer which is being written."""
        return self._content.text

    @property
    def messages(self) -> list[Message]:
        """The turns of a conversation so far."""
        return list(self._content.messages)

    @property
    def variables(self) -> dict[str, str]:
        """A copy of all variables."""
        return dict(self._variables)

    def __getitem__(self, name: str) -> str:
        """The value of a variable. Raises ProgramError if there is none."""
        if name not in self._variables:
            known = ", ".join(self._variables) or "none"
            raise ProgramError(f"The prompt has no variable {name!r}; it has: {known}.")
        return self._variables[name]

    def __setitem__(self, name: str, value: str) -> None:
        self._check_idle()
        self._variables[name] = text_of("A variable", value)
        self._named[name] = None

    def __contains__(self, name: object) -> bool:
        return name in self._variables

    def result(self, name: str) -> Answer | Selection:
        """All that is known of the answer or choice that was stored under a name."""
        if name not in self._results:
            raise ProgramError(f"No gen or select of this prompt was named {name!r}.")
        return self._results[name]

    # ---- what a program writes ----

    def append(self, text: str) -> Self:
        """Append text. Texts appended one after the other are as one."""
        self._check_idle()
        self._content = self._content.add_text(text_of("Text", text))
        return self

    def __iadd__(self, text: str) -> Self:
        """`prompt += text` is `prompt.append(text)`."""
        return self.append(text)

    def system(self, text: str) -> Self:
        """Add a turn of the system to the conversation."""
        return self._add_message("system", text)

    def user(self, text: str) -> Self:
        """Add a turn of the user; an answer that was being written is over."""
        return self._add_message("user", text)

    def assistant(self, text: str) -> Self:
        """Add a whole turn of the assistant, as an example."""
        return self._add_message("assistant", text)

    def _add_message(self, role: str, text: str) -> Self:
        self._check_idle()
        self._content = self._content.add_message(role, text_of("A message", text))
        return self

    # ---- life ----

    def cancel(self) -> None:
        """Give this branch up, and all that was forked from it: what runs is aborted, nothing new
        begins. May be called at any time and from any thread."""
        if self._end is None:
            self.is_cancelled = True
        self._finish(_CANCELLED)

    def _finish(self, reason: str) -> None:
        """End this prompt, and cancel what was forked from it. Not by recursion: forks of forks may
        be as deep as there may be branches."""
        self._end_alone(reason)
        pending = self._forked()
        while pending:
            branch = pending.pop()
            if branch._end is None:  # else whoever ended it sees to those below
                branch.is_cancelled = True
                branch._end_alone(_CANCELLED)
                pending += branch._forked()

    def _end_alone(self, reason: str) -> None:
        if self._end is None:
            self._end = reason
        self.session.end_branch(self)
        self._scope.cancel(self._end)

    def _forked(self) -> list[BasePrompt]:
        return [branch for group in list(self._groups) for branch in group]

    def _check_usable(self) -> None:
        if self._end is not None:
            raise CancelledBranchError(self._end) if self.is_cancelled else ProgramError(self._end)
        self.session.check_open()

    def _check_idle(self) -> None:
        self._check_usable()
        if self._at_work.locked():
            raise _at_work_error()

    def _sent_below(self) -> list[tuple[int, ...]]:
        """What the runtime has seen of this branch and of all that was forked from it."""
        sent, pending = [], [self]
        while pending:
            branch = pending.pop()
            sent.append(branch._sent)
            pending += branch._forked()
        return sent

    def _draw_seed(self) -> int:
        """The seed of the next thing that is drawn. It depends on the session's seed and on the
        way here, not on when or where it happens."""
        return mix64(self._seed, self._num_drawn + 1)

    # ---- operations ----

    async def _operate(self, body: Coroutine[Any, Any, T]) -> T:
        """Run the body of an operation: one at a time, and its failure is remembered."""
        try:
            self._check_usable()
            if not self._at_work.acquire(blocking=False):
                raise _at_work_error()
        except BaseException:
            body.close()
            raise
        try:
            result = await body
        except CancelledError:
            self._failure = CancelledBranchError(self._cancel_reason())
            raise self._failure from None
        except BaseException as error:
            self._failure = error
            raise
        else:
            self._failure = None
            return result
        finally:
            self._at_work.release()

    def _scopes(self) -> tuple[Scope, ...]:
        return (self._scope, self.session.scope, *sections.get())

    def _cancel_reason(self) -> str:
        reasons = [scope.reason for scope in self._scopes() if scope.is_cancelled]
        return reasons[0] if reasons else "The request was cancelled."

    async def _wait(self, future: Future[T]) -> T:
        scopes = self._scopes()
        for scope in scopes:
            scope.watch(future)
        if any(scope.is_cancelled for scope in scopes):
            raise CancelledError  # also if the future was too quick to be cancelled
        return await settled(future)

    async def _gen(self, name: str | None, options: GenOptions) -> str:
        given = params_of(options, self._draw_seed())
        session, content = self.session, self._content
        encoded = await session.encoder.encode(content, [""], self._wait)
        ids = self._sent = encoded.ids(0)
        generated = await self._wait(session.runtime.generate(ids, given))
        run, left = await session.encoder.run_of(generated, self._wait)
        self._num_drawn += 1
        self._content = content.add_run(encoded.head, encoded.open[0], run).add_text(left)
        self._sent = ids + generated.token_ids
        session.count(generated.counts)
        assert given.seed is not None
        answer = Answer(
            generated.text,
            generated.finish_reason,
            generated.stop_reason,
            given.seed,
            generated.logprobs,
            generated.counts,
        )
        return self._store(name, answer)

    async def _select(
        self, name: str | None, options: Sequence[str], normalize: bool, end: str
    ) -> str:
        options = options_of(options, text_of("end", end))
        session, content = self.session, self._content
        endings = ["", *(option + end for option in options)]
        encoded = await session.encoder.encode(content, endings, self._wait)
        plain, *sequences = [encoded.ids(i) for i in range(len(endings))]
        prefix_len = min(scoring.common_len(plain, ids) for ids in sequences)
        tails = [ids[prefix_len:] for ids in sequences]
        check_tails(prefix_len, options, tails)
        self._sent = plain
        scored = await self._score(plain[:prefix_len], tails)
        scores = scoring.totals([each for s in scored for each in s.logprobs], normalize=normalize)
        index = scoring.best(scores)
        self._content = content.add_text(options[index])
        self._sent = sequences[index]
        self._abandon(sequences[index], sequences)
        counts = sum((s.counts for s in scored), Counts())
        session.count(counts)
        return self._store(name, Selection(options[index], index, scores, counts))

    async def _score(
        self, prefix: tuple[int, ...], tails: Sequence[tuple[int, ...]]
    ) -> list[Scored]:
        futures = self.session.runtime.score(prefix, tails)
        try:
            return [await self._wait(future) for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def _abandon(self, kept: Sequence[int], others: Sequence[Sequence[int]]) -> None:
        for prefix, tails in scoring.abandoned(kept, others):
            self.session.runtime.abandon(prefix, tails)

    def _store(self, name: str | None, result: Answer | Selection) -> str:
        if name is not None:
            self._variables[name] = result.text
            self._named[name] = None
            self._results[name] = result
        return result.text

    def _split(self, n: int) -> list[Self]:
        """`n` copies, each with a seed of its own."""
        self._check_idle()
        if type(n) is not int or not 1 <= n <= MAX_FORK:
            raise RequestError(
                f"A prompt forks into 1 to {MAX_FORK} branches, not {n!r}.",
                param="n",
                code="invalid_value",
            )
        seed = self._draw_seed()
        copies = [type(self)(self.session, self._content, mix64(seed, i + 1)) for i in range(n)]
        for copy in copies:
            copy._variables = dict(self._variables)
            copy._results = dict(self._results)
        self.session.add_branches(copies)
        self._num_drawn += 1
        return copies

    def _adopt(self, branch: BasePrompt) -> None:
        """Go on as one of its branches."""
        self._content = branch._content
        self._variables = dict(branch._variables)
        self._results = dict(branch._results)
        self._named |= branch._named
        self._sent = branch._sent


class Prompt(BasePrompt):
    """A prompt whose operations return when they are done."""

    def gen(self, name: str | None = None, **options: Unpack[GenOptions]) -> str:
        """Let the model go on, up to `max_tokens` (128) tokens, a stop string or its own end.

        The answer becomes part of the prompt, and the value of the variable `name`. Raises
        RequestError for options or a length that cannot be served.
        """
        return self._run(self._gen(name, options))

    def select(
        self, name: str | None, options: Sequence[str], *, normalize: bool = False, end: str = ""
    ) -> str:
        """Append the likeliest of 1 to 256 options; the first one among equals.

        The score of an option is the sum of the logprobs of its tokens, with `normalize` their
        mean. `end` is text that is to follow: it is scored with each option, so that an option
        that another one begins with has no advantage, and not appended.
        """
        return self._run(self._select(name, options, normalize, end))

    def fork(self, n: int) -> Branches:
        """`n` branches that begin as this prompt: same text, same variables, seeds of their own."""
        from headrace.program.branches import Branches

        return Branches(self, self._split(n))

    def _run(self, body: Operation[T]) -> T:
        return run_sync(self._operate(body), self.session.timeout_s)


class AsyncPrompt(BasePrompt):
    """A prompt whose operations are awaited."""

    async def gen(self, name: str | None = None, **options: Unpack[GenOptions]) -> str:
        """See Prompt.gen."""
        return await self._run(self._gen(name, options))

    async def select(
        self, name: str | None, options: Sequence[str], *, normalize: bool = False, end: str = ""
    ) -> str:
        """See Prompt.select."""
        return await self._run(self._select(name, options, normalize, end))

    def fork(self, n: int) -> AsyncBranches:
        """See Prompt.fork; needs no waiting."""
        from headrace.program.branches import AsyncBranches

        return AsyncBranches(self, self._split(n))

    async def _run(self, body: Operation[T]) -> T:
        return await run_async(self._operate(body), self.session.timeout_s)


def _at_work_error() -> ProgramError:
    return ProgramError("The prompt is at work already; fork it to do two things at a time.")
