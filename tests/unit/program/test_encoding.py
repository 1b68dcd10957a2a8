"""Token ids depend on a prompt's text, not on how a program cut it; answers keep their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import LLM
from headrace.program.base import Counts, Generated
from headrace.program.content import Content, Run
from headrace.program.drive import run_sync, settled
from headrace.program.encoding import Encoder
from headrace.program.in_process import InProcessRuntime
from tests.support import gguf_writer as gw
from tests.support.make_model import make_gguf

TEXTS = st.text(st.sampled_from("ab \nthe.é漢1"), max_size=12)


@pytest.fixture(scope="module", params=["gpt2", "llama", "llama-spaced"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tmp_path_factory.mktemp("encoding") / "tiny.gguf"
    tokenizer = request.param.split("-")[0]
    spaced = gw.flag(request.param == "llama-spaced")
    metadata = {"tokenizer.ggml.add_bos_token": gw.flag(True)}
    if tokenizer == "llama":
        metadata["tokenizer.ggml.add_space_prefix"] = spaced
    make_gguf(path, family="llama", tokenizer=tokenizer, metadata=metadata, seed=3)
    with LLM(path, kv_cache_bytes=1 << 20, threads=1) as llm:
        yield llm


def encode(llm: LLM, content: Content, ending: str = "") -> list[int]:
    encoder = Encoder(InProcessRuntime(llm))
    encoded = run_sync(encoder.encode(content, [ending], settled), 10)
    return list(encoded.ids(0))


def run_of(llm: LLM, generated: Generated) -> tuple[Run, str]:
    return run_sync(Encoder(InProcessRuntime(llm)).run_of(generated, settled), 10)


@given(st.lists(TEXTS, max_size=5))
def test_a_plain_prompt_has_the_ids_of_its_text(llm: LLM, pieces: list[str]) -> None:
    content = Content()
    for piece in pieces:
        content = content.add_text(piece)
    text = "".join(pieces)
    assert content.text == text
    assert encode(llm, content) == llm.tokenizer.encode(text)
    assert encode(llm, Content(), text) == llm.tokenizer.encode(text)


@given(TEXTS, st.lists(TEXTS, max_size=3), TEXTS)
def test_text_after_an_answer_is_cut_off_from_it_and_only_there(
    llm: LLM, before: str, after: list[str], ending: str
) -> None:
    answer = llm.tokenizer.encode("the", add_special=False)
    head = llm.tokenizer.encode(before)
    content = Content().add_text(before).add_run((), tuple(head), Run("the", tuple(answer)))
    for piece in after:
        content = content.add_text(piece)
    ids = encode(llm, content, ending)
    assert ids[: len(head) + len(answer)] == head + answer
    rest = ids[len(head) + len(answer) :]
    # Neither a space nor BOS comes in where there was none.
    assert llm.tokenizer.bos_id not in rest
    assert llm.tokenizer.decode(rest) == "".join(after) + ending
    assert encode(llm, Content(runs=content.runs)) == encode(llm, content)


def test_a_conversation_begins_as_it_is_rendered(llm: LLM) -> None:
    content = Content().add_message("system", "Be brief.").add_message("user", "Hello")
    rendered = llm.render(content.messages)
    assert encode(llm, content) == rendered
    ids = encode(llm, content.add_text("the"))
    assert ids[: len(rendered)] == rendered
    assert llm.tokenizer.decode(ids[len(rendered) :]) == "the"
    turned = content.add_text("the").add_message("user", "more")
    assert [m["role"] for m in turned.messages] == ["system", "user", "assistant", "user"]
    assert encode(llm, turned) == llm.render(turned.messages)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=8), st.data())
def test_an_answer_that_a_stop_string_ended(llm: LLM, ids: list[int], data: st.DataObject) -> None:
    """Whole tokens keep their ids; of a token that was cut, the text is left."""
    text = llm.tokenizer.decode(ids)
    kept = data.draw(st.integers(0, len(text)))
    made = Generated(text[:kept], tuple(ids), "stop", text[kept:] or "x", None, Counts())
    run, left = run_of(llm, made)
    assert run.text + left == text[:kept]
    assert run.ids == tuple(ids[: len(run.ids or ())])
    assert llm.tokenizer.decode(run.ids or ()) == run.text
    longer = llm.tokenizer.decode(ids[: len(run.ids or ()) + 1])
    assert len(run.ids or ()) == len(ids) or not text[:kept].startswith(longer)


def test_answers_with_other_ends(llm: LLM) -> None:
    ids = tuple(llm.tokenizer.encode("the", add_special=False))
    length = Generated("the", ids, "length", None, None, Counts())
    assert run_of(llm, length) == (Run("the", ids), "")
    for reason in (None, 7):
        ended = Generated("the", (*ids, 7), "stop", reason, None, Counts())
        assert run_of(llm, ended) == (Run("the", ids), "")
