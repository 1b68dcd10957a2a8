"""Real vocabularies against ids that other implementations gave (tests/golden/record_tokens.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.text.splits import SPLITS, make_pre_tokenizer
from headrace.text.vocabulary import VocabularyTokenizer
from tests.support.text_specs import load_model_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden"


def golden(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((GOLDEN / name).read_text())
    assert len(cases) >= 200
    return cases


def check(tokenizer: VocabularyTokenizer, name: str) -> None:
    """Every text, parsed and plain; in one call and in bounded ones."""
    for case in golden(f"tokens_{name}.json"):
        text = case["text"]
        for parse_special in (True, False):
            want = case["special"] if parse_special else case.get("plain", case["special"])
            got = tokenizer.encode(text, add_special=False, parse_special=parse_special)
            assert got == want, (text, parse_special)
            for limit in (len(want), len(want) - 1):
                bounded = tokenizer.encode_bounded(
                    text, limit, add_special=False, parse_special=parse_special
                )
                assert bounded == (want if limit == len(want) else None), (text, limit)


def test_smollm2(smollm2: VocabularyTokenizer) -> None:
    check(smollm2, "smollm2")


def test_smollm2_round_trip(smollm2: VocabularyTokenizer) -> None:
    # The vocabulary lacks tokens for these control characters, and for two bytes of planes 4 to 16.
    for case in golden("tokens_smollm2.json"):
        text = case["text"].translate(dict.fromkeys(b"\x04\x06\x13\x14\x16\x1d"))
        if max(map(ord, text), default=0) < 0x40000:
            assert smollm2.decode(case["special"], skip_special=False) == text


def test_smollm2_ends(smollm2: VocabularyTokenizer) -> None:
    assert smollm2.eos_id == 2
    assert smollm2.eos_ids == {0, 2}
    assert smollm2.token_text(2) == "<|im_end|>"
    assert smollm2.vocab_size == 49152
    assert not smollm2.add_bos


def test_gemma3(gemma3_path: Path) -> None:
    tokenizer = load_model_tokenizer(gemma3_path)
    check(tokenizer, "gemma3")
    assert tokenizer.eos_ids == {1, 106}
    assert tokenizer.encode("Hi")[0] == tokenizer.bos_id == 2
    # U+2581 and a space are one to this vocabulary.
    for case in golden("tokens_gemma3.json"):
        text = case["text"]
        if "\u2581" not in text:
            assert tokenizer.decode(case["special"], skip_special=False) == text


def test_gemma3_tag_is_user_defined(gemma3_path: Path) -> None:
    tokenizer = load_model_tokenizer(gemma3_path)
    assert tokenizer.encode("</s>", add_special=False, parse_special=False) == [212]


def test_qwen25(qwen25_path: Path) -> None:
    tokenizer = load_model_tokenizer(qwen25_path)
    check(tokenizer, "qwen25")
    for case in golden("tokens_qwen25.json"):
        assert tokenizer.decode(case["special"], skip_special=False) == case["text"]
    assert {tokenizer.token_text(i) for i in tokenizer.eos_ids} == {
        "<|endoftext|>",
        "<|im_end|>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
    }


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
def test_words(name: str) -> None:
    pre_tokenizer = make_pre_tokenizer(SPLITS[name])
    for case in golden("words.json"):
        spans = [span for _, span in pre_tokenizer.pre_tokenize_str(case["text"])]
        assert [end - start for start, end in spans] == case[name], case["text"]
