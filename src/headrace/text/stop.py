"""Streaming search for stop strings: an Aho-Corasick automaton, linear in the text.

The stop string that is complete first ends the text; of those that end together, the longest. So
the result depends on the text alone, not on how it arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from headrace.errors import RequestError
from headrace.text.base import StopMatch, StopMatcher


def make_stop_matcher(stops: Sequence[str], include_stop: bool = False) -> StopMatcher | None:
    """A matcher for one choice, or None without stop strings.

    `include_stop`: the stop string itself is part of the text. Raises RequestError for an empty
    stop string.
    """
    if not stops:
        return None
    if "" in stops:
        raise RequestError("A stop string must not be empty.", param="stop", code="invalid_value")
    return AutomatonStopMatcher(_build(tuple(stops)), include_stop)


class _Automaton:
    """States are prefixes of the stop strings; state 0 is the empty one.

    `next[s]` leads to the longest prefix that ends the text read so far, `depth[s]` is its length,
    and `stop[s]` the longest stop string that ends there.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.fail = [0]
        self.depth = [0]
        self.stop: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            found = self.next[state].get(char)
            if found is None:
                found = len(self.next)
                self.next[state][char] = found
                self.next.append({})
                self.fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.stop.append(None)
            state = found
        self.stop[state] = stop

    def _link(self) -> None:
        """Breadth first, so that a state's shorter suffixes are linked before it."""
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            shorter = self.fail[state]
            self.stop[state] = self.stop[state] or self.stop[shorter]
            for char, child in self.next[state].items():
                self.fail[child] = self.step(shorter, char)
                queue.append(child)

    def step(self, state: int, char: str) -> int:
        while (found := self.next[state].get(char)) is None:
            if state == 0:
                return 0
            state = self.fail[state]
        return found


@lru_cache(maxsize=64)
def _build(stops: tuple[str, ...]) -> _Automaton:
    return _Automaton(stops)


class AutomatonStopMatcher:
    """Holds back exactly the longest end of the text that may still become a stop string."""

    def __init__(self, automaton: _Automaton, include_stop: bool) -> None:
        self._automaton = automaton
        self._include_stop = include_stop
        self._state = 0
        self._held = ""
        self._stopped: str | None = None

    def push(self, delta: str) -> StopMatch:
        if self._stopped is not None:
            return StopMatch("", self._stopped)
        automaton, state = self._automaton, self._state
        for position, char in enumerate(delta, 1):
            state = automaton.step(state, char)
            stop = automaton.stop[state]
            if stop is not None:
                self._stopped = stop
                text = self._held + delta[:position]
                self._held = ""
                return StopMatch(text if self._include_stop else text[: -len(stop)], stop)
        self._state = state
        text = self._held + delta
        sent_len = len(text) - automaton.depth[state]
        self._held = text[sent_len:]
        return StopMatch(text[:sent_len], None)

    def flush(self) -> str:
        text, self._held, self._state = self._held, "", 0
        return text
