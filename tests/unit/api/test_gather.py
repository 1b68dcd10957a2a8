"""Answers that are not streamed: compact while they grow, exact when they are read, bounded."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.openai import compact
from headrace.api.openai.compact import CompactLogprobs, EntryBudget
from headrace.api.openai.gather import Gathered
from headrace.engine.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.gateway.streams import Part, RequestStream
from headrace.worker.frames import PromptLogprobs, TokenLogprob
from tests.support.fake_text import VOCAB_SIZE, FakeTokenizer
from tests.support.scripted_worker import delta, finished

TOKENIZER = FakeTokenizer()
IDS = st.integers(0, VOCAB_SIZE - 1)
VALUES = st.floats(max_value=0.0, allow_nan=False)


def entry(token: int, value: float, top: list[tuple[int, float]]) -> TokenLogprob:
    """As the worker sends it."""
    text, raw = TOKENIZER.token_text, TOKENIZER.decode_bytes
    full = [(i, text(i), raw(i), v) for i, v in top]
    return TokenLogprob(token, text(token), raw(token), value, full)


ENTRIES = st.none() | st.builds(entry, IDS, VALUES, st.lists(st.tuples(IDS, VALUES), max_size=20))


@given(st.lists(ENTRIES, max_size=20))
def test_entries_come_out_as_they_went_in(entries: list[TokenLogprob | None]) -> None:
    kept = CompactLogprobs(TOKENIZER, EntryBudget())
    for each in entries:
        kept.add(each)
    assert list(kept) == list(kept) == entries
    assert len(kept) == len(entries)


def test_the_budget_is_one_for_the_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "MAX_ENTRIES", 10)
    one = entry(65, -1.0, [(66, -2.0)] * 2)
    stream = RequestStream(1 << 20, lambda _: None)
    stream.open([Part("r", 0, [1], SamplingParams(n=2), stream)])
    stream.push(0, PromptLogprobs(request_id="r", start=0, entries=[None, one]))
    stream.push(0, delta("r", "a", choice=0, logprobs=[one]))
    stream.push(0, delta("r", "a", choice=1, logprobs=[one]))
    gathered = Gathered(1, 2, TOKENIZER)

    async def collect() -> None:
        await gathered.collect(stream)

    stream.push(0, finished("r"))
    asyncio.run(collect())
    assert list(gathered.prompts[0]) == [None, one]
    assert list(gathered.choices[0, 1].logprobs) == [one]
    with pytest.raises(RequestError) as caught:
        gathered.choices[0, 1].logprobs.add(one)
    assert caught.value.status == 400
