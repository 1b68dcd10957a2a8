"""Arrivals and lengths from a seed, and traces: read exactly, or refused with file and line."""

from __future__ import annotations

import gzip
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.load import traces
from headrace.bench.load.lengths import Lengths
from headrace.bench.load.shapes import Shape, cut, made_shapes, poisson, spread
from headrace.bench.load.traces import read_trace
from headrace.errors import HeadraceError

AZURE = b"""TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:18:03.9799600,110,0"""
MOONCAKE = b"""{"timestamp": 0, "input_length": 1030, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 512, "output_length": 6, "hash_ids": [0]}
{"timestamp": 3000, "input_length": 1, "output_length": 4, "hash_ids": [46]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def test_azure(file: Path) -> None:
    file.write_bytes(AZURE)
    shapes = read_trace(file)
    assert [(s.prompt_len, s.output_len, s.blocks) for s in shapes] == [
        (4808, 10, ()), (3180, 8, ()), (110, 1, ()),
    ]  # fmt: skip
    assert [s.at_s for s in shapes] == pytest.approx([0.0, 0.052, 60.0])
    file.write_bytes(
        b"\xef\xbb\xbfGeneratedTokens,TIMESTAMP,x,ContextTokens\r\n"
        b"5,2024-05-10 00:00:01.5+00:00,,7\r\n\r\n6,2024-05-10 00:00:00,,8\r\n"
    )
    assert read_trace(file) == [Shape(0.0, 8, 6), Shape(1.5, 7, 5)]


def test_mooncake_spreads_what_arrives_in_one_instant(file: Path) -> None:
    file.write_bytes(gzip.compress(MOONCAKE))
    assert read_trace(file) == [
        Shape(0.0, 1030, 500, (0, 1, 2)), Shape(1.5, 512, 6, (0,)), Shape(3.0, 1, 4, (46,)),
    ]  # fmt: skip
    assert len(read_trace(file, 1)) == 1


def test_a_limit_reads_no_further(file: Path) -> None:
    file.write_bytes(AZURE + b"\nnonsense\n")
    assert len(read_trace(file, 3)) == 3
    with pytest.raises(HeadraceError, match="trace line 5: 1 fields, at least 3 are needed"):
        read_trace(file)


LINE = b'{"timestamp": 0, "input_length": 5, "output_length": 5%s}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no trace that is known"),
        (b"a,b\n1,2\n", "is no trace that is known"),
        (AZURE.split(b"\n")[0], "the trace has no requests"),
        (AZURE.replace(b"4808", b"-1"), "line 2: ContextTokens is '-1', not a whole number"),
        (AZURE.replace(b"4808", b"4.5"), "line 2: ContextTokens is '4.5'"),
        (AZURE.replace(b",8", b",99999999"), "line 3: GeneratedTokens is '99999999'"),
        (AZURE.replace(b"2023-11-16 18:18", b"yesterday"), "line 4: TIMESTAMP is 'yesterday"),
        (AZURE + b"\n\xff,1,1", "line 5: is no UTF-8"),
        (LINE % b"" + b"\n{", "line 2: "),
        (LINE.replace(b"0,", b"-1,", 1) % b"", "line 1: timestamp is -1"),
        (LINE.replace(b"5,", b"99999999,", 1) % b"", "line 1: input_length is '99999999'"),
        (LINE.replace(b"5,", b'"x",', 1) % b"", "line 1: Expected `int`, got `str`"),
        (LINE % b', "hash_ids": [1, 2]', "line 1: 2 hash_ids, but a prompt of 5 tokens has 1"),
        (gzip.compress(AZURE)[:-20], "compressed data is damaged"),
        (b"{" + b"x" * (5 << 20), "line 1: longer than 4 MiB"),
    ],
)
def test_a_bad_line_is_named(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(HeadraceError, match=message):
        read_trace(file)


def test_a_few_bytes_that_unpack_to_lines_without_end_are_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_LINES", 1000)
    for content in (b"\n" * (1 << 20), MOONCAKE * 1000):
        file.write_bytes(gzip.compress(content))
        with pytest.raises(HeadraceError, match="longer than 1000 lines; --limit takes the first"):
            read_trace(file)
    assert len(read_trace(file, 1000)) == 1000


@given(
    st.sampled_from([AZURE, MOONCAKE, gzip.compress(MOONCAKE)]),
    st.integers(0, 300),
    st.binary(max_size=12),
    st.integers(0, 12),
)
def test_a_damaged_trace_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, place: int, put: bytes, cut: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "damaged"
    file.write_bytes(content[:place] + put + content[place + cut :])
    try:
        shapes = read_trace(file)
    except HeadraceError:
        return
    assert [s.at_s for s in shapes] == sorted(s.at_s for s in shapes)
    assert shapes[0].at_s == 0
    assert all(s.prompt_len >= 1 and s.output_len >= 1 for s in shapes)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_bytes(content)
    with pytest.raises(HeadraceError, match=r"^any"):
        read_trace(file)


@pytest.mark.parametrize("lengths", Lengths)
def test_made_lengths_have_their_mean_and_their_seed(lengths: Lengths) -> None:
    shapes = made_shapes(20_000, 200, 50, lengths, seed=7)
    assert shapes == made_shapes(20_000, 200, 50, lengths, seed=7)
    assert min(min(s.prompt_len, s.output_len) for s in shapes) >= 1
    assert statistics.mean(s.prompt_len for s in shapes) == pytest.approx(200, rel=0.05)
    assert statistics.mean(s.output_len for s in shapes) == pytest.approx(50, rel=0.05)
    if lengths is not Lengths.FIXED:
        assert shapes != made_shapes(20_000, 200, 50, lengths, seed=8)


def test_poisson_arrivals_have_their_rate_and_spread() -> None:
    times = [s.at_s for s in poisson([Shape(0.0, 1, 1)] * 20_000, 40.0, seed=3)]
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    assert times == sorted(times)
    assert statistics.mean(gaps) == pytest.approx(1 / 40, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 40, rel=0.03)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_spreading_keeps_order_and_every_instant(instants: list[int]) -> None:
    shapes = [Shape(float(at), index + 1, 1) for index, at in enumerate(sorted(instants))]
    found = list(spread(shapes))
    assert [s.prompt_len for s in found] == [s.prompt_len for s in shapes]
    assert [s.at_s for s in found] == sorted(s.at_s for s in found)
    assert {s.at_s for s in shapes} <= {s.at_s for s in found}


def test_cutting_cuts_the_blocks_too() -> None:
    shape = Shape(1.0, 1300, 50, (1, 2, 3))
    assert cut(shape, None, None) == shape
    assert cut(shape, 1024, 7) == Shape(1.0, 1024, 7, (1, 2))
    assert cut(shape, 5, 500) == Shape(1.0, 5, 50, (1,))
