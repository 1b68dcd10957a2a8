"""The trees that operations are measured in have the shapes that the page says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks import prefix_tree
from benchmarks.prefix_tree import PATH_BLOCKS, Forest
from benchmarks.rows import read_figures
from benchmarks.targets import FIGURE_TARGETS

NUM_BLOCKS = 3_000


@pytest.mark.parametrize(("shape", "nodes_per_path"), [("long", 1), ("short", PATH_BLOCKS)])
def test_every_path_has_the_shape(shape: str, nodes_per_path: int) -> None:
    forest = Forest(shape, NUM_BLOCKS, random.Random(0))
    root, *nodes = [node for _, node in forest.cache.nodes()]
    assert root.parent is None
    assert len(nodes) == nodes_per_path * NUM_BLOCKS // PATH_BLOCKS
    assert {len(node) for node in nodes} == {PATH_BLOCKS // nodes_per_path}
    assert forest.pool.num_idle == NUM_BLOCKS


@pytest.mark.parametrize("shape", prefix_tree.SHAPES)
def test_samples_leave_the_tree_as_it_was(shape: str) -> None:
    forest = Forest(shape, NUM_BLOCKS, random.Random(0))
    for sample in (forest.match, forest.look, forest.insert_path, forest.insert_block) * 3:
        assert sample() > 0
        assert forest.cache.num_blocks == forest.pool.num_idle == NUM_BLOCKS
    assert forest.evict() > 0
    assert forest.cache.num_blocks == forest.pool.num_idle == NUM_BLOCKS


def test_a_run_writes_the_figures_that_have_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.csv"
    arguments = ["--rounds", "2", "--blocks", "10000", "--samples", "1", "--out", str(rows)]
    monkeypatch.setattr("sys.argv", ["prefix_tree", *arguments])
    prefix_tree.main()
    figures = read_figures(rows)
    assert set(FIGURE_TARGETS["15"]) <= {figure.figure for figure in figures}
    assert {figure.round for figure in figures} == {0, 1}
