"""Belady's bound is one, LRU and LFU are what they are called, and a run has its rows."""

from __future__ import annotations

import functools
import json
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import hit_rate
from benchmarks.hit_rate import (
    DIVISOR,
    ORDERS,
    LfuOrder,
    LruOrder,
    belady_bound,
    belady_hits,
    made_conversations,
)
from benchmarks.rows import read_figures
from benchmarks.targets import FIGURE_TARGETS
from headrace.backends.layout import BLOCK_LEN
from headrace.bench.load.shapes import Shape
from headrace.bench.simulate import PromptIds
from headrace.kv.radix.order import EvictionOrder


def most_hits(blocks: Sequence[int], capacity: int) -> int:
    """By trying everything that a cache can keep."""

    @functools.cache
    def after(at: int, cached: frozenset[int]) -> int:
        if at == len(blocks):
            return 0
        block = blocks[at]
        held = cached | {block}
        choices = [held] if len(held) <= capacity else [held - {out} for out in held]
        return (block in cached) + max(after(at + 1, choice) for choice in choices)

    return after(0, frozenset())


@given(st.lists(st.integers(0, 4), max_size=9), st.integers(0, 4))
def test_belady_hits_are_the_most_there_can_be(blocks: list[int], capacity: int) -> None:
    assert belady_hits(blocks, capacity) == most_hits(blocks, capacity)


def ids_of(shapes: Sequence[Shape]) -> list[array[int]]:
    maker = PromptIds(0, DIVISOR)
    return [maker.make(number, shape) for number, shape in enumerate(shapes)]


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("num_blocks", [150, 400, 3000])
def test_no_order_is_above_the_bound(order: Callable[[], EvictionOrder], num_blocks: int) -> None:
    shapes = made_conversations(150, 1)
    times_s = [shape.at_s for shape in shapes]
    rate = hit_rate.hit_rate(ids_of(shapes), times_s, num_blocks, order())
    assert 0 < rate <= belady_bound(shapes, num_blocks) < 100


def shape(*blocks: int) -> Shape:
    return Shape(0.0, BLOCK_LEN * len(blocks), 1, blocks)


OFTEN, LAST, NEW = shape(1, 2), shape(3, 4), shape(5, 6)


@pytest.mark.parametrize(("order", "kept"), [(LruOrder, LAST), (LfuOrder, OFTEN)])
def test_who_goes_first(order: Callable[[], EvictionOrder], kept: Shape) -> None:
    """Of two texts one was used often, the other last; a third takes the place of one."""
    shapes = [OFTEN, OFTEN, LAST, NEW, kept]
    rate = hit_rate.hit_rate(ids_of(shapes), [0.0] * len(shapes), 4, order())
    # All but the last token is found, of the second use and of what was kept.
    assert rate == pytest.approx(100 * 2 * (2 * BLOCK_LEN - 1) / (5 * 2 * BLOCK_LEN))


def test_a_run_writes_the_figures_that_have_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    rows = [
        {"timestamp": n, "input_length": 512 * 3, "output_length": 1, "hash_ids": [0, n % 9, n]}
        for n in range(10, 60)
    ]
    path = folder / Path(hit_rate.TRACES["conversation"]).name.removesuffix(".gz")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    monkeypatch.setitem(hit_rate.TRACES, "conversation", f"traces/{path.name}")
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["hit_rate", "--out", str(tmp_path / "rows.csv")])
    hit_rate.main()
    figures = {figure.figure: figure.value for figure in read_figures(tmp_path / "rows.csv")}
    assert set(FIGURE_TARGETS["16"]) <= set(figures)
    # Of three blocks in 50 prompts, the first is found 49 times, the second 41.
    assert figures["conversation, endless"] == pytest.approx(100 * (49 + 41) / 150)
