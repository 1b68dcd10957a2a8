"""Programs over HTTP find what they find in process, bit for bit; nothing is left on the server."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM
from headrace.errors import CancelledBranchError, HeadraceError, RequestError
from headrace.program import AsyncSession, Session
from tests.support import gguf_writer as gw
from tests.support.make_model import make_gguf
from tests.support.programs import PROGRAMS, async_branching, branching
from tests.support.real_server import MODEL, serve_model
from tests.support.serving import Server, eventually


@dataclass
class Both:
    """One model, in this process and served."""

    llm: LLM
    server: Server


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("program")
    metadata = {}
    if request.param == "llama":
        metadata = {"tokenizer.ggml.add_space_prefix": gw.flag(True)}
    path = folder / "tiny.gguf"
    make_gguf(path, family="llama", tokenizer=request.param, metadata=metadata, seed=3)
    with serve_model(path, folder / "log") as server, LLM(path, kv_cache_bytes=4 << 20) as llm:
        yield Both(llm, server)


def gauge(server: Server, name: str) -> float:
    text = urllib.request.urlopen(server.url + "/metrics", timeout=10).read().decode()
    lines = [line for line in text.splitlines() if line.startswith(name + "{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def check_idle(server: Server) -> None:
    eventually(lambda: gauge(server, "headrace:open_requests") == 0)
    eventually(lambda: gauge(server, "vllm:num_requests_running") == 0)


@pytest.mark.parametrize("program", PROGRAMS)
def test_in_process_and_over_http(both: Both, program: Callable[[Session], Any]) -> None:
    with Session(both.llm, seed=11) as near, Session(both.server.url, model=MODEL, seed=11) as far:
        assert program(near) == program(far)
        assert (near.counts.prompt, near.counts.output) == (far.counts.prompt, far.counts.output)
    check_idle(both.server)


async def test_sync_and_async_in_process_and_over_http(both: Both) -> None:
    expected = await asyncio.to_thread(_run, both.llm)
    for target in (both.llm, both.server.url):
        async with AsyncSession(target, seed=11) as session:
            assert await async_branching(session) == expected


def _run(llm: LLM) -> Any:
    with Session(llm, seed=11) as session:
        return branching(session)


def test_mistakes_are_the_same_on_both_sides(both: Both) -> None:
    for target in (both.llm, both.server.url):
        with Session(target) as session:
            prompt = session.prompt("Hello")
            with pytest.raises(RequestError) as caught:
                prompt.gen(max_tokens=1 << 20)
            assert caught.value.code == "context_length_exceeded"
            with pytest.raises(RequestError) as caught:
                prompt.gen(stop_token_ids=[1 << 20])
            assert caught.value.param == "stop_token_ids"
            with pytest.raises(RequestError, match="1 to 256 options"):
                prompt.select("x", [])
            assert prompt.text == "Hello"
            prompt.gen(max_tokens=1)
    with (
        Session(both.server.url, model="other") as session,
        pytest.raises(RequestError, match="'other' does not exist"),
    ):
        session.prompt("Hello").gen()


def test_cancelled_branches_free_the_server(server: Server) -> None:
    errors: list[Exception] = []

    with Session(server.url) as session:
        branches = session.prompt("!slow").fork(8)

        def work(i: int) -> None:
            try:
                branches[i].gen(max_tokens=2000, ignore_eos=True)
            except HeadraceError as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        eventually(lambda: gauge(server, "headrace:open_requests") == 8)
        branches[0].cancel()
        eventually(lambda: gauge(server, "headrace:open_requests") == 7)
        branches.cancel()
        for thread in threads:
            thread.join()
        check_idle(server)
        assert [str(error) for error in errors] == ["This branch was cancelled."] * 8
        assert all(isinstance(error, CancelledBranchError) for error in errors)
        assert len(session.prompt("Hello").gen(max_tokens=2)) == 2


def test_a_select_of_many_options_takes_several_requests(both: Both) -> None:
    options = [f"{i}" for i in range(100)]
    results = []
    for target in (both.llm, both.server.url):
        with Session(target, seed=1) as session:
            prompt = session.prompt("A number: ")
            prompt.select("x", options)
            results.append(prompt.result("x"))
    assert results[0] == results[1]


@pytest.mark.slow
def test_smollm2(smollm2_path: Path, tmp_path: Path) -> None:
    with (
        serve_model(smollm2_path, tmp_path / "log") as server,
        LLM(smollm2_path, kv_cache_bytes=64 << 20) as llm,
        Session(llm, seed=2) as near,
        Session(server.url, seed=2) as far,
    ):
        for program in PROGRAMS:
            assert program(near) == program(far)
