"""How long outputs will get: online estimates of their distribution, given what is known.

An output's length is a survival problem: while it runs, it is only known to be longer than so far.
So what is counted are hazards (Kaplan and Meier, 1958): of the outputs that reached a bin of
lengths, the share that ended in it. An output that is cut off (its limit, a client that left)
counts in the bins that it passed and says nothing about later ones, and one that still runs counts
already, so that the short outputs, which end first, do not make all look short.

Outputs are told apart by features known at admission, in a chain of keys from general to specific;
every key has hazards of its own, which are drawn towards those of the key before it as if it had
seen `PRIOR` more outputs (the mean of a beta posterior). The chain starts at shares of the limit:
with nothing seen all outputs run to `max_tokens`, later to the share of it that outputs ran to.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

# Outputs that a key's parent counts for in its estimate.
PRIOR = 4.0
# A key forgets half of what it saw when it has seen so many ends: it follows changes.
_MAX_ENDS = 512.0
# Keys that are remembered, the last used. A client that never repeats itself cannot use up memory.
MAX_KEYS = 4096
# Tokens of a prompt that are its prefix: the system prompt or the template, mostly.
PREFIX_LEN = 64
_NUM_SHARES = 32
# A running output's distribution is computed anew at this length and at four times the last, to
# learn from outputs that ended meanwhile.
_RENEW_LEN = 64
# Quantiles that are kept to be scored when the length is known.
SCORED = (0.5, 0.9)


def _make_edges() -> list[int]:
    edges = list(range(16, 513, 16))
    while edges[-1] < 1 << 21:
        edges.append(edges[-1] * 9 // 8 // 16 * 16)
    return edges


# Bin b holds the lengths EDGES[b - 1] < length <= EDGES[b]: blocks at first, then an eighth wider
# each.
EDGES = _make_edges()


def bin_of(length: int) -> int:
    """The bin of an output of `length` >= 1 tokens."""
    return bisect_left(EDGES, length)


@dataclass(frozen=True, slots=True)
class Features:
    """What is known of an output before it begins.

    `max_tokens`: it gets no longer. `min_tokens`: nor shorter. `is_fixed`: nothing can end it
    before its limit. `tenant` and `kind` (use of tools, a template or a grammar, and the like) are
    compared, never read. `prefix`: the first PREFIX_LEN tokens, `prompt`: a digest of all of them;
    None where they say nothing.
    """

    max_tokens: int
    prompt_len: int = 1
    min_tokens: int = 0
    is_fixed: bool = False
    tenant: Hashable = None
    kind: Hashable = None
    prefix: Hashable = None
    prompt: Hashable = None


@dataclass(slots=True)
class _Hazards:
    """Of one key: outputs that reached bin b, and those that ended in it."""

    reached: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    num_ends: float = 0.0

    def reach(self, b: int) -> None:
        while len(self.reached) <= b:
            self.reached.append(0.0)
            self.ended.append(0.0)
        self.reached[b] += 1.0

    def end(self, b: int) -> None:
        """An output ended in bin b, which it had reached. If half of what was known was forgotten
        since, it counts as one that reaches it now: no hazard is above 1."""
        self.ended[b] += 1.0
        self.reached[b] = max(self.reached[b], self.ended[b])
        self.num_ends += 1.0
        if self.num_ends >= _MAX_ENDS:
            self.num_ends /= 2
            self.reached = [n / 2 for n in self.reached]
            self.ended = [n / 2 for n in self.ended]

    def refine(self, prior: list[float]) -> None:
        """Move the hazards `prior` of the key before it towards what this one has seen."""
        ended, reached = self.ended, self.reached
        for b in range(min(len(prior), len(reached))):
            prior[b] = (ended[b] + PRIOR * prior[b]) / (reached[b] + PRIOR)


class LengthForecaster:
    """Learns from all outputs of an engine. Deterministic: no clock, no chance."""

    def __init__(self) -> None:
        self._shares = _Hazards()
        self._keys: OrderedDict[Hashable, _Hazards] = OrderedDict()

    def begin(self, features: Features) -> Forecast:
        """The forecast of an output that is about to begin."""
        return Forecast(self, features, self._chain(features))

    def num_keys(self) -> int:
        return len(self._keys)

    def _chain(self, features: Features) -> list[_Hazards]:
        """Hazards of the keys of an output, from general to specific."""
        return [self._find(key) for key in keys_of(features)]

    def _find(self, key: Hashable) -> _Hazards:
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = _Hazards()
            if len(self._keys) > MAX_KEYS:
                self._keys.popitem(last=False)
        else:
            self._keys.move_to_end(key)
        return found

    def survival(self, features: Features, chain: list[_Hazards]) -> list[float]:
        """P(length > EDGES[b]) for the bins below the limit; entry -1 would be 0."""
        if features.is_fixed:
            return [1.0] * bin_of(features.max_tokens)
        hazards = self._share_hazards(features.max_tokens)
        for each in chain:
            each.refine(hazards)
        alive, survival = 1.0, []
        for edge, hazard in zip(EDGES, hazards, strict=False):
            if edge > features.min_tokens:
                alive *= 1.0 - hazard
            survival.append(alive)
        return survival

    def _share_hazards(self, max_tokens: int) -> list[float]:
        """Hazards of the bins that lie below the limit, from those of shares of a limit."""
        shares, alive = self._shares, [1.0]
        for j in range(_NUM_SHARES):
            seen = shares.reached[j] if j < len(shares.reached) else 0.0
            hazard = shares.ended[j] / (seen + 1.0) if seen else 0.0
            alive.append(alive[-1] * (1.0 - hazard))
        hazards, before = [], 1.0
        for b in range(bin_of(max_tokens)):
            place = EDGES[b] * _NUM_SHARES / max_tokens
            j = min(int(place), _NUM_SHARES - 1)
            now = alive[j] + (alive[j + 1] - alive[j]) * (place - j)
            # Never below 0, which rounding would make of a share that nobody ended in.
            hazards.append(max(0.0, 1.0 - now / before) if before > 0.0 else 0.0)
            before = now
        return hazards

    def note(self, chain: list[_Hazards], first: int, last: int) -> None:
        """An output reached the bins first .. last."""
        for each in chain:
            for b in range(first, last + 1):
                each.reach(b)

    def note_share(self, first: int, last: int) -> None:
        """An output reached these 1 / _NUM_SHARES of its limit."""
        for j in range(first, last + 1):
            self._shares.reach(j)

    def note_end(self, chain: list[_Hazards], b: int, share: int) -> None:
        """An output ended by itself in bin b, in this share of its limit."""
        for each in chain:
            each.end(b)
        self._shares.end(share)


def keys_of(features: Features) -> list[Hashable]:
    """The chain of keys, from general to specific. A prompt's length counts by octaves, then by
    their eighths: prompts that one application makes are often equally long, and so are answers."""
    group: tuple[Hashable, ...] = (features.kind, features.max_tokens.bit_length())
    keys: list[Hashable] = ["all", group]
    if features.tenant is not None:
        group = (*group, features.tenant)
        keys.append(group)
    keys.append((group, 1, features.prompt_len.bit_length()))
    keys.append((group, 8, (features.prompt_len**8).bit_length()))
    if features.prefix is not None:
        keys.append((group, "prefix", features.prefix))
    if features.prompt is not None:
        keys.append((group, "prompt", features.prompt))
    return keys


class Forecast:
    """The distribution of one output's length, sharpened as it grows. Owned by its sequence, which
    must tell it of the end."""

    __slots__ = (
        "_chain",
        "_forecaster",
        "_last_bin",
        "_last_share",
        "_renew_at",
        "_survival",
        "features",
        "quantiles",
    )

    def __init__(
        self, forecaster: LengthForecaster, features: Features, chain: list[_Hazards]
    ) -> None:
        self.features = features
        self._forecaster = forecaster
        self._chain = chain
        # The last bin and share of the limit that it is known to have reached.
        self._last_bin = self._last_share = -1
        self._renew_at = _RENEW_LEN
        self._survival = forecaster.survival(features, chain)
        self.quantiles = tuple(self.quantile(q) for q in SCORED)

    def reach(self, length: int) -> None:
        """The output has so many tokens and goes on. Idempotent; O(1) for each bin passed."""
        self._reach(length + 1)
        if length >= self._renew_at:
            self._renew_at = 4 * length
            self.renew()

    def renew(self) -> None:
        """Learn from the outputs that have ended since. What is scored stays what it was."""
        self._survival = self._forecaster.survival(self.features, self._chain)

    def end(self, length: int, *, by_itself: bool) -> None:
        """The output has ended with so many tokens, or was cut off there."""
        if length < 1:
            return
        self._reach(length)
        if by_itself and not self.features.is_fixed:
            self._forecaster.note_end(self._chain, self._last_bin, self._last_share)

    def _reach(self, length: int) -> None:
        if self.features.is_fixed:
            return
        b = bin_of(length)
        share = min(_NUM_SHARES - 1, (length - 1) * _NUM_SHARES // self.features.max_tokens)
        if b > self._last_bin:
            self._forecaster.note(self._chain, self._last_bin + 1, b)
            self._last_bin = b
        if share > self._last_share:
            self._forecaster.note_share(self._last_share + 1, share)
            self._last_share = share

    def alive(self, length: int) -> float:
        """P(the output gets longer than `length`), before it began; linear inside a bin."""
        if length >= self.features.max_tokens:
            return 0.0
        survival = self._survival
        b = bisect_left(EDGES, length)
        if b >= len(survival):
            return survival[-1] if survival else 1.0
        before = survival[b - 1] if b else 1.0
        low = EDGES[b - 1] if b else 0
        inside = before + (survival[b] - before) * (length - low) / (EDGES[b] - low)
        return max(survival[b], inside)

    def alive_after(self, length: int, more: int) -> float:
        """P(it gets longer than length + more), given that it gets longer than `length`."""
        now = self.alive(length)
        return self.alive(length + more) / now if now > 0.0 else 0.0

    def quantile(self, q: float, length: int = 0) -> int:
        """The least total length that it exceeds with a probability of at most 1 - q, given that it
        gets longer than `length`."""
        bound = (1.0 - q) * self.alive(length)
        survival = self._survival
        b = bin_of(length + 1)
        while b < len(survival) and survival[b] > bound:
            b += 1
        if b >= len(survival):
            return self.features.max_tokens
        low = EDGES[b - 1] if b else 0
        before = survival[b - 1] if b else 1.0
        # Of outputs that are as good as impossible, the rounded probabilities may all be 0.
        drop = before - survival[b]
        inside = (before - bound) / drop if drop > 0.0 else 1.0
        return max(length + 1, low + math.ceil(inside * (EDGES[b] - low)))


def pinball_loss(forecast: float, length: float, q: float) -> float:
    """Loss whose mean the true q-quantile minimizes (Koenker and Bassett, 1978), in tokens."""
    return max(q * (length - forecast), (q - 1.0) * (length - forecast))


@dataclass(slots=True)
class ForecastScore:
    """How good the forecasts made at admission were, over outputs whose length became known. Those
    that could not have had another length do not count. Sums: divide by `num_outputs`."""

    num_outputs: int = 0
    num_tokens: int = 0
    losses: list[float] = field(default_factory=lambda: [0.0] * len(SCORED))
    covered: list[int] = field(default_factory=lambda: [0] * len(SCORED))

    def add(self, forecast: Forecast, length: int) -> None:
        """An output ended with so many tokens."""
        if forecast.features.is_fixed or length < 1:
            return
        self.num_outputs += 1
        self.num_tokens += length
        for i, (q, bound) in enumerate(zip(SCORED, forecast.quantiles, strict=True)):
            self.losses[i] += pinball_loss(bound, length, q)
            self.covered[i] += length <= bound
