"""Forks and how they end: joined, kept, cancelled, failed; clear errors, and nothing left over."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CancelledBranchError, HeadraceError, ProgramError, RequestError
from headrace.program import Prompt, Session
from headrace.program.prompt import BasePrompt
from headrace.program.session import MAX_BRANCHES
from tests.support.scripted_runtime import ScriptedRuntime
from tests.support.serving import eventually


@pytest.fixture
def runtime() -> ScriptedRuntime:
    return ScriptedRuntime()


@pytest.fixture
def session(runtime: ScriptedRuntime) -> Iterator[Session]:
    with Session(runtime, seed=1) as session:
        yield session
        assert session.scope.num_watched == 0
        assert not session._branches
    assert runtime.num_closed == 1
    assert all(future.cancelled() for future in runtime.pending)


def scripted(runtime: ScriptedRuntime, **answers: str | Exception | None) -> None:
    """Answer by the last letter of the prompt."""
    runtime.script = lambda prompt: answers[prompt[-1]]


# ---- fork ----


def test_branches_begin_as_the_prompt_and_go_their_own_way(session: Session) -> None:
    prompt = session.prompt("abc")
    prompt["x"] = "1"
    with prompt.fork(3) as branches:
        assert [b.text for b in branches] == ["abc"] * 3
        branches[0].append("d")
        branches[1]["x"] = "2"
        prompt.append("e")
        assert [b.text for b in branches] == ["abcd", "abc", "abc"]
        assert [b["x"] for b in branches] == ["1", "2", "1"]
        assert (prompt.text, prompt["x"]) == ("abce", "1")
        assert list(branches[1:]) == [branches[1], branches[2]]


def test_every_branch_draws_with_a_seed_of_its_own(
    runtime: ScriptedRuntime, session: Session
) -> None:
    prompt = session.prompt("abc")
    for _ in range(3):
        with prompt.fork(4) as branches, branches[0].fork(2) as below:
            for each in (*branches, *below, prompt):
                each.gen()
    seeds = [params.seed for params in runtime.params]
    assert len(set(seeds)) == len(seeds) == 21
    assert all(seed is not None and 0 <= seed < 1 << 53 for seed in seeds)


@pytest.mark.parametrize("n", [0, -1, 257, 10_000, 1.5, "3", True, None])
def test_forks_that_are_no_forks(session: Session, n: Any) -> None:
    with pytest.raises(RequestError, match="forks into 1 to 256 branches") as caught:
        session.prompt("a").fork(n)
    assert (caught.value.param, caught.value.status) == ("n", 400)


def test_forks_of_forks_are_bounded_too(session: Session) -> None:
    prompt = session.prompt("a")
    groups = [prompt.fork(256) for _ in range(MAX_BRANCHES // 256)]
    with pytest.raises(ProgramError, match=f"{MAX_BRANCHES} branches of this session are alive"):
        groups[0][0].fork(1)
    groups[3][7].cancel()
    groups[0][0].fork(1)
    with pytest.raises(ProgramError, match="join or cancel those that are done"):
        prompt.fork(1)
    for group in groups:
        group.cancel()
    prompt.fork(1).join()


@pytest.mark.parametrize("way", ["cancel", "join", "keep", "close"])
def test_forks_of_forks_may_be_as_deep_as_there_may_be_branches(way: str) -> None:
    runtime = ScriptedRuntime()
    session = Session(runtime, seed=1)
    first = session.prompt("a").fork(1)
    last = first[0]
    for _ in range(MAX_BRANCHES - 1):
        last = last.fork(1)[0]
    if way == "cancel":
        first.cancel()
    elif way == "join":
        first.join()
    elif way == "keep":
        first.join(keep=first[0])
    else:
        session.close()
        assert runtime.num_closed == 1
    assert not session._branches
    with pytest.raises(ProgramError):
        last.append("b")
    session.close()


# ---- join ----


def test_join_gathers_what_all_branches_found(session: Session) -> None:
    prompt = session.prompt("a")
    prompt["before"] = "0"
    branches = prompt.fork(3)
    for i, branch in enumerate(branches):
        branch.append("b" * i).gen("x")
        if i:
            branch["some"] = "1"
        branch["before"] = str(i)
    assert branches.join() == {"x": ["1", "2", "3"], "before": ["0", "1", "2"]}
    assert (prompt.text, prompt.variables) == ("a", {"before": "0"})


def test_the_prompt_goes_on_as_the_branch_that_is_kept(
    runtime: ScriptedRuntime, session: Session
) -> None:
    prompt = session.prompt("a")
    branches = prompt.fork(2)
    for i, branch in enumerate(branches):
        branch.append("bc"[i]).gen("x")
    branches.join(keep=branches[1])
    assert (prompt.text, prompt["x"], prompt.result("x").text) == ("ac2", "2", "2")
    prompt.gen()
    assert runtime.prompts[-1] == "ac2"
    outer = session.prompt("z").fork(1)
    inner = outer[0].fork(2)
    inner[1].gen("y")
    inner.join(keep=inner[1])
    assert outer.join()["y"] == ["1"]


def test_joining_what_cannot_be_joined(session: Session) -> None:
    prompt, other = session.prompt("a"), session.prompt("b")
    branches = prompt.fork(2)
    with pytest.raises(ProgramError, match="none of these branches"):
        branches.join(keep=other)
    with pytest.raises(ProgramError, match="none of these branches"):
        branches.join(keep=prompt)
    prompt.append("c")
    with pytest.raises(ProgramError, match="has gone on since it was forked"):
        branches.join(keep=branches[0])
    branches.join()
    with pytest.raises(ProgramError, match="cannot be joined again"):
        branches.join()
    for use in (
        branches[0].gen,
        lambda: branches[0].append("x"),
        lambda: branches[0].fork(2),
        lambda: branches[0].select(None, ["a"]),
        lambda: branches[0].user("x"),
        lambda: branches[0].__setitem__("x", "1"),
    ):
        with pytest.raises(ProgramError, match="go on with the prompt that it came from") as caught:
            use()
        assert not isinstance(caught.value, CancelledBranchError)
    assert branches[0].text == "a"
    branches[0].cancel()
    assert not branches[0].is_cancelled


def test_a_branch_that_failed_must_be_cancelled_first(
    runtime: ScriptedRuntime, session: Session
) -> None:
    broken = HeadraceError("The model broke.")
    scripted(runtime, b="1", c=broken)
    branches = session.prompt("a").fork(2)
    branches[0].append("b").gen("x")
    with pytest.raises(HeadraceError, match="The model broke"):
        branches[1].append("c").gen("x")
    with pytest.raises(ProgramError, match=r"Branch 1 failed \(HeadraceError: The model") as caught:
        branches.join()
    assert caught.value.__cause__ is broken
    branches[1].cancel()
    assert branches.join() == {"x": ["1"]}


def test_a_branch_that_recovers_has_not_failed(runtime: ScriptedRuntime, session: Session) -> None:
    scripted(runtime, b="1", c=HeadraceError("The model broke."))
    branches = session.prompt("a").fork(1)
    with pytest.raises(HeadraceError, match="The model broke"):
        branches[0].append("c").gen("x")
    branches[0].append("b").gen("x")
    assert branches.join() == {"x": ["1"]}


def test_a_cancelled_branch_cannot_be_kept_and_all_cannot_be_joined(session: Session) -> None:
    branches = session.prompt("a").fork(2)
    branches[0].cancel()
    with pytest.raises(ProgramError, match="Branch 0 was cancelled; it cannot be kept"):
        branches.join(keep=branches[0])
    branches[1].cancel()
    with pytest.raises(ProgramError, match="Every branch was cancelled"):
        branches.join()


# ---- cancel ----


def test_cancelling_ends_what_runs_and_what_comes(
    runtime: ScriptedRuntime, session: Session
) -> None:
    scripted(runtime, b=None, a="1")
    prompt = session.prompt("a")
    branches = prompt.fork(2)
    below = branches[0].append("b").fork(1)
    errors: list[Exception] = []

    def work(branch: Prompt) -> None:
        try:
            branch.gen()
        except ProgramError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(b,)) for b in (branches[0], below[0])]
    for thread in threads:
        thread.start()
    eventually(lambda: len(runtime.pending) == 2)
    with pytest.raises(ProgramError, match="Branch 0 is still at work"):
        branches.join()
    with pytest.raises(ProgramError, match="at work already"):
        branches[0].gen()
    with pytest.raises(ProgramError, match="at work already"):
        branches[0].append("x")
    branches[0].cancel()
    for thread in threads:
        thread.join()
    assert [str(error) for error in errors] == ["This branch was cancelled."] * 2
    assert all(isinstance(error, CancelledBranchError) for error in errors)
    assert all(future.cancelled() for future in runtime.pending)
    for gone in (branches[0], below[0]):
        with pytest.raises(CancelledBranchError, match="This branch was cancelled"):
            gone.gen()
    branches[1].gen("x")
    assert branches.join() == {"x": ["1"]}


def test_a_fork_at_the_moment_of_its_end_is_cancelled_too(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = session.prompt("a")
    add_branches = session.add_branches

    def cancelled_meanwhile(branches: Sequence[BasePrompt]) -> None:
        prompt.cancel()
        add_branches(branches)

    monkeypatch.setattr(session, "add_branches", cancelled_meanwhile)
    branches = prompt.fork(3)
    assert all(branch.is_cancelled for branch in branches)


def test_a_block_that_ends_early_cancels_its_branches(
    runtime: ScriptedRuntime, session: Session
) -> None:
    prompt = session.prompt("a")
    branches = prompt.fork(3)

    def program() -> None:
        with branches:
            branches[0].gen()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    assert all(branch.is_cancelled for branch in branches)
    with pytest.raises(ProgramError, match="cannot be joined again"):
        branches.join()
    prompt.gen()


def test_the_end_of_a_session_ends_its_branches(runtime: ScriptedRuntime) -> None:
    scripted(runtime, a=None)
    session = Session(runtime, seed=1)
    prompt = session.prompt("a")
    branches = prompt.fork(2)
    errors: list[Exception] = []

    def work() -> None:
        try:
            branches[0].gen()
        except ProgramError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: len(runtime.pending) == 1)
    session.close()
    session.close()
    thread.join()
    assert [str(error) for error in errors] == ["The session is closed."]
    assert runtime.pending[0].cancelled()
    for use in (prompt.gen, branches[1].gen, branches.join, lambda: prompt.fork(1), session.prompt):
        with pytest.raises(ProgramError, match="The session is closed"):
            use()
    assert not session._branches


# ---- what the cache is told ----


def test_unchosen_arms_are_abandoned(runtime: ScriptedRuntime, session: Session) -> None:
    runtime.logprob = lambda before, char: 0.0 if char == "n" else -1.0
    session.prompt("ab").select("x", ["yes", "no", "nay", "nono"])
    assert runtime.scored == [("ab", ["yes", "no", "nay", "nono"])]
    assert runtime.abandoned == [("ab", ["yes"]), ("abn", ["ay"]), ("abno", ["no"])]


def test_branches_that_were_not_kept_are_abandoned(
    runtime: ScriptedRuntime, session: Session
) -> None:
    prompt = session.prompt("ab")
    branches = prompt.fork(3)
    for i, branch in enumerate(branches):
        branch.append("cde"[i]).gen()
    below = branches[1].fork(2)
    below[0].append("x").gen()
    branches.join(keep=branches[0])
    told = [("ab", ["d3", "d3x5", "e3"])]
    assert runtime.abandoned == told
    prompt.fork(1).join()  # it has not asked for anything
    assert runtime.abandoned == told
    with prompt.fork(1) as tries:
        tries[0].append("f").gen()
    assert runtime.abandoned == [*told, ("abc3", ["f5"])]


def test_what_a_cancelled_answer_had_read_is_abandoned(
    runtime: ScriptedRuntime, session: Session
) -> None:
    scripted(runtime, c=None)
    branches = session.prompt("ab").fork(1)
    threading.Timer(0.05, branches.cancel).start()
    with pytest.raises(CancelledBranchError):
        branches[0].append("c").gen()
    with branches:
        pass
    assert runtime.abandoned == [("ab", ["c"])]


def test_a_hint_that_cannot_be_given_spoils_no_join(
    runtime: ScriptedRuntime, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise HeadraceError("The server is gone.")

    branches = session.prompt("ab").fork(2)
    for branch in branches:
        branch.gen("x")
    monkeypatch.setattr(runtime, "encode", broken)
    assert branches.join() == {"x": ["2", "2"]}
    assert not runtime.abandoned


def test_cancelled_branches_are_abandoned_with_the_others(
    runtime: ScriptedRuntime, session: Session
) -> None:
    branches = session.prompt("ab").fork(3)
    for i, branch in enumerate(branches):
        branch.append("cde"[i]).gen()
    branches[2].cancel()
    branches.join()
    assert runtime.abandoned == [("ab", ["c3", "d3", "e3"])]


@given(st.lists(st.sampled_from(["fork", "gen", "cancel", "join", "keep", "leave"]), max_size=30))
def test_whatever_becomes_of_branches_none_is_left(actions: list[str]) -> None:
    runtime = ScriptedRuntime()
    with Session(runtime, seed=1) as session:
        prompt = session.prompt("a")
        open_groups = []
        place: Prompt = prompt
        for i, action in enumerate(actions):
            if action == "fork":
                group = place.fork(1 + i % 3)
                open_groups.append((place, group))
                place = group[i % len(group)]
            elif action == "gen":
                place.append("b").gen("x")
            elif open_groups:
                place, group = open_groups.pop()
                if action == "cancel":
                    group.cancel()
                elif action == "leave":
                    with group:
                        pass
                else:
                    group.join(keep=group[0] if action == "keep" else None)
        for parent, group in reversed(open_groups):
            group.cancel()
            parent.append("c")
        assert not session._branches
        assert session.scope.num_watched == 0
        prompt.gen()
