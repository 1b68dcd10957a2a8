"""Log-probabilities of answers that are not streamed, in 12 bytes for each token they name."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from headrace.errors import RequestError
from headrace.text.base import Tokenizer
from headrace.worker.frames import TokenLogprob

# Of one answer. As JSON an entry takes 20 to 90 bytes, so that an answer stays below 50 MB.
MAX_ENTRIES = 1 << 19


class EntryBudget:
    """Counts the log-probabilities of one answer."""

    def __init__(self) -> None:
        self._num_entries = 0

    def take(self, num_entries: int) -> None:
        """Raises RequestError when the answer would hold too many."""
        self._num_entries += num_entries
        if self._num_entries > MAX_ENTRIES:
            raise RequestError(
                f"The answer would hold more than {MAX_ENTRIES} log-probabilities; ask for fewer "
                "prompts, choices, tokens or alternatives at a time, or stream it.",
                param="logprobs",
                code="invalid_value",
            )


class CompactLogprobs:
    """A list of `TokenLogprob | None`. Their texts and bytes are looked up again when it is read:
    as objects they would take twenty times as much."""

    def __init__(self, tokenizer: Tokenizer, budget: EntryBudget) -> None:
        self._tokenizer = tokenizer
        self._budget = budget
        self._ids = array("i")
        self._values = array("d")
        # End of each item in both.
        self._ends = array("q")

    def add(self, entry: TokenLogprob | None) -> None:
        """Append one. Raises RequestError when the budget is spent."""
        if entry is not None:
            self._budget.take(1 + len(entry.top))
            self._ids.append(entry.token_id)
            self._values.append(entry.logprob)
            for token_id, _, _, value in entry.top:
                self._ids.append(token_id)
                self._values.append(value)
        self._ends.append(len(self._ids))

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[TokenLogprob | None]:
        text, raw = self._tokenizer.token_text, self._tokenizer.decode_bytes
        ids, values, start = self._ids, self._values, 0
        for end in self._ends:
            if start == end:
                yield None
                continue
            token = ids[start]
            rest = zip(ids[start + 1 : end], values[start + 1 : end], strict=True)
            top = [(i, text(i), raw(i), value) for i, value in rest]
            yield TokenLogprob(token, text(token), raw(token), values[start], top)
            start = end
