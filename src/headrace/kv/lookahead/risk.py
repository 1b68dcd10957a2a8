"""The risk that a pool overflows before enough sequences have ended.

Looked at are a few moments ahead, with nobody admitted meanwhile: by then every sequence has either
grown by as many tokens as there were steps, or ended and given everything back. The sum over the
sequences is summarized by three moments of each (they are independent, given their forecasts) and
by what it is if nobody ends. The moments are integers, so that adding a sequence and taking it away
leaves exactly nothing behind, in whatever order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.backends.layout import BLOCK_LEN, KVLayout
from headrace.kv.lookahead.forecast import Forecast
from headrace.kv.tables import blocks_for, blocks_to_hold

# Steps ahead. The sum falls behind the last of them, as nearly everybody has ended.
HORIZONS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
# Probabilities are in units of 1 / _ONE.
_ONE = 1 << 10


@dataclass(frozen=True, slots=True)
class Outlook:
    """What one sequence will hold, per horizon: `alive` blocks if it goes on, and the mean, the
    variance and the third central moment of what it holds then, times _ONE, _ONE^2, _ONE^3.

    `length`: of its output, when this was computed. `most`: blocks it can come to hold, those that
    it shares included.
    """

    length: int
    most: int
    alive: tuple[int, ...]
    mean: tuple[int, ...]
    variance: tuple[int, ...]
    third: tuple[int, ...]


NOTHING = Outlook(0, 0, *[(0,) * len(HORIZONS)] * 4)


class Demand:
    """How many blocks a length takes, over all layer groups of a layout."""

    def __init__(self, layout: KVLayout, chunk: int) -> None:
        """`chunk`: most rows of a sequence in one step."""
        self._layout = layout
        self._chunk = chunk
        self._num_full = sum(group.window == 0 for group in layout.groups)
        self._windows = [blocks_for(g.window + 1) + 1 for g in layout.groups if g.window]

    def decoding(self, length: int) -> int:
        """Blocks that positions 0 .. length - 1 take while they grow one by one."""
        full = (length + BLOCK_LEN - 1) // BLOCK_LEN
        blocks = self._num_full * full
        for most in self._windows:
            blocks += min(full, most)
        return blocks

    def most(self, length: int) -> int:
        """Blocks that they take at most at once, however they are computed."""
        return blocks_to_hold(self._layout, length, self._chunk)


def outlook(
    forecast: Forecast,
    demand: Demand,
    *,
    prompt_len: int,
    length: int,
    num_shared: int = 0,
    num_choices: int = 1,
) -> Outlook:
    """Of a sequence whose output has `length` tokens and goes on. `num_shared` of its blocks it has
    in common with others, who keep them when it ends. `num_choices` > 1: it will become so many,
    which are taken not to share anything."""
    limit = forecast.features.max_tokens
    known = prompt_len + length
    now = forecast.alive(length)
    alive, mean, variance, third = [], [], [], []
    for steps in HORIZONS:
        blocks = demand.decoding(min(known + steps, prompt_len + limit)) - num_shared
        p = 0
        if length + steps < limit and now > 0.0:
            p = round(_ONE * min(1.0, forecast.alive(length + steps) / now))
        spread = p * (_ONE - p) * blocks * blocks
        alive.append(num_choices * blocks if length + steps < limit else 0)
        mean.append(num_choices * p * blocks)
        variance.append(num_choices * spread)
        third.append(num_choices * spread * (_ONE - 2 * p) * blocks)
    most = num_choices * demand.most(prompt_len + limit)
    return Outlook(length, most, tuple(alive), tuple(mean), tuple(variance), tuple(third))


class Sum:
    """The sum of outlooks."""

    __slots__ = ("alive", "mean", "third", "variance")

    def __init__(self, outlooks: Iterable[Outlook] = ()) -> None:
        self.alive = list(NOTHING.alive)
        self.mean = list(NOTHING.mean)
        self.variance = list(NOTHING.variance)
        self.third = list(NOTHING.third)
        for each in outlooks:
            self.add(each)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    def add(self, part: Outlook) -> None:
        self._add(part, 1)

    def remove(self, part: Outlook) -> None:
        """Undo `add`."""
        self._add(part, -1)

    def _add(self, part: Outlook, times: int) -> None:
        for mine, others in (
            (self.alive, part.alive),
            (self.mean, part.mean),
            (self.variance, part.variance),
            (self.third, part.third),
        ):
            for i, value in enumerate(others):
                mine[i] += times * value

    def copy(self) -> Sum:
        twin = Sum()
        twin.alive, twin.mean = list(self.alive), list(self.mean)
        twin.variance, twin.third = list(self.variance), list(self.third)
        return twin

    def overflow(self, more: Outlook, num_blocks: int, steps: float = math.inf) -> float:
        """The largest probability, over the horizons up to `steps` (the first one at least), that
        the sum and `more` hold more than `num_blocks` then."""
        worst = 0.0
        for i, horizon in enumerate(HORIZONS):
            if i and horizon > steps:
                break
            if self.alive[i] + more.alive[i] > num_blocks:
                mean = (self.mean[i] + more.mean[i]) / _ONE
                variance = (self.variance[i] + more.variance[i]) / _ONE**2
                third = (self.third[i] + more.third[i]) / _ONE**3
                worst = max(worst, tail(num_blocks - mean, variance, third))
        return worst


def tail(above: float, variance: float, third: float) -> float:
    """P(X - mean > above) of a sum X with these central moments.

    The normal distribution with the first correction for skewness (Cornish and Fisher, 1937):
    X = mean + sd (Z + (Z^2 - 1) skew / 6), solved for Z. Skewness beyond 1 counts as 1: the series
    is good for moderate ones only. A sum skewed to the left has an upper end: beyond it, 0. For
    dozens of sequences the error is in the third decimal place, for a handful in the first.
    """
    if variance <= 0.0:
        return 0.0 if above >= 0.0 else 1.0
    deviation = math.sqrt(variance)
    a = max(-1.0, min(1.0, third / (variance * deviation))) / 6.0
    w = above / deviation
    if abs(a) < 1e-9:
        z = w
    else:
        square = 1.0 + 4.0 * a * (a + w)
        if square < 0.0:
            return 0.0 if a < 0.0 else 1.0
        z = 2.0 * (a + w) / (1.0 + math.sqrt(square))
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def break_even(base_s: float, prompt_row_s: float, num_beside: int, num_known: int) -> float:
    """Steps that a sequence must run until having admitted it pays even if it is preempted then.

    In every step it carries its share of what a step takes whatever runs, base_s / (n + 1). If it
    is preempted after k steps, its known tokens and k more are computed a second time:
    k base_s / (n + 1) = prompt_row_s (num_known + k). Infinite where rows cost more than that share
    (the machine computes all it can already): then no preemption ever pays.
    """
    gain = base_s / (num_beside + 1) - prompt_row_s
    return prompt_row_s * num_known / gain if gain > 0.0 else math.inf
