"""Programs find the same whatever is cached: nothing, what they did before, or little of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM, RequestOptions, Retention
from headrace.errors import HeadraceError, RequestError
from headrace.program import Session
from tests.support.make_model import make_gguf
from tests.support.programs import PROGRAMS
from tests.support.scripted_runtime import ScriptedRuntime
from tests.support.serving import eventually


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with full attention, one with windows, too."""
    path = tmp_path_factory.mktemp("program") / "tiny.gguf"
    return make_gguf(path, family=request.param, seed=3).path


def _run(llm: LLM, program: Callable[[Session], Any]) -> Any:
    with Session(llm, seed=5) as session:
        found = program(session)
    eventually(lambda: not llm.engine.has_work())
    llm.engine.check()
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_finds_the_same_whatever_is_cached(
    path: Path, program: Callable[[Session], Any]
) -> None:
    with LLM(path, kv_cache_bytes=4 << 20, threads=1, prefix_cache=False) as llm:
        expected = _run(llm, program)
        assert llm.engine.stats.num_cached_blocks == 0
    with LLM(path, kv_cache_bytes=4 << 20, threads=1) as llm:
        assert _run(llm, program) == expected
        assert llm.engine.stats.num_cached_blocks > 0
        assert _run(llm, program) == expected
        inserted = llm.engine.stats.num_inserted_blocks
        assert _run(llm, program) == expected
        # All of it was there.
        assert llm.engine.stats.num_inserted_blocks - inserted < inserted / 2


def test_sessions_share_what_they_cache_only_with_the_same_salt(path: Path) -> None:
    def cached(llm: LLM, salt: str) -> int:
        with Session(llm, seed=5, options=RequestOptions(salt=salt)) as session:
            session.prompt("one two three four " * 8).gen(max_tokens=2)
            return session.counts.cached

    with LLM(path, kv_cache_bytes=4 << 20, threads=1) as llm:
        assert cached(llm, "a") == 0
        assert cached(llm, "b") == 0
        assert cached(llm, "a") > 0


def test_options_that_no_session_can_have(path: Path) -> None:
    expired = RequestOptions(retention=Retention(ttl_s=-1.0))
    with (
        LLM(path, kv_cache_bytes=4 << 20, threads=1) as llm,
        pytest.raises(RequestError, match=r"cache\.ttl must be above 0"),
    ):
        Session(llm, options=expired)
    with pytest.raises(HeadraceError, match="options go with an LLM"):
        Session(ScriptedRuntime(), options=RequestOptions(salt="a"))
