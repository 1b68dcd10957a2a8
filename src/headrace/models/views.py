"""Programs changed for inspection: all logits in a buffer, only the first operations."""

from __future__ import annotations

from dataclasses import replace

from headrace.models.program import Buffer, Head, Linear, Program, Rows

LOGITS = "logits"


def with_logits(program: Program) -> Program:
    """The same network with the head as a product into the WANTED buffer `logits`.

    Nothing is sampled. Such a step needs wanted rows x vocab_size floats, so take few rows at once.
    ValueError when the head is softcapped, which a product cannot express.
    """
    head = program.ops[-1]
    if not isinstance(head, Head):
        raise ValueError("the Program does not end in a head")
    if head.softcap > 0:
        raise ValueError("the head is softcapped")
    product = Linear(head.layer, head.extent, LOGITS, head.src, (head.weight,))
    return replace(
        program,
        buffers=(*program.buffers, Buffer(LOGITS, program.vocab_size, Rows.WANTED)),
        ops=(*program.ops[:-1], product),
    )


def first_ops(program: Program, count: int) -> Program:
    """The Program cut after `count` operations; no rows can be wanted when the head is gone."""
    return replace(program, ops=program.ops[:count])
