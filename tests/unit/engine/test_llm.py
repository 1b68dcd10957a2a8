"""The offline LLM on a tiny model: forms of prompts, streaming, choices, ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import LLM, SamplingParams
from headrace.errors import HeadraceError, RequestError
from tests.support.make_model import make_gguf

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=2)
SAMPLED = SamplingParams(seed=11, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tmp_path_factory.mktemp("llm") / "tiny.gguf"
    make_gguf(path, family="llama", seed=3)
    with LLM(path, kv_cache_bytes=4 << 20, threads=2) as llm:
        yield llm


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_stream_is_generate(llm: LLM, params: SamplingParams) -> None:
    whole = llm.generate("Hello there", params)[0]
    chunks = list(llm.stream("Hello there", params))
    assert "".join(c.text for c in chunks) == whole.text
    assert [t for c in chunks for t in c.token_ids] == whole.token_ids
    streamed = [entry for c in chunks for entry in c.logprobs or []]
    assert streamed == (whole.logprobs or [])
    assert [c.finish_reason for c in chunks if c.finish_reason] == [whole.finish_reason]


def test_text_and_its_token_ids_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.tokenizer.encode("Hello there")
    by_text, by_ids = llm.generate("Hello there", GREEDY)[0], llm.generate(ids, GREEDY)[0]
    assert by_text.token_ids == by_ids.token_ids
    assert by_text.prompt_token_ids == by_ids.prompt_token_ids == ids
    both = llm.generate(["Hello there", ids], [GREEDY, SAMPLED])
    assert both[0].token_ids == by_text.token_ids
    assert both[1].token_ids == llm.generate(ids, SAMPLED)[0].token_ids


def test_results_carry_what_was_asked_for(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=6, ignore_eos=True, prompt_logprobs=1)
    output = llm.generate("abc", params)[0]
    assert [c.index for c in output.choices] == [0, 1, 2]
    assert output.choices[0].seed == 5
    assert output.usage.completion_tokens == 18
    assert output.usage.total_tokens == output.usage.prompt_tokens + 18
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == output.usage.prompt_tokens
    assert output.timings.prefill_s > 0
    for choice in output.choices:
        alone = llm.generate("abc", SamplingParams(seed=choice.seed, max_tokens=6, ignore_eos=True))
        assert alone[0].token_ids == choice.token_ids


def test_a_stream_closed_early_frees_its_blocks(llm: LLM) -> None:
    stream = llm.stream("Hello", GREEDY)
    next(stream)
    stream.close()
    assert not llm.engine.has_work()
    llm.engine.check()


def test_mistakes_name_themselves(llm: LLM) -> None:
    with pytest.raises(RequestError, match="2 sampling parameters were given for 1 prompts"):
        llm.generate("a", [GREEDY, GREEDY])
    with pytest.raises(RequestError, match="empty"):
        llm.generate([[]], GREEDY)
    with pytest.raises(RequestError, match="token id outside"):
        llm.generate([[-1]], GREEDY)
    with pytest.raises(RequestError, match="temperature"):
        llm.generate(["a", "b"], SamplingParams(temperature=-1.0))
    assert not llm.engine.has_work()


def test_a_closed_llm_says_so(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    make_gguf(path, family="qwen2", seed=4)
    llm = LLM(path, kv_cache_bytes=4 << 20)
    llm.close()
    llm.close()
    with pytest.raises(HeadraceError, match="closed"):
        llm.generate("a")
