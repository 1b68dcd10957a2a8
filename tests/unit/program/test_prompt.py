"""Prompts on a tiny model in this process: each operation is what LLM says it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import LLM, SamplingParams
from headrace.errors import ProgramError, RequestError, TemplateError
from headrace.program import Answer, Prompt, Selection, Session
from tests.support.make_model import make_gguf
from tests.support.serving import eventually

TEXTS = st.text(st.sampled_from("ab \nthe.é漢1"), min_size=1, max_size=12)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tmp_path_factory.mktemp("prompt") / "tiny.gguf"
    make_gguf(path, family="llama", tokenizer=request.param, seed=3)
    with LLM(path, kv_cache_bytes=4 << 20, threads=1) as llm:
        yield llm


@pytest.fixture
def session(llm: LLM) -> Iterator[Session]:
    with Session(llm, seed=5) as session:
        yield session
    assert session.scope.num_watched == 0
    eventually(lambda: not llm.engine.has_work())
    llm.engine.check()


def likelihood(llm: LLM, prompt: str, sequence: str, start: int) -> float:
    """The plain way: score everything, add up what counts."""
    ids = llm.tokenizer.encode(sequence)
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    (output,) = llm.generate([ids], params)
    assert output.prompt_logprobs is not None
    total = 0.0
    for entry in output.prompt_logprobs[start:]:
        assert entry is not None
        total += entry.logprob
    return total


# ---- gen ----


@given(TEXTS, st.booleans())
@settings(max_examples=30)
def test_gen_is_a_completion_of_the_text(llm: LLM, text: str, greedy: bool) -> None:
    with Session(llm, seed=7) as session:
        prompt = session.prompt(text)
        temperature = 0.0 if greedy else 1.0
        answer = prompt.gen("x", max_tokens=6, temperature=temperature, logprobs=True)
        result = prompt.result("x")
        assert isinstance(result, Answer)
        params = SamplingParams(max_tokens=6, temperature=temperature, seed=result.seed, logprobs=0)
        output = llm.generate(text, params)[0]
        assert answer == result.text == output.text == prompt["x"]
        assert (result.finish_reason, result.stop_reason) == (
            output.finish_reason,
            output.choices[0].stop_reason,
        )
        assert result.logprobs == tuple(e.logprob for e in output.logprobs or [])
        assert prompt.text == text + answer
        assert session.counts == result.counts
        assert result.counts.output == len(output.token_ids)


def test_what_follows_an_answer_sees_the_ids_that_the_model_wrote(session: Session) -> None:
    llm: Any = session.runtime._llm  # type: ignore[attr-defined]  # in process
    prompt = session.prompt("Hello")
    prompt.gen("a", max_tokens=5, ignore_eos=True)
    first = llm.generate("Hello", SamplingParams(max_tokens=5, ignore_eos=True, seed=_seed(prompt)))
    prompt.gen("b", max_tokens=4, ignore_eos=True)
    ids = first[0].prompt_token_ids + first[0].token_ids
    params = SamplingParams(max_tokens=4, ignore_eos=True, seed=_seed(prompt, "b"))
    assert prompt["b"] == llm.generate([ids], params)[0].text
    assert prompt["a"] == first[0].text


def _seed(prompt: Prompt, name: str = "a") -> int:
    result = prompt.result(name)
    assert isinstance(result, Answer)
    return result.seed


def test_an_empty_prompt_begins_as_the_model_wants(session: Session) -> None:
    """With nothing but BOS where there is one, and refused where there is none."""
    llm: Any = session.runtime._llm  # type: ignore[attr-defined]  # in process
    prompt = session.prompt()
    if llm.tokenizer.encode(""):
        prompt.gen("x", max_tokens=3)
        assert prompt.text == prompt["x"]
    else:
        with pytest.raises(RequestError, match="empty"):
            prompt.gen("x", max_tokens=3)


def test_stop_strings_are_no_part_of_the_prompt(session: Session) -> None:
    whole = session.prompt("Hello").gen(max_tokens=20, ignore_eos=True, seed=1)
    stop = whole[len(whole) // 2 :][:2]
    prompt = session.prompt("Hello")
    answer = prompt.gen("x", max_tokens=20, ignore_eos=True, seed=1, stop=stop)
    assert answer == whole[: whole.index(stop)]
    assert prompt.text == "Hello" + answer
    assert prompt.result("x").stop_reason == stop  # type: ignore[union-attr]  # an Answer
    prompt += stop
    prompt.gen(max_tokens=2)


def test_a_conversation_is_a_chat(session: Session) -> None:
    llm: Any = session.runtime._llm  # type: ignore[attr-defined]  # in process
    prompt = session.prompt().system("Be brief.").user("Hello")
    first = prompt.gen("first", max_tokens=8)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert (
        first == llm.chat(messages, SamplingParams(max_tokens=8, seed=_seed(prompt, "first"))).text
    )
    assert prompt.text == first
    second = prompt.user("Again").gen("second", max_tokens=8)
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "Again"}]
    assert prompt.messages == messages
    params = SamplingParams(max_tokens=8, seed=_seed(prompt, "second"))
    assert second == llm.chat(messages, params).text
    prompt.assistant("An example.").user("Last")
    assert [m["role"] for m in prompt.messages][-3:] == ["assistant", "assistant", "user"]


def test_a_turn_after_plain_text_is_refused(session: Session) -> None:
    prompt = session.prompt("plain")
    with pytest.raises(ProgramError, match="cannot follow plain text"):
        prompt.user("Hello")
    assert prompt.text == "plain"


def test_what_a_chat_template_says_reaches_the_program(tmp_path: Any) -> None:
    path = tmp_path / "picky.gguf"
    make_gguf(path, family="llama", chat_template="{{ raise_exception('No chats.') }}", seed=3)
    with LLM(path, kv_cache_bytes=1 << 20) as llm, Session(llm) as session:
        with pytest.raises(TemplateError, match="No chats"):
            session.prompt().user("Hello").gen()
        assert session.prompt("Hello").gen(max_tokens=2)


# ---- select ----


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=5), st.booleans(), st.sampled_from(["", "\n"]))
@settings(max_examples=60)
def test_select_takes_the_likeliest(
    llm: LLM, text: str, options: list[str], normalize: bool, end: str
) -> None:
    text = "the. " + text
    with Session(llm, seed=1) as session:
        prompt = session.prompt(text)
        chosen = prompt.select("x", options, normalize=normalize, end=end)
        result = prompt.result("x")
    assert isinstance(result, Selection)
    plain = llm.tokenizer.encode(text)
    sequences = [llm.tokenizer.encode(text + option + end) for option in options]
    shared = 0
    while all(len(ids) > shared and ids[shared] == plain[shared] for ids in sequences):
        shared += 1
        if shared == len(plain):
            break
    expected = []
    for ids, option in zip(sequences, options, strict=True):
        total = likelihood(llm, text, text + option + end, shared)
        expected.append(total / (len(ids) - shared) if normalize else total)
    assert result.scores == tuple(expected)
    assert result.index == expected.index(max(expected))
    assert chosen == options[result.index] == prompt["x"] == result.text
    assert prompt.text == text + chosen


def test_select_after_an_answer_and_in_a_conversation(session: Session) -> None:
    llm: Any = session.runtime._llm  # type: ignore[attr-defined]  # in process
    prompt = session.prompt().user("Yes or no?")
    prompt.select("x", ["yes", "no"])
    scores = prompt.result("x").scores  # type: ignore[union-attr]  # a Selection
    head = llm.render([{"role": "user", "content": "Yes or no?"}])
    continued = session.prompt("Hello")
    continued.gen("a", max_tokens=4, ignore_eos=True)
    continued.select("x", ["yes", "no"])
    first = llm.generate(
        "Hello", SamplingParams(max_tokens=4, ignore_eos=True, seed=_seed(continued))
    )[0]
    for ids, found in (
        (head, scores),
        (first.prompt_token_ids + first.token_ids, continued.result("x").scores),  # type: ignore[union-attr]  # a Selection
    ):
        for option, score in zip(["yes", "no"], found, strict=True):
            line = llm.tokenizer.encode("\n", add_special=False)
            tail = llm.tokenizer.encode("\n" + option, add_special=False)[len(line) :]
            params = SamplingParams(max_tokens=0, prompt_logprobs=0)
            entries = llm.generate([[*ids, *tail]], params)[0].prompt_logprobs
            assert score == sum(e.logprob for e in entries[len(ids) :])


def test_equal_options_give_the_first(session: Session) -> None:
    prompt = session.prompt("Hello")
    prompt.select("x", ["the", "the"])
    result = prompt.result("x")
    assert isinstance(result, Selection)
    assert result.index == 0
    assert result.scores[0] == result.scores[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "1 to 256 options, not 0"),
        (["x"] * 1000, "1 to 256 options, not 1000"),
        ("yes", "a list of strings"),
        ({"yes": 1}, "a list of strings"),
        (None, "a list of strings"),
        (["yes", 5], "Option 1 of select is a string, not of type int"),
        (["yes", ""], "Option 1 of select is empty"),
        (["\ud800"], "half of a surrogate pair"),
    ],
)
def test_what_cannot_be_chosen_from_is_refused(
    session: Session, options: Any, message: str
) -> None:
    prompt = session.prompt("Hello")
    with pytest.raises(RequestError, match=message) as caught:
        prompt.select("x", options)
    assert caught.value.status == 400
    assert prompt.text == "Hello"
    assert "x" not in prompt
    assert session.counts.prompt == 0
    assert prompt.select("x", ["yes", ""], end="\n") in ("yes", "")


def test_the_largest_select(session: Session) -> None:
    options = [chr(97 + i // 26) + chr(97 + i % 26) for i in range(256)]
    assert session.prompt("Hello ").select(None, options) in options


def test_the_first_token_of_all_has_no_likelihood(session: Session) -> None:
    llm: Any = session.runtime._llm  # type: ignore[attr-defined]  # in process
    prompt = session.prompt()
    if llm.tokenizer.encode(""):
        assert prompt.select("x", ["yes", "no"]) in ("yes", "no")
    else:
        with pytest.raises(RequestError, match="needs a prompt before it"):
            prompt.select("x", ["yes", "no"])


# ---- what is refused, and what is left ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 2}, "gen has no option 'n'"),
        ({"prompt_logprobs": 2}, "gen has no option 'prompt_logprobs'"),
        ({"max_token": 2}, "gen has no option 'max_token'"),
        ({"max_tokens": None}, "max_tokens is a whole number"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"max_tokens": 1 << 20}, "tokens of prompt and output"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens 5 is above max_tokens 4"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"temperature": "x"}, "temperature: Expected"),
        ({"stop": ["\ud800"]}, "half of a surrogate pair"),
        ({"stop": 5}, "stop: Expected"),
        ({"stop_token_ids": [1 << 30]}, "stop_token_ids"),
        ({"seed": 1 << 64}, "seed is"),
        ({"seed": "x"}, "seed is a whole number"),
    ],
)
def test_options_of_gen_that_cannot_be_served(session: Session, options: Any, message: str) -> None:
    prompt = session.prompt("Hello")
    prompt["before"] = "1"
    with pytest.raises(RequestError, match=message):
        prompt.gen("x", **options)
    assert prompt.text == "Hello"
    assert prompt.variables == {"before": "1"}
    assert prompt.gen("x", max_tokens=2) is not None


@pytest.mark.parametrize("text", [5, None, b"x", "\ud800"])
def test_what_is_no_text_is_refused(session: Session, text: Any) -> None:
    with pytest.raises(RequestError):
        session.prompt(text)
    prompt = session.prompt("a")
    with pytest.raises(RequestError):
        prompt += text
    with pytest.raises(RequestError):
        prompt["x"] = text
    with pytest.raises(RequestError):
        session.prompt().user(text)
    assert prompt.text == "a"


def test_variables(session: Session) -> None:
    prompt = session.prompt("a")
    prompt["x"] = "1"
    assert ("x" in prompt, "y" in prompt) == (True, False)
    copy = prompt.variables
    copy["y"] = "2"
    with pytest.raises(ProgramError, match="no variable 'y'; it has: x"):
        prompt["y"]
    with pytest.raises(ProgramError, match="No gen or select of this prompt was named 'x'"):
        prompt.result("x")


def test_seeds_come_from_the_way_not_from_the_time(llm: LLM) -> None:
    def program(session: Session, order: list[int]) -> list[str]:
        prompt = session.prompt("Hello")
        prompt.gen("a", max_tokens=4, ignore_eos=True)
        with prompt.fork(3) as branches:
            for i in order:
                branches[i].gen("b", max_tokens=4, ignore_eos=True)
                branches[i].gen("c", max_tokens=4, ignore_eos=True)
            found = branches.join()
        return [prompt["a"], *found["b"], *found["c"]]

    texts = []
    for order in ([0, 1, 2], [2, 0, 1]):
        with Session(llm, seed=5) as session:
            texts.append(program(session, order))
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 3
    with Session(llm, seed=6) as session:
        assert program(session, [0, 1, 2]) != texts[0]
    with Session(llm) as drawn:
        found = program(drawn, [0, 1, 2])
        with Session(llm, seed=drawn.seed) as again:
            assert program(again, [0, 1, 2]) == found
