"""The branches of a fork, and how they end."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar, overload

from headrace.errors import ProgramError
from headrace.program.drive import Operation, run_async, run_sync
from headrace.program.prompt import AsyncPrompt, BasePrompt, Prompt

P = TypeVar("P", bound=BasePrompt)
T = TypeVar("T")

_JOINED = "This branch was joined; go on with the prompt that it came from."


class BaseBranches(Sequence[P], Generic[P]):
    """The branches of one fork, in order. They are over once they were joined, or the block of a
    `with` that holds them ends."""

    def __init__(self, parent: P, branches: Sequence[P]) -> None:
        self._parent = parent
        self._content = parent._content
        self._branches = tuple(branches)
        self._is_over = False
        parent._groups.append(self)
        if parent._end is not None:  # it was cancelled just now
            self.cancel()

    @overload
    def __getitem__(self, index: int) -> P: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[P]: ...

    def __getitem__(self, index: int | slice) -> P | Sequence[P]:
        return self._branches[index]

    def __len__(self) -> int:
        return len(self._branches)

    def cancel(self) -> None:
        """Cancel every branch."""
        for branch in self._branches:
            branch.cancel()

    async def _join(self, keep: P | None) -> dict[str, list[str]]:
        joined = self._joinable(keep)
        names = [name for name in joined[0]._named if all(name in b._named for b in joined)]
        gathered = {name: [branch[name] for branch in joined] for name in names}
        if keep is not None:
            self._parent._adopt(keep)
        await self._leave(keep)
        return gathered

    def _joinable(self, keep: P | None) -> list[P]:
        """The branches that were not cancelled. Raises ProgramError when they cannot be joined."""
        if self._is_over:
            raise ProgramError("These branches are over; they cannot be joined again.")
        self._parent._check_idle()
        if keep is not None and all(branch is not keep for branch in self._branches):
            raise ProgramError("The prompt to keep is none of these branches.")
        if keep is not None and self._parent._content is not self._content:
            raise ProgramError(
                "The prompt has gone on since it was forked, so it cannot become one of its "
                "branches; go on with the branch itself."
            )
        joined = []
        for i, branch in enumerate(self._branches):
            if branch._at_work.locked():
                raise ProgramError(f"Branch {i} is still at work; wait for it, or cancel it.")
            if branch.is_cancelled:
                if branch is keep:
                    raise ProgramError(f"Branch {i} was cancelled; it cannot be kept.")
                continue
            if branch._failure is not None:
                raise ProgramError(
                    f"Branch {i} failed ({_brief(branch._failure)}); cancel it to join the others."
                ) from branch._failure
            joined.append(branch)
        if not joined:
            raise ProgramError("Every branch was cancelled; there is nothing to join.")
        return joined

    async def _leave(self, keep: P | None) -> None:
        """End all branches, and give up what the runtime holds of them alone."""
        if self._is_over:
            return
        self._is_over = True
        self._parent._groups.remove(self)
        sent = [ids for branch in self._branches for ids in branch._sent_below() if ids]
        for branch in self._branches:
            branch._finish(_JOINED)
        if sent:
            with contextlib.suppress(Exception):  # a hint that could not be given
                await self._tell(keep, sent)

    async def _tell(self, keep: P | None, sent: list[tuple[int, ...]]) -> None:
        """Hint that of these ids only what `keep`, or else the parent, begins with has a future."""
        kept = keep._sent if keep is not None else ()
        if not kept:
            encoder = self._parent.session.encoder
            kept = (await encoder.encode(self._content, [""], self._parent._wait)).ids(0)
        self._parent._abandon(kept, sent)

    async def _abandon_all(self) -> None:
        """At the end of a block: what was not joined is cancelled."""
        if not self._is_over:
            self.cancel()
            await self._leave(None)


class Branches(BaseBranches[Prompt]):
    """Branches of a Prompt. As a context manager: what was not joined is cancelled at the end."""

    def join(self, keep: Prompt | None = None) -> dict[str, list[str]]:
        """End the branches and return what they found: for each variable that all of them have set
        since the fork, its values in their order. Cancelled branches are left out.

        With `keep` the prompt goes on as that branch. What the model remembers of the others is
        the first to be forgotten. Raises ProgramError, and ends nothing, if a branch has failed or
        is at work.
        """
        return self._run(self._join(keep))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._abandon_all())

    def _run(self, body: Operation[T]) -> T:
        return run_sync(body, self._parent.session.timeout_s)


class AsyncBranches(BaseBranches[AsyncPrompt]):
    """Branches of an AsyncPrompt. See Branches."""

    async def join(self, keep: AsyncPrompt | None = None) -> dict[str, list[str]]:
        """See Branches.join."""
        return await self._run(self._join(keep))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._run(self._abandon_all())

    async def _run(self, body: Operation[T]) -> T:
        return await run_async(body, self._parent.session.timeout_s)


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"
