"""What one rendering may use: processor time, memory by characters made, depth of calls.

Templates come from model files, and whoever wrote one may want to stop the server. Every operation
of a template that can take time or make something passes through a meter, before it runs.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any

from jinja2 import Undefined
from jinja2.runtime import Macro
from jinja2.utils import Namespace

# Processor time of the rendering thread: waiting for others' turns does not count.
MAX_RENDER_S = 0.5
MAX_TEXT_LEN = 1 << 24  # characters of one value, and of the output
MAX_ITEMS = 200_000  # elements of one list
MAX_INT_BITS = 4096
MAX_DEPTH = 100  # calls inside calls, lists inside lists
MAX_COMPARISONS = 10**9  # of characters in one search that takes product time
# Characters made in one rendering: this, and so many for each character of the input.
_CHARS_MADE = 1 << 26
_CHARS_MADE_PER_INPUT = 16

_CHECK_EVERY = 64  # units between looks at the clock; a unit is about a microsecond
_CHARS_PER_UNIT = 256
_ITEM_WEIGHT = 8

_CONTAINERS = (list, tuple, dict, set, frozenset)
_LEAVES = (int, float, type(None), range, Undefined, Namespace, Macro)
_VIEWS = (KeysView, ValuesView, ItemsView)


class LimitError(Exception):
    """A rendering ran out of its limits; the message completes "The chat template ..."."""


class Meter:
    """Belongs to one rendering and its thread.

    The weight of a value is about the length of its text, so it bounds what printing, comparing or
    serializing it can cost, also when a list holds the same list many times.
    """

    __slots__ = ("_chars_left", "_deadline_s", "_known", "_units_left", "depth")

    def __init__(self, input_value: Any = None) -> None:
        self._deadline_s = time.thread_time() + MAX_RENDER_S
        self._units_left = _CHECK_EVERY
        # id -> (container, weight, depth); the reference keeps the id from being used again.
        self._known: dict[int, tuple[Any, int, int]] = {}
        self.depth = 0
        self._chars_left = _CHARS_MADE + _CHARS_MADE_PER_INPUT * self.weigh(input_value)

    def tick(self, units: int = 1) -> None:
        """Counts work; raises LimitError when the time is over."""
        self._units_left -= units
        if self._units_left < 0:
            if time.thread_time() > self._deadline_s:
                raise LimitError(f"took longer than {MAX_RENDER_S} s")
            self._units_left = _CHECK_EVERY

    def read(self, *values: Any) -> None:
        """Counts an operation that walks through these values."""
        weight = 0
        for value in values:
            weight += len(value) if type(value) is str else self.weigh(value)
        self.tick(1 + weight // _CHARS_PER_UNIT)

    def charge(self, num_chars: int) -> None:
        """Counts something about to be made; raises LimitError if it is too much."""
        if num_chars > MAX_TEXT_LEN:
            raise LimitError(f"made a value of more than {MAX_TEXT_LEN} characters")
        self._chars_left -= num_chars
        if self._chars_left < 0:
            raise LimitError("made too many long values")
        self.tick(1 + num_chars // _CHARS_PER_UNIT)

    def take(self, value: Any) -> Any:
        """Charges a new value, and meters it if it is an iterator; returns it."""
        if isinstance(value, str):
            self.charge(len(value))
        elif type(value) is int:
            self.check_int(value)
        elif isinstance(value, _CONTAINERS):
            self._measure(value, 0)
            self.charge(_ITEM_WEIGHT * (1 + len(value)))
        elif hasattr(value, "__next__"):
            return self._metered(value)
        return value

    def _metered(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.tick()
            yield item

    def check_int(self, value: int) -> None:
        if value.bit_length() > MAX_INT_BITS:
            raise LimitError(f"made a number of more than {MAX_INT_BITS} bits")

    def check_search(self, text: str, wanted: str | None) -> None:
        """Some methods compare each character of `wanted` at each place of `text`."""
        if wanted is not None and len(text) * len(wanted) > MAX_COMPARISONS:
            raise LimitError("searches a long text for a long one")

    def check_items(self, num_items: int) -> None:
        if num_items > MAX_ITEMS:
            raise LimitError(f"made a list of more than {MAX_ITEMS} items")

    def enter(self) -> None:
        """A call begins; its end is `depth -= 1`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise LimitError(f"called itself more than {MAX_DEPTH} times deep")

    def weigh(self, value: Any) -> int:
        if isinstance(value, str):
            return len(value) + _ITEM_WEIGHT
        if isinstance(value, int):
            self.check_int(value)
            return _ITEM_WEIGHT
        return self._measure(value, 0)[0]

    def weigh_text(self, value: Any) -> int:
        """The weight of what is about to be printed; raises LimitError for what is not data."""
        return self._measure(value, 1)[0]

    def nesting(self, value: Any) -> int:
        """How deep lists and mappings are nested in a value."""
        return self._measure(value, 0)[1]

    def _measure(self, value: Any, level: int) -> tuple[int, int]:
        """Weight and nesting of a value; remembered, as templates cannot change a container."""
        if isinstance(value, str):
            return len(value) + _ITEM_WEIGHT, 0
        children = _children(value)
        if children is None:
            # Alone it may be passed around; as text it would show an address.
            if level > 0 and not isinstance(value, _LEAVES):
                raise LimitError(f"takes a {type(value).__name__} for text")
            return _ITEM_WEIGHT, 0
        known = self._known.get(id(value))
        if known is not None:
            return known[1], known[2]
        if level > MAX_DEPTH:
            raise LimitError(f"nests lists more than {MAX_DEPTH} deep")
        weight, depth = _ITEM_WEIGHT, 0
        for child in children:
            self.tick()
            child_weight, child_depth = self._measure(child, level + 1)
            weight += child_weight
            depth = max(depth, child_depth)
        if weight > MAX_TEXT_LEN:
            raise LimitError(f"made a value of more than {MAX_TEXT_LEN} characters")
        if depth >= MAX_DEPTH:
            raise LimitError(f"nests lists more than {MAX_DEPTH} deep")
        self._known[id(value)] = (value, weight, depth + 1)
        return weight, depth + 1


def _children(value: Any) -> Iterable[Any] | None:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (*_CONTAINERS, *_VIEWS)):
        return value
    return None
