"""Two small vocabularies learned from a fixed text: byte-level BPE and SentencePiece-style BPE."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
NUM_GPT2_MERGES = 61
NUM_LLAMA_MERGES = 58

_TEXT = """The channel carries the water to the mill wheel, and when the river ebbs the gate shuts.
There is nothing to spend while nothing is asked. The miller opens the gate again in the morning,
the water runs, the wheel turns, and the stones grind the grain into flour: one sack, two, 345.
Then the carters come and carry the flour away to the town, where the bakers are waiting for it."""


@dataclass(frozen=True)
class Vocabulary:
    """A GGUF vocabulary: tokens as stored (mapped bytes for gpt2, pieces for llama)."""

    model: str
    tokens: list[str]
    token_types: list[int]
    scores: list[float] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    bos_id: int = 0
    eos_id: int = 0
    unk_id: int = 0
    pad_id: int = 0


@cache
def byte_alphabet() -> tuple[str, ...]:
    """GPT-2's printable character for each byte value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = {b: 256 + i for i, b in enumerate(b for b in range(256) if b not in printable)}
    return tuple(chr(moved.get(b, b)) for b in range(256))


def _learn_merges(words: list[tuple[str, ...]], num_merges: int) -> list[tuple[str, str]]:
    """Plain BPE: the most frequent pair first, ties to the smallest pair."""
    counts = Counter(words)
    merges: list[tuple[str, str]] = []
    while len(merges) < num_merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in counts.items():
            for pair in pairwise(word):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        merged: Counter[tuple[str, ...]] = Counter()
        for word, count in counts.items():
            merged[_apply(word, best)] += count
        counts = merged
    return merges


def _apply(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for symbol in word:
        if out and (out[-1], symbol) == pair:
            out[-1] += symbol
        else:
            out.append(symbol)
    return tuple(out)


@cache
def gpt2_vocabulary() -> Vocabulary:
    """320 tokens: 3 special (end of text, <|im_start|>, <|im_end|>), 256 bytes, 61 merges."""
    alphabet = byte_alphabet()
    words = [
        tuple(alphabet[b] for b in word.encode())
        for word in re.findall(r" ?[A-Za-z]+| ?[0-9]+|\s+|[^\sA-Za-z0-9]+", _TEXT)
    ]
    merges = _learn_merges(words, NUM_GPT2_MERGES)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*special, *alphabet, *(a + b for a, b in merges)]
    return Vocabulary(
        model="gpt2",
        tokens=tokens,
        token_types=[CONTROL] * 3 + [NORMAL] * (len(tokens) - 3),
        merges=[f"{a} {b}" for a, b in merges],
        bos_id=1,
        eos_id=2,
        unk_id=0,
        pad_id=2,
    )


@cache
def llama_vocabulary() -> Vocabulary:
    """416 tokens: <unk> <s> </s> <|im_start|> <|im_end|>, 256 byte tokens, characters, merges.

    Scores are minus the rank, as SentencePiece BPE writes them.
    """
    words = [
        tuple("\u2581" + word) for word in re.findall(r"[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]+", _TEXT)
    ]
    merges = _learn_merges(words, NUM_LLAMA_MERGES)
    special = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    raw = [f"<0x{b:02X}>" for b in range(256)]
    characters = ["\u2581", "\n", *(chr(c) for c in range(33, 127)), "é"]
    pieces = [*(a + b for a, b in merges), *characters]
    tokens = [*special, *raw, *pieces]
    normal = len(tokens) - len(special) - len(raw)
    return Vocabulary(
        model="llama",
        tokens=tokens,
        token_types=[UNKNOWN, *[CONTROL] * 4, *[BYTE] * 256, *[NORMAL] * normal],
        scores=[0.0] * (len(special) + len(raw)) + [-float(rank) for rank in range(normal)],
        bos_id=1,
        eos_id=2,
        unk_id=0,
        pad_id=0,
    )


def tokenizer_json(vocab: Vocabulary) -> bytes:
    """The byte-level vocabulary as a tokenizer.json of the `tokenizers` library."""
    if vocab.model != "gpt2":
        raise ValueError("only the byte-level vocabulary has a tokenizer.json form here")
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    added = [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, token in enumerate(vocab.tokens)
        if vocab.token_types[i] == CONTROL
    ]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(vocab.tokens)},
            "merges": [merge.split(" ") for merge in vocab.merges],
        },
    }
    return json.dumps(document, ensure_ascii=False).encode()
