"""Text for benchmarks: evaluation sets when they are at hand, otherwise made from a seed."""

from __future__ import annotations

import gzip
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

GSM8K = Path("evalsets") / "gsm8k_test.jsonl"
HUMANEVAL = Path("evalsets") / "humaneval.jsonl.gz"
PASSAGES = Path("evalsets") / "spec_bench_qa_rag.jsonl"
# A question without a passage is shorter.
_MIN_PASSAGE_LEN = 500
_SUBJECTS = ("The miller", "A farmer", "Her brother", "The clerk", "Each boat", "Their teacher")
_VERBS = ("buys", "sells", "carries", "counts", "repairs", "borrows", "wins", "loses")
_THINGS = ("sacks of flour", "apples", "coins", "planks", "eggs", "letters", "ropes", "lamps")
_TIMES = ("every day", "in the spring", "before noon", "twice a week", "at the mill", "by night")


@dataclass(frozen=True)
class Text:
    """`source` says where the text is from."""

    source: str
    body: str


def benchmark_text(folder: Path | None = None, kind: str = "maths") -> Text:
    """Text below `folder` (default: $HEADRACE_DATA): "maths" is GSM8K's test split, "code" the
    solved problems of HumanEval, "prose" the Wikipedia passages of Spec-Bench."""
    root = folder or Path(os.environ.get("HEADRACE_DATA", "data"))
    relative = {"maths": GSM8K, "code": HUMANEVAL, "prose": PASSAGES}[kind]
    path = root / relative
    if not path.is_file():
        return Text(f"made from a seed (no {relative} in HEADRACE_DATA)", made_text())
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    if kind == "code":
        parts = [row["prompt"] + row["canonical_solution"] for row in rows]
        return Text("HumanEval, solved", "\n\n".join(parts))
    if kind == "prose":
        turns = [row["turns"][0] for row in rows]
        passages = [turn for turn in turns if len(turn) >= _MIN_PASSAGE_LEN]
        return Text("Wikipedia passages of Spec-Bench", "\n\n".join(passages))
    parts = [f"Question: {row['question']}\nAnswer: {row['answer']}\n" for row in rows]
    return Text("GSM8K test split", "\n".join(parts))


def kind_of_text(model_name: str) -> str:
    """What a model was made for: code for coders, prose for base models of Gemma."""
    name = model_name.lower()
    if "coder" in name:
        return "code"
    return "prose" if "gemma" in name else "maths"


def made_text(num_sentences: int = 6000, seed: int = 0) -> str:
    """Short sentences of counted things; the same for the same seed."""
    rng = random.Random(seed)
    sentences = []
    for _ in range(num_sentences):
        first, second = rng.randint(2, 900), rng.randint(2, 90)
        sentences.append(
            f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {first} {rng.choice(_THINGS)} and"
            f" {second} {rng.choice(_THINGS)} {rng.choice(_TIMES)}, {first + second} in all."
        )
    return " ".join(sentences)
