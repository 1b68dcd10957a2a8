"""What routers are told of the cache's content (see base.CacheEvent)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from headrace.kv.radix.base import NO_BLOCK, CacheEvent
from headrace.kv.radix.node import Node


class EventLog:
    """Changes until somebody takes them."""

    def __init__(self) -> None:
        self._events: list[CacheEvent] = []

    def inserted(self, node: Node, start: int, data: bytes) -> None:
        """`node` has got blocks for `data` from block `start` of the path on."""
        blocks = node.blocks[0]
        above = node.parent
        if start > node.start:
            parent = blocks[start - node.start - 1]
        else:
            parent = above.blocks[0][-1] if above is not None and len(above) else NO_BLOCK
        top = node
        while top.parent is not None:
            top = top.parent
        new = tuple(blocks[start - node.start :])
        self._events.append(CacheEvent("insert", new, top.root, parent, tuple(array("i", data))))

    def evicted(self, blocks: Sequence[int]) -> None:
        """`blocks` of the first group are gone."""
        self._events.append(CacheEvent("evict", tuple(blocks)))

    def take(self) -> list[CacheEvent]:
        events, self._events = self._events, []
        return events
