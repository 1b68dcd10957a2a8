"""LLM.submit: futures that give what `generate` gives, end with their request, and abort it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import LLM, RequestOptions, Retention, SamplingParams
from headrace.backends.base import StepPlan
from headrace.engine.output import Output
from headrace.errors import HeadraceError, RequestError
from tests.support.make_model import make_gguf
from tests.support.serving import eventually

PROMPTS = ["Hello there", "abc", "x", "one two three"]
PARAMS = SamplingParams(seed=11, max_tokens=12, ignore_eos=True, logprobs=1, prompt_logprobs=0)
LONG = SamplingParams(seed=1, max_tokens=400, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("llm") / "tiny.gguf", family="llama", seed=3).path


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, kv_cache_bytes=4 << 20, threads=1) as llm:
        yield llm


def check_idle(llm: LLM) -> None:
    """Nothing runs, no thread is left, every block is back."""
    eventually(lambda: llm._driver._thread is None)
    assert not llm.engine.has_work()
    llm.engine.check()


def seen(output: Output) -> Any:
    return output.prompt_token_ids, output.choices, output.prompt_logprobs, output.usage


def test_a_future_gives_what_generate_gives(llm: LLM) -> None:
    futures = [llm.submit(prompt, PARAMS) for prompt in PROMPTS]
    for prompt, future in zip(PROMPTS, futures, strict=True):
        assert seen(future.result()) == seen(llm.generate(prompt, PARAMS)[0])
    check_idle(llm)


def test_options_of_a_call_reach_the_engine(llm: LLM) -> None:
    """What is computed with one salt is found with it alone, however it is asked for."""
    prompt, params = list(range(3, 60)), SamplingParams(max_tokens=2, seed=1)

    def cached(salt: str) -> list[int]:
        options = RequestOptions(salt=salt, retention=Retention(80, 60.0))
        outputs = [
            llm.submit(prompt, params, options=options).result(),
            *llm.generate(prompt, params, options=options),
        ]
        assert outputs[0].choices == outputs[1].choices
        assert list(llm.stream(prompt, params, options=options))[-1].finish_reason == "length"
        return [output.usage.cached_tokens for output in outputs]

    assert cached("one") == cached("other") == [0, 56]
    assert cached("one") == [56, 56]
    check_idle(llm)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        (RequestOptions(priority=1001), "priority"),
        (RequestOptions(priority=0.5), "priority"),  # type: ignore[arg-type]  # on purpose
        (RequestOptions(salt="x" * 257), "cache.salt"),
        (RequestOptions(salt=None), "cache.salt"),  # type: ignore[arg-type]  # on purpose
        (RequestOptions(retention=Retention(-1)), "cache.priority"),
        (RequestOptions(retention=Retention(101)), "cache.priority"),
        (RequestOptions(retention=Retention(ttl_s=0)), "cache.ttl"),
        (RequestOptions(retention=Retention(ttl_s=-1.0)), "cache.ttl"),
        (RequestOptions(retention=Retention(ttl_s=float("nan"))), "cache.ttl"),
        (RequestOptions(retention=Retention(ttl_s=float("inf"))), "cache.ttl"),
        (RequestOptions(retention=Retention(ttl_s=1e9)), "cache.ttl"),
        (RequestOptions(retention=Retention(ttl_s=True)), "cache.ttl"),
    ],
)
def test_options_out_of_range_are_refused(llm: LLM, options: RequestOptions, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate("abc", PARAMS, options=options)
    assert caught.value.param == param
    check_idle(llm)


def test_a_hint_about_ids_that_do_not_exist_comes_to_nothing(llm: LLM) -> None:
    llm.abandon([1 << 40], [[-1], [2]])
    assert llm.submit("abc", PARAMS).result().text
    check_idle(llm)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["submit", "cancel", "generate"]), max_size=20))
def test_cancelled_futures_and_other_calls_leave_the_others_alone(
    llm: LLM, actions: list[str]
) -> None:
    expected = {prompt: llm.generate(prompt, PARAMS)[0].token_ids for prompt in PROMPTS}
    pending: list[tuple[str, Future[Output]]] = []
    for i, action in enumerate(actions):
        prompt = PROMPTS[i % len(PROMPTS)]
        if action == "submit":
            pending.append((prompt, llm.submit(prompt, PARAMS)))
        elif action == "generate":
            assert llm.generate(prompt, PARAMS)[0].token_ids == expected[prompt]
        elif pending:
            pending.pop(i % len(pending))[1].cancel()
    for prompt, future in pending:
        assert future.result().token_ids == expected[prompt]
    check_idle(llm)


def test_a_cancelled_request_frees_its_blocks(llm: LLM) -> None:
    future = llm.submit("Hello", LONG)
    eventually(lambda: llm.engine.stats.num_running == 1)
    assert future.cancel()
    assert wait([future], 20).done == {future}
    with pytest.raises(CancelledError):
        future.result()
    check_idle(llm)


async def test_a_cancelled_task_aborts_its_request(llm: LLM) -> None:
    task = asyncio.ensure_future(asyncio.wrap_future(llm.submit("Hello", LONG)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    check_idle(llm)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], SamplingParams(), "empty"),
        ([-1], SamplingParams(), "token id outside"),
        ("a", SamplingParams(temperature=-1.0), "temperature"),
        ("a", SamplingParams(n="x"), "n: Expected"),  # type: ignore[arg-type]  # that is the point
    ],
)
def test_mistakes_come_from_the_future(
    llm: LLM, prompt: str | Sequence[int], params: SamplingParams, message: str
) -> None:
    good = llm.submit("abc", PARAMS)
    with pytest.raises(RequestError, match=message):
        llm.submit(prompt, params).result()
    assert good.result().text
    check_idle(llm)


def test_calls_from_many_threads(llm: LLM) -> None:
    expected = {prompt: llm.generate(prompt, PARAMS)[0].token_ids for prompt in PROMPTS}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda p: llm.submit(p, PARAMS).result().token_ids, PROMPTS * 8))
    assert answers == [expected[prompt] for prompt in PROMPTS * 8]
    check_idle(llm)


def test_a_step_that_breaks_fails_all_futures_and_nothing_else(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(plan: StepPlan) -> object:
        raise RuntimeError("the step broke")

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.backend, "submit", broken)  # type: ignore[attr-defined]  # Engine's
        futures = [llm.submit(prompt, PARAMS) for prompt in PROMPTS]
        for future in futures:
            with pytest.raises(RuntimeError, match="the step broke"):
                future.result()
        check_idle(llm)
    assert llm.submit("abc", PARAMS).result().text


def test_closing_ends_what_runs(path: Path) -> None:
    with LLM(path, kv_cache_bytes=4 << 20) as llm:
        future = llm.submit("x", LONG)
        eventually(lambda: llm.engine.stats.num_running == 1)
    with pytest.raises(HeadraceError, match="This LLM is closed"):
        future.result()
    with pytest.raises(HeadraceError, match="This LLM is closed"):
        llm.submit("x", LONG)
    llm.abandon([1], [[2]])
    eventually(lambda: all(thread.name != "engine" for thread in threading.enumerate()))


def test_what_is_abandoned_is_told_after_what_was_cancelled(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    abort = llm.engine.abort

    def noted_abort(request_id: str) -> None:
        told.append("abort")
        abort(request_id)

    monkeypatch.setattr(llm.engine, "abort", noted_abort)
    monkeypatch.setattr(llm.engine, "abandon", lambda *hint: told.append(hint))
    future = llm.submit("x", LONG)
    eventually(lambda: llm.engine.stats.num_running == 1)
    future.cancel()
    llm.abandon([1], [[2], [3]], "s")
    eventually(lambda: len(told) == 2)
    assert told == ["abort", ([1], [[2], [3]], "s")]
    check_idle(llm)


@pytest.mark.parametrize(
    "hint",
    [
        ([1, 2], [["x"]]),
        ([1.5], [[2]]),
        ([1, 2], [3]),
        (None, [[1]]),
        ([1], [[2]], 7),
    ],
)
def test_what_are_no_ids_cannot_be_abandoned(llm: LLM, hint: Any) -> None:
    with pytest.raises(RequestError):
        llm.abandon(*hint)
    assert llm.submit("x", PARAMS).result(timeout=30).finish_reason
    check_idle(llm)


def test_a_command_that_breaks_leaves_nobody_waiting(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*hint: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(llm.engine, "abandon", broken)
    running = llm.submit("x", LONG)
    eventually(lambda: llm.engine.stats.num_running == 1)
    with llm._driver._lock:  # so that all of them are found at once
        commands = llm._driver._commands
        late: Future[Output] = Future()
        ids = llm.tokenizer.encode("abc")
        commands.append(lambda: llm._driver._shared.abandon([1], [[2]], ""))
        commands.append(lambda: llm._driver._add("late", ids, PARAMS, RequestOptions(), late))
    with pytest.raises(ValueError, match="a defect"):
        running.result(timeout=30)
    assert late.result(timeout=30).finish_reason
    check_idle(llm)
