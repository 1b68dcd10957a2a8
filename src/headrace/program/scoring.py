"""The arithmetic of `select`: which tokens are scored, what the scores are, who wins.

The options are compared by the likelihood of whole token sequences: those of prompt + option (+
the text that is to follow), tokenized as one text, as the model would have seen it. A tokenizer may
join the end of the prompt and the start of an option into one token, so that the prompt's own
tokens are not always a beginning of these sequences. What is: the tokens that the prompt alone and
all the sequences have in common. These are the prefix. Its likelihood is a factor of every
sequence's, so that leaving it out changes no comparison; every token of an option comes after it.
"""

from __future__ import annotations

from collections.abc import Sequence


def common_len(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids two sequences have in common at their beginning."""
    limit = min(len(first), len(second))
    for i in range(limit):
        if first[i] != second[i]:
            return i
    return limit


def totals(logprobs: Sequence[Sequence[float]], *, normalize: bool) -> tuple[float, ...]:
    """The score of each option: the sum of its tokens' logprobs, added from the first to the last
    in float64; with `normalize` divided by their number. No option is without tokens."""
    sums = [sum(each) for each in logprobs]
    if not normalize:
        return tuple(sums)
    return tuple(total / len(each) for total, each in zip(sums, logprobs, strict=True))


def best(scores: Sequence[float]) -> int:
    """The index of the highest score, of the first among equals."""
    return max(range(len(scores)), key=lambda i: scores[i])


def abandoned(
    kept: Sequence[int], others: Sequence[Sequence[int]]
) -> list[tuple[Sequence[int], list[Sequence[int]]]]:
    """(prefix, tails) of sequences that nobody goes on with, where `kept` may be gone on with: what
    each has in common with it is prefix, the rest is tail."""
    by_len: dict[int, list[Sequence[int]]] = {}
    for ids in others:
        shared = common_len(kept, ids)
        if shared < len(ids):
            by_len.setdefault(shared, []).append(ids[shared:])
    return [(kept[:shared], tails) for shared, tails in sorted(by_len.items())]
