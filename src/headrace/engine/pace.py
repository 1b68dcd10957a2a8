"""How long a step in which sequences decode may take, and what it is aimed at to keep within that.

A prediction that is right on average is too short every second time, and aiming far below a bound
makes short pieces, which compute less in the same time. So steps are aimed at their bound as long
as few of them take an eighth longer, and else below it, by a margin that is learned: the quotient
measured / predicted that few steps exceed. A machine that others use is slow or fast for many steps
on end, so the prediction is that of the fit times what the last steps took of theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.engine.step_time import StepLoad, StepTime, StepTimeFit

# A step in which sequences decode may take this many times what the decodes take alone, where no
# objective was given, and at least so long: faster than anybody reads, and no slower than decoding
# itself becomes as more sequences join.
DERIVED_MULTIPLE = 2.0
DERIVED_LEAST_S = 0.05
# Prompts get this share of the bound, or of what the decodes take where that is more, so that they
# advance although the decodes alone break the bound. With decodes that take half of it these days,
# the largest margin and this share stay within the bound: (1 / 2 + 1 / 8) * 1.5 < 1.
LEAST_SHARE = 1 / 8
# One step in 50 may take more than so many times its bound.
SHARE_OVER = 0.02
TOLERANCE = 1.125
# How far one step moves the margin: a machine that becomes half as slow again is followed within 15
# steps, and one that is itself again within 700.
GAIN = 0.035
# What a step took of its prediction moves what is expected of the next one by this share of the
# difference. Quotients of steps that follow each other correlate by 0.8 on a shared host; were they
# independent, so quick a mean would widen what is left of them by an eighth.
DRIFT_GAIN = 0.4
LEAST_DRIFT, MAX_DRIFT = 0.7, 1.4
# After so many steps with decodes and prompts the decodes get one alone, or nobody would know any
# more what they take by themselves, and so what prompts may add. As long as fewer than ALONE_KNOWN
# such steps are known, one of which may have been interrupted, they come sooner.
ALONE_EVERY, ALONE_EVERY_AT_FIRST = 32, 4
ALONE_KNOWN = 4
# Below 1 the fit predicts too much. More than the largest is a machine that nobody can foresee.
LEAST_MARGIN, FIRST_MARGIN, MAX_MARGIN = 0.8, 1.15, 1.5


class Margin:
    """An upper quantile of measured / predicted, followed by stochastic approximation.

    A quotient above the value raises it by GAIN * (1 - SHARE_OVER), any other lowers it by
    GAIN * SHARE_OVER. Whatever the quotients are, if none is above MAX_MARGIN, then of the first n
    at most SHARE_OVER * n + (MAX_MARGIN + GAIN - FIRST_MARGIN) / GAIN exceed what the value was
    (Gibbs and Candes, Adaptive Conformal Inference, 2021): each rise needs 49 falls to undo it, and
    the value stays in a bounded range. One step that was interrupted counts no more than another.
    """

    def __init__(self) -> None:
        self.value = FIRST_MARGIN

    def observe(self, quotient: float) -> None:
        """A step with decodes and prompts took `quotient` times what was predicted."""
        moved = self.value + GAIN * ((quotient > self.value) - SHARE_OVER)
        self.value = min(max(moved, LEAST_MARGIN), MAX_MARGIN)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a step in which sequences decode may take, and the fit that says how long it will.

    The bound is `multiple` times what the decodes take alone, and at least `least_s`. Steps take
    `drift` times as long as predicted these days, and up to `margin` times that. `is_alone`:
    prompts get nothing of a step in which sequences decode.
    """

    model: StepTime
    least_s: float
    multiple: float = 0.0
    margin: float = 1.0
    drift: float = 1.0
    is_alone: bool = False

    def bound_s(self, decodes: StepLoad) -> float:
        """Seconds that a step with these decodes may take."""
        return max(self.least_s, self.multiple * self.model.predict(decodes))

    def prompts_s(self, decodes: StepLoad) -> float:
        """Seconds that prompts may be predicted to add to such a step."""
        bound_s, decodes_s = self.bound_s(decodes), self.model.predict(decodes)
        aim_s = bound_s * min(1.0, TOLERANCE / self.margin) / self.drift
        return max(aim_s - decodes_s, LEAST_SHARE * max(bound_s / self.drift, decodes_s))


class Pacer:
    """The fit of an engine, its margin, and its objective as in EngineConfig.itl_target_s."""

    def __init__(self, itl_target_s: float | None) -> None:
        self.fit = StepTimeFit()
        self._margin = Margin()
        self._drift = 1.0
        self._num_mixed = 0  # steps since decodes were alone
        self._target_s = itl_target_s

    @property
    def margin(self) -> float:
        """So many times what is expected of them is what few steps exceed."""
        return self._margin.value

    def observe(self, load: StepLoad, seconds: float) -> None:
        """A step took so long. Times that are not above zero say nothing."""
        model = self.fit.model
        predicted_s = 0.0 if model is None else model.predict(load)
        if 0 < seconds < math.inf and predicted_s > 0:
            quotient = seconds / predicted_s
            if load.decode_rows and load.prompt_rows:
                self._margin.observe(quotient / self._drift)
            # However long an interruption was, it counts as the most that is believed.
            believed = min(max(quotient, LEAST_DRIFT), MAX_DRIFT)
            self._drift += DRIFT_GAIN * (believed - self._drift)
        if load.decode_rows:
            self._num_mixed = self._num_mixed + 1 if load.prompt_rows else 0
        self.fit.observe(load, seconds)

    def pace(self) -> Pace | None:
        """How long the next step may take; None: no objective, or nothing known yet."""
        model = self.fit.model
        if model is None or self._target_s == 0:
            return None
        is_known = self.fit.num_alone >= ALONE_KNOWN
        every = ALONE_EVERY if is_known else ALONE_EVERY_AT_FIRST
        error = (self.margin, self._drift, self._num_mixed >= every)
        if self._target_s is None:
            return Pace(model, DERIVED_LEAST_S, DERIVED_MULTIPLE, *error)
        return Pace(model, self._target_s, 0.0, *error)

    def prompt_s(self, load: StepLoad, seconds: float) -> float:
        """Of the seconds of a step, those that its prompts took: their share by the fit."""
        model = self.fit.model
        if model is None or not load.prompt_rows:
            return 0.0
        decodes = model.predict(StepLoad(load.decode_rows, load.decode_context))
        return seconds * (1 - decodes / max(model.predict(load), 1e-12))
