"""Every table gives the bits of the scalar one, also those that this processor cannot run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace import _native
from headrace._native import testing
from headrace.weights.base import DType
from scripts import emulate

TABLE = Path("native/common/table.h")

# The first run of each kind compiles: minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    return emulate.digests(emulate.baseline())


@pytest.mark.parametrize("run", emulate.runs(), ids=lambda run: f"{run.table} {run.way}")
def test_equals_the_scalar_table(run: emulate.Run, expected: dict[str, str]) -> None:
    if run.lacks:
        pytest.skip(f"the {run.table} table cannot be emulated without {run.lacks}")
    assert emulate.differing(expected, emulate.digests(run)) == []


def test_every_entry_has_a_digest(expected: dict[str, str]) -> None:
    """A kernel that joins the table joins the proof."""
    text = (emulate.ROOT / TABLE).read_text(encoding="utf-8")
    members = text.partition("struct KernelTable {")[2].partition("\n};")[0]
    entries = re.findall(r"\(\*(\w+)\)\(", members)
    assert len(entries) > 15
    assert {name.split()[0] for name in expected} == {*entries, "sample_row"}
    types = {dtype.name.lower() for dtype in DType}
    assert {name.split()[1] for name in expected if name.startswith("gemm ")} >= types


def test_a_digest_tells_results_apart(expected: dict[str, str]) -> None:
    for kind in ("f16", "i8"):  # merged states are what one item gives, however the work is cut
        assert expected[f"merge_splits {kind}"] == expected[f"attend_item {kind}"]
    values = [digest for entry, digest in expected.items() if "merge_splits" not in entry]
    assert len(set(values)) == len(values)


def test_differing_tells_what_is_missing() -> None:
    assert emulate.differing({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == ["b", "c"]
    assert emulate.differing({"a": "1"}, {}) == ["a"]


def test_a_table_of_another_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = "avx2" if "neon" in _native.isas() else "neon"
    monkeypatch.setenv("HEADRACE_ISA", foreign)
    with pytest.raises(ValueError, match=rf"HEADRACE_ISA={foreign} is not a kernel table of this"):
        _native.isa()
    with pytest.raises(ValueError, match=foreign):
        testing.unpack(foreign, int(DType.F32), bytes(32), 1, 1, 0)
