"""Paged attention of native/attention/attention.h in NumPy, rounding for rounding, and test cases
whose memory holds NaN wherever no row may look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace._native import testing
from headrace.backends.layout import KV_DTYPES
from headrace.backends.reference.arena import to_bytes
from tests.support import native_floats
from tests.support.gemm_model import fma
from tests.support.native_floats import Doubles, Floats

BLOCK_LEN = 16
SPLIT_LEN = 256
# A table entry that must not be followed: far outside any arena, so that doing it crashes.
BEHIND_WINDOW = -(1 << 24)

# items, merges, number of partial states, rows of shared items (headrace._native.testing)
Plan = tuple[list[list[int]], list[list[int]], int, list[list[int]]]


@dataclass(frozen=True)
class Shape:
    """Heads, and how they look at keys."""

    num_heads: int = 3
    num_kv_heads: int = 1
    head_dim: int = 32
    window: int = 0
    softcap: float = 0.0
    kv_dtype: str = "fp16"

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def scale(self) -> float:
        return float(np.float32(self.head_dim**-0.5))


@dataclass
class Sequence_:
    """The last `num_rows` positions of a sequence; k and v hold float16 values as float32."""

    q: Floats  # (num_rows, num_heads, head_dim)
    k: Floats  # (length, num_kv_heads, head_dim); int8 is rounded from it
    v: Floats
    first: int  # position of row 0

    @property
    def positions(self) -> list[int]:
        return list(range(self.first, self.first + len(self.q)))


def random_sequence(
    shape: Shape, length: int, num_rows: int, rng: np.random.Generator
) -> Sequence_:
    """A sequence of `length` positions whose last `num_rows` are the step's."""
    kv = (2, length, shape.num_kv_heads, shape.head_dim)
    k, v = rng.standard_normal(kv).astype(np.float16).astype(np.float32)
    q = rng.standard_normal((num_rows, shape.num_heads, shape.head_dim)).astype(np.float32)
    return Sequence_(q * np.float32(2), k, v, length - num_rows)


