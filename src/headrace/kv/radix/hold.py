"""Holds: what a user of the tree has of a path (see base.Hold)."""

from __future__ import annotations

from headrace.kv.radix.base import Hold
from headrace.kv.radix.node import Node


class RadixHold:
    """Implements base.Hold: a pin on a node, whose end is where the held path ends."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node
        node.pins += 1
        node.entry = 0

    @property
    def num_blocks(self) -> int:
        return self.node.end

    def move(self, node: Node) -> None:
        """Hold a node below instead."""
        node.pins += 1
        node.entry = 0
        self.node.pins -= 1
        self.node = node


def node_of(hold: Hold) -> Node:
    """Where a hold of the tree's ends."""
    assert isinstance(hold, RadixHold)
    return hold.node
