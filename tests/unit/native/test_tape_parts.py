"""Parts of the tape by themselves: checksums, and the shapes of chunks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._native import testing

MASK = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
MIB = 1 << 20


def _rotl(value: int, count: int) -> int:
    return ((value << count) | (value >> (64 - count))) & MASK


def _round(acc: int, value: int) -> int:
    return _rotl((acc + value * P2) & MASK, 31) * P1 & MASK


def _xxh64(data: bytes, seed: int) -> int:
    """The specification, step by step."""
    at = 0
    if len(data) >= 32:
        acc = [(seed + P1 + P2) & MASK, (seed + P2) & MASK, seed, (seed - P1) & MASK]
        while at + 32 <= len(data):
            for lane in range(4):
                word = int.from_bytes(data[at + 8 * lane : at + 8 * lane + 8], "little")
                acc[lane] = _round(acc[lane], word)
            at += 32
        h = sum(_rotl(a, n) for a, n in zip(acc, (1, 7, 12, 18), strict=True)) & MASK
        for a in acc:
            h = ((h ^ _round(0, a)) * P1 + P4) & MASK
    else:
        h = (seed + P5) & MASK
    h = (h + len(data)) & MASK
    while at + 8 <= len(data):
        word = int.from_bytes(data[at : at + 8], "little")
        h = (_rotl(h ^ _round(0, word), 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= len(data):
        word = int.from_bytes(data[at : at + 4], "little")
        h = (_rotl(h ^ (word * P1 & MASK), 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        h = _rotl(h ^ (byte * P5 & MASK), 11) * P1 & MASK
    h = (h ^ (h >> 33)) * P2 & MASK
    h = (h ^ (h >> 29)) * P3 & MASK
    return h ^ (h >> 32)


def test_xxh64_of_the_published_vectors() -> None:
    assert testing.xxh64(b"", 0) == 0xEF46DB3751D8E999
    assert testing.xxh64(b"a", 0) == 0xD24EC4F1A98C6E5B
    assert testing.xxh64(b"abc", 0) == 0x44BC2CF5AD770999


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), seed=st.integers(0, MASK))
def test_xxh64_is_the_specification(data: bytes, seed: int) -> None:
    assert testing.xxh64(data, seed) == _xxh64(data, seed)


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB + 17])
def test_a_checksum_is_that_of_its_pieces(size: int) -> None:
    data = random.Random(size).randbytes(size)
    pieces = [data[at : at + MIB] for at in range(0, size, MIB)]
    digests = b"".join(testing.xxh64(piece, 0).to_bytes(8, "little") for piece in pieces)
    assert testing.checksum(data) == testing.xxh64(digests, size)


def test_a_checksum_sees_every_bit_and_the_order() -> None:
    data = bytearray(random.Random(1).randbytes(2 * MIB + 5))
    base = testing.checksum(bytes(data))
    for at in (0, MIB - 1, MIB, 2 * MIB + 4):
        data[at] ^= 0x10
        assert testing.checksum(bytes(data)) != base
        data[at] ^= 0x10
    swapped = bytes(data[MIB : 2 * MIB] + data[:MIB] + data[2 * MIB :])
    assert testing.checksum(swapped) != base


@settings(max_examples=300, deadline=None)
@given(
    rows=st.integers(1, 2000),
    tiles=st.integers(1, 4000),
    k=st.integers(1, 1 << 15),
    tile_bytes=st.integers(1, 1 << 20),
    act_bytes=st.integers(1, 1 << 18),
    threads=st.integers(1, 64),
    step=st.sampled_from([2, 4]),
)
def test_chunks_of_a_product_cover_it_once(
    rows: int, tiles: int, k: int, tile_bytes: int, act_bytes: int, threads: int, step: int
) -> None:
    chunks = testing.product_chunks(rows, tiles, k, tile_bytes, act_bytes, threads, step)
    blocks = sorted({(row, count) for row, count, _, _ in chunks})
    ranges = sorted({(begin, end) for _, _, begin, end in chunks})
    assert len(chunks) == len(blocks) * len(ranges)
    next_row = 0
    for row, count in blocks:
        assert row == next_row < rows
        next_row = row + count
    assert next_row >= rows
    next_tile = 0
    for begin, end in ranges:
        assert begin == next_tile < end
        assert begin % step == 0
        next_tile = end
    assert next_tile == tiles


@given(
    rows=st.integers(1, 1 << 16), row_floats=st.integers(1, 1 << 24), threads=st.integers(1, 1024)
)
def test_row_chunks_are_not_empty(rows: int, row_floats: int, threads: int) -> None:
    assert 1 <= testing.rows_per_chunk(rows, row_floats, threads) <= rows
