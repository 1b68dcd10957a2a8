"""Sessions: parallel calls that fail, are interrupted or are many; sync and async alike."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from headrace.errors import CancelledBranchError, HeadraceError, ProgramError, RequestError
from headrace.program import AsyncPrompt, AsyncSession, Prompt, Session
from tests.support.scripted_runtime import ScriptedRuntime
from tests.support.serving import eventually


def broken(prompt: str) -> str | Exception | None:
    """Answers a, fails b, never answers c."""
    if prompt.endswith("b"):
        return HeadraceError("The model broke.")
    return None if prompt.endswith("c") else "1"


def threads_of_programs() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("program")]


def test_parallel_calls_run_at_one_time_and_answer_in_order() -> None:
    barrier = threading.Barrier(5, timeout=20)

    def work(branch: Prompt) -> str:
        barrier.wait()
        return branch.gen("x")

    with Session(ScriptedRuntime()) as session, session.prompt("a").fork(5) as branches:
        for i, branch in enumerate(branches):
            branch.append("b" * i)
        assert session.parallel(work, branches) == ["1", "2", "3", "4", "5"]
        assert session.parallel(work, []) == []
        assert session.parallel(lambda n: n * 2, range(300)) == list(range(0, 600, 2))
    assert not threads_of_programs()


def test_a_call_that_fails_ends_the_others() -> None:
    runtime = ScriptedRuntime(broken)
    seen: list[Exception] = []

    def work(letter: str) -> str:
        if letter == "b":
            eventually(lambda: len(runtime.pending) == 3)
        try:
            return session.prompt(letter).gen()
        except ProgramError as error:
            seen.append(error)
            # Nothing new begins in a section that is over.
            with pytest.raises(CancelledBranchError):
                session.prompt("a").gen()
            raise

    with Session(runtime) as session:
        with pytest.raises(HeadraceError, match="The model broke"):
            session.parallel(work, ["c", "c", "b", "c", *"a" * 100])
        assert [str(e) for e in seen] == ["Another call of the same parallel failed."] * 3
        assert all(future.cancelled() for future in runtime.pending)
        assert session.prompt("a").gen() == "1"
        assert session.scope.num_watched == 0
    assert not threads_of_programs()


def test_sections_within_sections_end_with_the_outer_one() -> None:
    runtime = ScriptedRuntime(broken)

    def outer(letter: str) -> list[str]:
        if letter == "b":
            eventually(lambda: len(runtime.pending) == 4)
        return session.parallel(lambda each: session.prompt(each).gen(), [letter] * 2)

    with Session(runtime) as session:
        with pytest.raises(HeadraceError, match="The model broke"):
            session.parallel(outer, ["c", "c", "b"])
        assert all(future.cancelled() for future in runtime.pending)


def test_branches_cancelled_from_outside_are_told_apart() -> None:
    runtime = ScriptedRuntime(broken)
    with Session(runtime) as session, session.prompt("c").fork(2) as branches:
        timer = threading.Timer(0.05, branches[0].cancel)
        timer.start()
        with pytest.raises(CancelledBranchError, match="This branch was cancelled"):
            session.parallel(lambda branch: branch.gen(), branches)
        assert all(future.cancelled() for future in runtime.pending)


def test_an_interrupt_ends_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = ScriptedRuntime(broken)

    def interrupted(*_: object, **__: object) -> object:
        eventually(lambda: len(runtime.pending) == 2)
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.program.session.wait", interrupted)
    with Session(runtime) as session:
        with pytest.raises(KeyboardInterrupt):
            session.parallel(lambda letter: session.prompt(letter).gen(), ["c", "c"])
        assert all(future.cancelled() for future in runtime.pending)
    assert not threads_of_programs()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": "x"}, "seed is a whole number"),
        ({"timeout_s": 0}, "timeout_s is above 0"),
        ({"model": "x"}, "go with the URL of a server"),
        ({"api_key": "x"}, "go with the URL of a server"),
    ],
)
def test_sessions_that_cannot_be(arguments: Any, message: str) -> None:
    with pytest.raises(HeadraceError, match=message):
        Session(ScriptedRuntime(), **arguments)


def test_an_answer_that_never_comes() -> None:
    runtime = ScriptedRuntime(broken)
    with Session(runtime, timeout_s=0.05) as session:
        prompt = session.prompt("c")
        with pytest.raises(HeadraceError, match=r"no answer within 0\.05 s"):
            prompt.gen()
        assert runtime.pending[0].cancelled()
        assert prompt.text == "c"


# ---- async ----


async def test_async_programs_do_what_sync_ones_do() -> None:
    def script(prompt: str) -> str:
        return str(len(prompt))

    one, two = ScriptedRuntime(script), ScriptedRuntime(script)
    with Session(one, seed=3) as session:
        prompt = session.prompt("a").append("b")
        prompt.gen("x")
        with prompt.fork(3) as branches:
            session.parallel(lambda branch: branch.append("c").gen("y"), branches)
            found = branches.join(keep=branches[1])
        prompt.select("z", ["d", "e"])
    async with AsyncSession(two, seed=3) as other:
        same = other.prompt("a").append("b")
        await same.gen("x")
        async with same.fork(3) as twigs:
            await other.parallel(lambda twig: twig.append("c").gen("y"), twigs)
            assert await twigs.join(keep=twigs[1]) == found
        await same.select("z", ["d", "e"])
    assert same.text == prompt.text
    assert same.variables == prompt.variables
    assert two.params == one.params
    assert (two.prompts, two.scored, two.abandoned) == (one.prompts, one.scored, one.abandoned)
    assert (one.num_closed, two.num_closed) == (1, 1)


async def test_an_async_call_that_fails_ends_the_others() -> None:
    runtime = ScriptedRuntime(broken)
    ended = 0

    async def work(letter: str) -> str:
        nonlocal ended
        if letter == "b":
            while len(runtime.pending) < 2:
                await asyncio.sleep(0)
        try:
            return await session.prompt(letter).gen()
        finally:
            ended += 1

    async with AsyncSession(runtime) as session:
        with pytest.raises(HeadraceError, match="The model broke"):
            await session.parallel(work, "ccb")
        assert ended == 3
        assert all(future.cancelled() for future in runtime.pending)
        assert await session.parallel(work, "aa") == ["1", "1"]
        assert session.scope.num_watched == 0


async def test_a_function_that_is_none_leaves_no_task() -> None:
    async with AsyncSession(ScriptedRuntime(broken)) as session:

        def work(letter: str) -> Any:
            if letter == "b":
                raise ZeroDivisionError
            return session.prompt(letter).gen()

        with pytest.raises(ZeroDivisionError):
            await session.parallel(work, "cb")
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancelled_task_leaves_nothing_running() -> None:
    runtime = ScriptedRuntime(broken)
    async with AsyncSession(runtime) as session:
        prompt = session.prompt("c")

        async def program() -> None:
            async with prompt.fork(2) as branches:
                await session.parallel(AsyncPrompt.gen, branches)

        task = asyncio.ensure_future(program())
        while len(runtime.pending) < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert all(future.cancelled() for future in runtime.pending)
        assert not session._branches
        assert session.scope.num_watched == 0


async def test_a_branch_cancelled_from_outside_is_no_cancelled_task() -> None:
    runtime = ScriptedRuntime(broken)
    async with AsyncSession(runtime) as session, session.prompt("c").fork(2) as branches:
        task = asyncio.ensure_future(branches[0].gen())
        while not runtime.pending:
            await asyncio.sleep(0)
        with pytest.raises(ProgramError, match="at work already"):
            await branches[0].gen()
        branches[0].cancel()
        with pytest.raises(CancelledBranchError, match="This branch was cancelled"):
            await task
        with pytest.raises(RequestError, match="1 to 256 options, not 0"):
            await branches[1].select("x", [])


async def test_closing_an_async_session_ends_its_operations() -> None:
    runtime = ScriptedRuntime(broken)
    session = AsyncSession(runtime)
    task = asyncio.ensure_future(session.prompt("c").gen())
    while not runtime.pending:
        await asyncio.sleep(0)
    await session.close()
    with pytest.raises(CancelledBranchError, match="The session is closed"):
        await task
    with pytest.raises(ProgramError, match="The session is closed"):
        session.prompt("a")
    with pytest.raises(ProgramError, match="The session is closed"):
        await session.parallel(AsyncPrompt.gen, [])
