"""Places: which node of the tree a block is in. For who wants a block because of where it lies."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.kv.radix.node import Node

# Nodes that may hang on a block that is to go. What has more is in use by many.
MAX_NODES = 8


class Places:
    """Owned by a tree, which notes every block that enters it or comes to another node. What is
    noted of a block is right while the block is in the tree."""

    def __init__(self, num_blocks: int) -> None:
        self.max_nodes = MAX_NODES
        self._nodes: list[Node | None] = [None] * num_blocks

    def note(self, blocks: Iterable[int], node: Node) -> None:
        """These (below 0: none) are in the node now."""
        for block in blocks:
            if block >= 0:
                self._nodes[block] = node

    def note_all(self, node: Node) -> None:
        """All of its blocks are in it now."""
        for table in node.blocks:
            self.note(table, node)

    def find(self, block: int) -> tuple[int, list[Node]] | None:
        """Where a block is in the tree: its position in its node; that node and all that hang on
        it, each behind its parent. None if some are held, or they are many."""
        node = self._nodes[block]
        assert node is not None
        found = [node]
        for each in found:
            if each.pins or len(found) + len(each.children) > self.max_nodes:
                return None
            found.extend(each.children.values())
        return next(table.index(block) for table in node.blocks if block in table), found