@dataclass
class Step:
    """Sequences laid out in an arena with shuffled blocks, as one attention operation.

    `shared`: by sequence, how many leading blocks it takes from sequence 0, whose keys and values
    it must have there (see `share_prefix`).
    """

    shape: Shape
    sequences: Sequence[Sequence_]
    rng: np.random.Generator
    shared: Sequence[int] = ()
    kv: bytes = field(init=False)
    tables: list[int] = field(init=False)
    table_starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        lengths = [s.first + len(s.q) for s in self.sequences]
        counts = [-(-length // BLOCK_LEN) for length in lengths]
        ids = iter(self.rng.permutation(sum(counts) + 2).tolist())
        arena = _new_arena(self.shape, sum(counts) + 2)
        self.tables, self.table_starts = [], []
        first_blocks: list[int] = []
        for index, (sequence, count, length) in enumerate(
            zip(self.sequences, counts, lengths, strict=True)
        ):
            low = max(0, sequence.first - self.shape.window + 1) if self.shape.window else 0
            self.table_starts.append(len(self.tables))
            num_shared = self.shared[index] if self.shared else 0
            for b in range(count):
                block = first_blocks[b] if b < num_shared else next(ids)
                if index == 0:
                    first_blocks.append(block)
                seen = range(max(low, b * BLOCK_LEN), min(length, (b + 1) * BLOCK_LEN))
                self.tables.append(block if seen else BEHIND_WINDOW)
                for p in seen:
                    _store(self.shape, arena[block], p % BLOCK_LEN, sequence.k[p], sequence.v[p])
        self.kv = arena.tobytes()

    @property
    def positions(self) -> list[int]:
        return [p for s in self.sequences for p in s.positions]

    @property
    def seq_starts(self) -> list[int]:
        return [0, *np.cumsum([len(s.q) for s in self.sequences]).tolist()]

    def plan(self, num_threads: int) -> Plan:
        return testing.plan_attention(
            self.positions, self.seq_starts, self.tables, self.table_starts, self.shape.window,
            self.shape.num_heads, self.shape.num_kv_heads, num_threads,
        )  # fmt: skip

    def attend(self, isa: str, plan: Plan | None = None, pad: int = 0) -> Floats:
        """(rows, num_heads, head_dim); `pad` floats lie between the rows of q."""
        items, merges, num_partials, shared_rows = plan or self.plan(1)
        rows = len(self.positions)
        q = np.full((rows, self.shape.num_heads * self.shape.head_dim + pad), np.nan, np.float32)
        q[:, : q.shape[1] - pad] = np.concatenate([s.q for s in self.sequences]).reshape(rows, -1)
        out = testing.attend(
            isa, q.tobytes(), self.kv, self.tables, self.table_starts, self.positions,
            self.shape.num_heads, self.shape.num_kv_heads, self.shape.head_dim, self.shape.window,
            self.shape.scale, self.shape.softcap, items, merges, num_partials,
            shared_rows, KV_DTYPES[self.shape.kv_dtype],
        )  # fmt: skip
        return native_floats.floats(out).reshape(rows, self.shape.num_heads, self.shape.head_dim)


def share_prefix(sequences: Sequence[Sequence_], shared: Sequence[int]) -> list[int]:
    """Give every sequence the first `shared` blocks of sequence 0, as many as both have in full
    before the step's rows; returns how many that are."""
    counts = [0]
    for sequence, wanted in zip(sequences[1:], shared[1:], strict=True):
        count = min(wanted, sequence.first // BLOCK_LEN, sequences[0].first // BLOCK_LEN)
        end = count * BLOCK_LEN
        sequence.k[:end], sequence.v[:end] = sequences[0].k[:end], sequences[0].v[:end]
        counts.append(count)
    return counts


def _new_arena(shape: Shape, num_blocks: int) -> npt.NDArray[np.void]:
    """(blocks, kv heads) of K and V, NaN wherever that can be said."""
    halves = shape.kv_dtype == "fp16"
    fields: list[tuple[str, type, tuple[int, ...]]] = [
        ("k", np.float16 if halves else np.int8, (shape.head_dim, BLOCK_LEN)),
        ("v", np.float16 if halves else np.int8, (BLOCK_LEN, shape.head_dim)),
    ]
    if not halves:
        fields += [("ks", np.float32, (BLOCK_LEN,)), ("vs", np.float32, (BLOCK_LEN,))]
    arena = np.zeros((num_blocks, shape.num_kv_heads), np.dtype(fields))
    for name in arena.dtype.names or ():
        arena[name] = -77 if arena[name].dtype == np.int8 else np.nan
    return arena


def _store(shape: Shape, block: npt.NDArray[np.void], slot: int, k: Floats, v: Floats) -> None:
    """k and v (kv heads, head_dim) of one position."""
    if shape.kv_dtype == "fp16":
        block["k"][:, :, slot], block["v"][:, slot] = k, v
    else:
        block["k"][:, :, slot], block["ks"][:, slot] = to_bytes(k)
        block["v"][:, slot], block["vs"][:, slot] = to_bytes(v)


def _codes(shape: Shape, x: Floats) -> tuple[Floats, Floats]:
    """x (length, kv heads, head_dim) as it is multiplied, and its scales (length, kv heads)."""
    if shape.kv_dtype == "fp16":
        return x, np.ones(x.shape[:2], np.float32)
    codes, scales = to_bytes(x)
    return codes.astype(np.float32), scales


def _visible(shape: Shape, sequence: Sequence_, keys: range) -> npt.NDArray[np.bool_]:
    """(rows, keys): which absolute positions of `keys` each row sees."""
    p = np.array(sequence.positions)[:, None]
    j = np.array(keys)[None, :]
    seen = j <= p
    return seen & (j > p - shape.window) if shape.window else seen


def _split_state(
    shape: Shape, sequence: Sequence_, keys: range
) -> tuple[Floats, Floats, Floats, npt.NDArray[np.bool_]]:
    """m, l (rows, heads), acc (rows, heads, head_dim) of one split, and which rows see it."""
    rows = len(sequence.q)
    seen = _visible(shape, sequence, keys)[:, None, :]
    k, ks = (
        np.repeat(x, shape.group, axis=1) for x in _codes(shape, sequence.k[keys.start : keys.stop])
    )
    v, vs = (
        np.repeat(x, shape.group, axis=1) for x in _codes(shape, sequence.v[keys.start : keys.stop])
    )
    k, v = k.transpose(1, 2, 0), v.transpose(1, 0, 2)
    s = np.zeros((rows, shape.num_heads, len(keys)), np.float32)
    for d in range(shape.head_dim):
        s = fma(sequence.q[:, :, d, None], k[None, :, d], s)
    s = s * ks.T * np.float32(shape.scale)
    if shape.softcap:
        cap = np.float32(shape.softcap)
        s = cap * native_floats.tanh("scalar", s / cap)
    m = np.max(np.where(seen, s, -np.inf), axis=-1).astype(np.float32)
    shown = np.where(np.isfinite(m), m, np.float32(0))
    e = np.where(seen, native_floats.exp("scalar", s - shown[..., None]), np.float32(0))
    lanes = np.zeros((*e.shape[:2], SPLIT_LEN), np.float32)
    lanes[..., keys.start % SPLIT_LEN :][..., : len(keys)] = e
    l = native_floats.tree8(  # noqa: E741 - the definition's name
        np.add.accumulate(lanes.reshape(*e.shape[:2], -1, 8), axis=2)[:, :, -1]
    ).astype(np.float32)
    e = e * vs.T
    acc = np.zeros((rows, shape.num_heads, shape.head_dim), np.float32)
    for j in range(len(keys)):
        grown = fma(e[:, :, j, None], v[None, :, j], acc)
        acc = np.where(seen[:, :, j, None], grown, acc)
    sees: npt.NDArray[np.bool_] = np.logical_or.reduce(seen[:, 0], axis=1)
    return m, l, acc, sees


def by_definition(shape: Shape, sequence: Sequence_) -> Floats:
    """(rows, num_heads, head_dim), equal bit for bit to every table."""
    length = sequence.first + len(sequence.q)
    m = np.zeros((len(sequence.q), shape.num_heads), np.float32)
    total, acc = np.zeros_like(m), np.zeros_like(sequence.q)
    for start in range(0, length, SPLIT_LEN):
        keys = range(start, min(length, start + SPLIT_LEN))
        m2, l2, acc2, seen = _split_state(shape, sequence, keys)
        for r in np.flatnonzero(seen):
            if not total[r].any():
                m[r], total[r], acc[r] = m2[r], l2[r], acc2[r]
                continue
            top = np.maximum(m[r], m2[r])
            a = native_floats.exp("scalar", m[r] - top)
            b = native_floats.exp("scalar", m2[r] - top)
            m[r], total[r] = top, fma(l2[r], b, total[r] * a)
            acc[r] = fma(acc2[r], np.broadcast_to(b[:, None], acc2[r].shape), acc[r] * a[:, None])
    return acc * (np.float32(1) / total)[..., None]


def in_float64(shape: Shape, sequence: Sequence_) -> Doubles:
    """Plain softmax attention: no splits, no lanes, no rounding to speak of."""
    length = sequence.first + len(sequence.q)
    k, v = (
        np.repeat(codes.astype(np.float64) * scales[:, :, None], shape.group, axis=1)
        for codes, scales in (_codes(shape, sequence.k), _codes(shape, sequence.v))
    )
    s = np.einsum("rhd,jhd->rhj", sequence.q.astype(np.float64), k) * shape.scale
    if shape.softcap:
        s = shape.softcap * np.tanh(s / shape.softcap)
    s = np.where(_visible(shape, sequence, range(length))[:, None, :], s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    out: Doubles = np.einsum("rhj,jhd->rhd", p, v)
    return out
