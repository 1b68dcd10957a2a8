"""Places: which node of the tree a block is in. For who wants a block because of where it lies."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.kv.radix.node import Node

# Nodes that are looked at: those above a block's that a split has cut off, and those that hang on
# it. What takes more is in use by many.
MAX_NODES = 8


class Places:
    """Owned by a tree, which notes every block that enters it.

    What is noted of a block is right while the block is in the tree, up to splits: these give the
    upper part of a run to a new node above.
    """

    def __init__(self, num_blocks: int) -> None:
        self.max_nodes = MAX_NODES
        self._nodes: list[Node | None] = [None] * num_blocks

    def note(self, blocks: Iterable[int], node: Node) -> None:
        """These are in the node now."""
        for block in blocks:
            self._nodes[block] = node

    def find(self, block: int) -> tuple[int, list[Node]] | None:
        """Where a block is in the tree: its position in its node; that node and all that hang on
        it, each behind its parent. None if some are held, or they are many."""
        node = self._nodes[block]
        for _ in range(self.max_nodes):
            if node is None:
                break
            for table in node.blocks:
                if block in table:
                    below = _subtree(node, self.max_nodes)
                    return None if below is None else (table.index(block), below)
            node = node.parent
        return None


def _subtree(node: Node, most: int) -> list[Node] | None:
    found = [node]
    for each in found:
        if each.pins or len(found) + len(each.children) > most:
            return None
        found.extend(each.children.values())
    return found
