"""Programs changed for inspection."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.models.program import Head, Linear, Program, Rows
from headrace.models.registry import build_program
from headrace.models.views import LOGITS, first_ops, with_logits
from tests.support.make_model import Shape
from tests.support.sources import model_config


@pytest.fixture
def program() -> Program:
    return build_program(model_config(Shape(vocab_size=50), gguf=True))


def test_logits_become_a_buffer_of_wanted_rows(program: Program) -> None:
    shown = with_logits(program)
    assert shown.ops[:-1] == program.ops[:-1]
    product = shown.ops[-1]
    assert isinstance(product, Linear)
    assert (product.out, product.weights) == (LOGITS, ("token_embd.weight",))
    assert {b.name: (b.width, b.rows) for b in shown.buffers}[LOGITS] == (50, Rows.WANTED)


def test_a_softcapped_head_is_refused(program: Program) -> None:
    head = program.ops[-1]
    assert isinstance(head, Head)
    capped = replace(program, ops=(*program.ops[:-1], replace(head, softcap=30.0)))
    with pytest.raises(ValueError, match="softcapped"):
        with_logits(capped)


def test_a_program_without_a_head_is_refused(program: Program) -> None:
    cut = first_ops(program, 5)
    assert cut.ops == program.ops[:5]
    with pytest.raises(ValueError, match="does not end in a head"):
        with_logits(cut)
