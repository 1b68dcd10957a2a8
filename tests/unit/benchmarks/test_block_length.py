"""The constant of a block's length is found where it stands, and nowhere else."""

from __future__ import annotations

import pytest

from benchmarks.block_length import CONSTANTS, with_length
from benchmarks.machine import ROOT


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_build_differs_in_one_line(name: str) -> None:
    text = (ROOT / name).read_text()
    changed = with_length(text, CONSTANTS[name], 64)
    lines = zip(text.splitlines(), changed.splitlines(), strict=True)
    ((before, after),) = [pair for pair in lines if pair[0] != pair[1]]
    assert after == before.replace("16", "64")


def test_a_constant_that_moved_is_missed() -> None:
    with pytest.raises(ValueError, match="found 0 times"):
        with_length("int kBlock = 16;", CONSTANTS["native/common/types.h"], 32)
