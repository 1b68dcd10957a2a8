"""Programs that use everything, and what they found: to compare runtimes and ways to run them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from headrace.program import Answer, AsyncSession, Prompt, Session

LONG = "the quick brown fox jumps over the lazy dog. " * 3


def seen(prompt: Prompt | Any) -> dict[str, Any]:
    """All that a program can see of a prompt, but for what a cache may change."""
    found: dict[str, Any] = {"text": prompt.text, "messages": prompt.messages}
    for name, value in prompt.variables.items():
        found[name] = value
        result = prompt._results.get(name)
        if result is not None:
            fields = list(astuple(result))
            prompt_tokens, _, output_tokens = fields.pop()
            found[f"{name} result"] = [*fields, prompt_tokens, output_tokens]
            assert isinstance(result, Answer) == ("logprobs" in type(result).__slots__)
    return found


def completion(session: Session) -> Any:
    prompt = session.prompt(LONG)
    prompt.gen("a", max_tokens=6, temperature=0, logprobs=True)
    prompt += "\n\nAnd then "
    prompt.gen("b", max_tokens=6, ignore_eos=True, logprobs=True)
    prompt.gen("c", max_tokens=6, ignore_eos=True, temperature=0.7, top_p=0.9, min_tokens=2)
    return seen(prompt)


def stops(session: Session) -> Any:
    """Stop strings that cut tokens, ids that end, and what comes after."""
    whole = session.prompt(LONG).gen(max_tokens=24, ignore_eos=True, seed=7)
    prompt = session.prompt(LONG)
    for i in range(3):
        stop = whole[3 * i + 1 : 3 * i + 3] or "x"
        prompt.gen(f"a{i}", max_tokens=24, ignore_eos=True, seed=7, stop=["\x00", stop])
        prompt += " and "
    prompt.gen("last", max_tokens=3, include_stop_str_in_output=True, stop="e")
    return seen(prompt)


def selection(session: Session) -> Any:
    prompt = session.prompt("Yes or no? ")
    prompt.select("a", ["yes", "no", "maybe", "no, never"])
    prompt += ". Again: "
    prompt.select("b", ["yes", "yes, indeed", "no"], end=".")
    prompt.gen("c", max_tokens=3, ignore_eos=True)
    prompt.select("d", ["é漢", "yes", " no"], normalize=True)
    return seen(prompt)


def branching(session: Session) -> Any:
    prompt = session.prompt(LONG)
    with prompt.fork(4) as branches:
        session.parallel(lambda b: b.append("So").gen("a", max_tokens=4, ignore_eos=True), branches)
        with branches[2].fork(3) as twigs:
            session.parallel(lambda t: t.gen("b", max_tokens=3, ignore_eos=True), twigs)
            inner = twigs.join(keep=twigs[1])
        branches[0].cancel()
        outer = branches.join(keep=branches[2])
    prompt.gen("c", max_tokens=3, ignore_eos=True)
    return [inner, outer, seen(prompt)]


def conversation(session: Session) -> Any:
    prompt = session.prompt().system("Be brief.").user("Name a river.")
    prompt.gen("a", max_tokens=8)
    prompt.user("And another?").append("It is")
    prompt.gen("b", max_tokens=8, stop=["."])
    prompt.user("Sure?").select("c", ["Yes", "No"])
    return seen(prompt)


PROGRAMS: list[Callable[[Session], Any]] = [
    completion,
    stops,
    selection,
    branching,
    conversation,
]


async def async_branching(session: AsyncSession) -> Any:
    """`branching`, awaited."""
    prompt = session.prompt(LONG)
    async with prompt.fork(4) as branches:
        await session.parallel(
            lambda b: b.append("So").gen("a", max_tokens=4, ignore_eos=True), branches
        )
        async with branches[2].fork(3) as twigs:
            await session.parallel(lambda t: t.gen("b", max_tokens=3, ignore_eos=True), twigs)
            inner = await twigs.join(keep=twigs[1])
        branches[0].cancel()
        outer = await branches.join(keep=branches[2])
    await prompt.gen("c", max_tokens=3, ignore_eos=True)
    return [inner, outer, seen(prompt)]
