"""Sampling in plain NumPy: one row of logits and a spec in, one token and its logprobs out.

Noise comes from Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11),
a function of seed, output position and id: there is no generator state. Scores are float64, so that
a twin with another `log` draws the same id unless two scores agree to about 1e-12.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.backends.base import RowResult, SamplingSpec, WantedRow

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint32]

GREEDY_BELOW = 1e-5
_LOW_HALF = np.uint64(0xFFFFFFFF)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Ten rounds over counters [n, 4] (32-bit words) with one key; returns words [n, 4]."""
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ np.uint64(k0), low1, high0 ^ c3 ^ np.uint64(k1), low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & 0xFFFFFFFF, (k1 + _KEY_STEPS[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def _multiply(
    multiplier: np.uint64, word: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    product = multiplier * word
    return product >> np.uint64(32), product & _LOW_HALF


def gumbel_noise(seed: int, output_pos: int, vocab: int) -> Doubles:
    """G[id] = -log(-log u), u = (k + 1/2) 2^-32, k = word id % 4 of counter (id / 4, pos, 0, 0).

    A choice is told from others by its seed, which is mixed before it gets here.
    """
    counter = np.zeros((-(-vocab // 4), 4), np.uint32)
    counter[:, 0] = np.arange(len(counter))
    counter[:, 1] = output_pos
    words = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)).reshape(-1)[:vocab]
    uniform: Doubles = (words.astype(np.float64) + 0.5) * 2.0**-32
    return -np.log(-np.log(uniform))


def process_logits(logits: Floats, row: WantedRow) -> Floats:
    """Penalties, logit bias, then -inf for banned and masked ids; a new array."""
    out = logits.copy()
    spec = row.spec
    if spec.needs_history and row.history is not None:
        _apply_penalties(out, spec, np.array(row.history, np.int64), row.prompt_len)
    for token, bias in spec.logit_bias:
        out[token] += np.float32(bias)
    out[list(row.banned)] = -np.inf
    if row.mask is not None:
        bits = np.unpackbits(np.frombuffer(row.mask, np.uint8), bitorder="little")
        out[bits[: len(out)] == 0] = -np.inf
    return out


def _apply_penalties(
    logits: Floats, spec: SamplingSpec, history: npt.NDArray[np.int64], prompt_len: int
) -> None:
    seen = np.unique(history)
    repetition = np.float32(spec.repetition_penalty)
    x = logits[seen]
    with np.errstate(over="ignore"):  # an infinite logit fails the row
        logits[seen] = np.where(x > 0, x / repetition, x * repetition)
    ids, counts = np.unique(history[prompt_len:], return_counts=True)
    logits[ids] -= np.float32(spec.frequency_penalty) * counts.astype(np.float32)
    logits[ids] -= np.float32(spec.presence_penalty)


def allowed_ids(processed: Floats, spec: SamplingSpec) -> npt.NDArray[np.int64]:
    """Ids that survive top-k, then top-p, then min-p, each over what the one before left.

    top-k keeps the highest logits, ties to the lowest id. With p = exp(z - max z), z = processed
    logit / T (exp in float32), top-p goes by p descending, then id ascending, and keeps ids until
    the float64 running sum first reaches top_p of the survivors' total, the crossing id included;
    min-p keeps p >= min_p * max p. The best id always stays.
    """
    ids = np.argsort(-processed, kind="stable")
    ids = ids[np.isfinite(processed[ids])]
    if spec.top_k > 0:
        ids = ids[: spec.top_k]
    z = processed[ids].astype(np.float64) / spec.temperature
    with np.errstate(under="ignore", over="ignore"):  # a difference beyond float32 is -inf
        p = np.exp((z - z[0]).astype(np.float32)).astype(np.float64)
    by_weight = np.lexsort((ids, -p))
    ids, p = ids[by_weight], p[by_weight]
    if spec.top_p < 1.0:
        running = np.cumsum(p)
        num_kept = int(np.searchsorted(running, spec.top_p * running[-1])) + 1
        ids, p = ids[:num_kept], p[:num_kept]
    if spec.min_p > 0.0:
        ids = ids[p >= spec.min_p * p[0]]
    return ids.astype(np.int64)


def scores(processed: Floats, row: WantedRow) -> Doubles:
    """`processed / T + noise` for ids that survive the filters, -inf for others."""
    spec = row.spec
    out = np.full(len(processed), -np.inf)
    ids = allowed_ids(processed, spec)
    noise = gumbel_noise(spec.seed, row.output_pos, len(processed))
    out[ids] = processed[ids].astype(np.float64) / spec.temperature + noise[ids]
    return out


def log_sum_exp(logits: npt.NDArray[np.floating[Any]]) -> float:
    """log(sum(exp(logits))) in float64."""
    x = logits.astype(np.float64)
    peak = x.max()
    return float(np.log(np.exp(x - peak).sum()) + peak)


def sample_row(logits: Floats, row: WantedRow) -> RowResult:
    """The result of one wanted row. See backends/base.py for the definitions."""
    token = row.target
    processed = process_logits(logits, row) if row.sample else logits
    if np.isnan(logits).any() or not (np.isfinite(logits.max()) and np.isfinite(processed.max())):
        return RowResult(token, math.nan, [], failed=True)
    if row.sample:
        greedy = row.spec.temperature < GREEDY_BELOW
        token = int(np.argmax(processed if greedy else scores(processed, row)))
    if row.spec.num_top < 0:
        return RowResult(token, math.nan, [])
    normaliser = log_sum_exp(logits)
    best = np.argsort(-logits, kind="stable")[: row.spec.num_top]
    top = [(int(i), float(logits[i]) - normaliser) for i in best]
    return RowResult(token, float(logits[token]) - normaliser, top)
