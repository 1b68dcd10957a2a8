"""Text for benchmarks: GSM8K when it is at hand, otherwise made from a seed."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

GSM8K = Path("evalsets") / "gsm8k_test.jsonl"
_SUBJECTS = ("The miller", "A farmer", "Her brother", "The clerk", "Each boat", "Their teacher")
_VERBS = ("buys", "sells", "carries", "counts", "repairs", "borrows", "wins", "loses")
_THINGS = ("sacks of flour", "apples", "coins", "planks", "eggs", "letters", "ropes", "lamps")
_TIMES = ("every day", "in the spring", "before noon", "twice a week", "at the mill", "by night")


@dataclass(frozen=True)
class Text:
    """`source` says where the text is from."""

    source: str
    body: str


def benchmark_text(folder: Path | None = None) -> Text:
    """Questions and answers of GSM8K's test split below `folder` (default: $HEADRACE_DATA)."""
    root = folder or Path(os.environ.get("HEADRACE_DATA", "data"))
    path = root / GSM8K
    if not path.is_file():
        return Text("made from a seed (no evalsets/gsm8k_test.jsonl in HEADRACE_DATA)", made_text())
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    parts = [f"Question: {row['question']}\nAnswer: {row['answer']}\n" for row in rows]
    return Text("GSM8K test split", "\n".join(parts))


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
