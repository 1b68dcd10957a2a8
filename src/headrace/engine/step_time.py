"""How long a step will take: fitted while the engine runs, and asked for the size of chunks.

A step's seconds are taken to be linear in five features (`StepLoad`), with coefficients that are
not negative: base + decode rows + what they attend to + prompt rows + what those attend to. The fit
is weighted by 1 / seconds^2, so that it is relative errors that count: a step that was interrupted,
however long, weighs next to nothing, and short steps count as much as long ones.

What decodes take is fitted to the steps in which they were alone, and what prompts add to what is
left of the others. Together they could not be told apart: pieces of prompts are cut so that a step
takes what it may, so whatever grows while a prompt is computed would seem to cost the time that the
pieces fill. It has to be seen now and then, so the scheduler leaves out prompts at times (pace).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NUM_FEATURES = 5
_DECODES, _PROMPTS = range(3), range(3, NUM_FEATURES)  # the features of
_DECODE_ROW, _DECODE_CONTEXT, _PROMPT_ROW = 1, 2, 3
# Steps are forgotten with this factor for each later one of their kind, so that the fit follows a
# machine that others use, too. Decode steps come by the hundred, prompts are rarer. Steps with both
# fade what is known of decodes alone, too: the machine may have changed meanwhile.
_KEEP_DECODE = 0.995
_KEEP_PROMPT = 0.98
# The coefficients are solved for anew after so much news, at first more often. Steps with prompts
# weigh more: they are few, and only they ask how long a step may take. So do steps that were
# foreseen badly: what the coefficients say is out of date.
_REFIT_NEWS = 256
_PROMPT_NEWS = 16
_SURPRISE_NEWS = 64
_SURPRISE = 0.1
_ERROR_KEEP = 0.95
# Features that say the same (all steps so far had one shape) are told apart by a ridge: too small
# to move a coefficient that the steps do determine. Contexts that hardly differ say nothing
# certain: then it is the rows that cost.
_RIDGE = 1e-6
_CONTEXT_RIDGE = 1e-3


@dataclass(slots=True)
class StepLoad:
    """What a step runs. Decode rows are those of sequences that run one row; `*_context` counts the
    positions that the rows attend to, summed over the rows."""

    decode_rows: int = 0
    decode_context: int = 0
    prompt_rows: int = 0
    prompt_context: int = 0

    def add(self, start: int, num_rows: int, times: int = 1) -> None:
        """Rows of one sequence at positions start .. start + num_rows - 1; -1 times undoes it."""
        if num_rows == 1:
            self.decode_rows += times
            self.decode_context += times * (start + 1)
        else:
            self.prompt_rows += times * num_rows
            self.prompt_context += times * attended(start, num_rows)


def attended(start: int, num_rows: int) -> int:
    """Positions that rows at start .. start + num_rows - 1 attend to, summed over the rows."""
    return num_rows * start + num_rows * (num_rows + 1) // 2


@dataclass(frozen=True, slots=True)
class StepTime:
    """Coefficients in seconds, in the order of the features."""

    base: float
    decode_row: float
    decode_context: float
    prompt_row: float
    prompt_context: float

    def predict(self, load: StepLoad) -> float:
        """Seconds of a step."""
        return (
            self.base
            + self.decode_row * load.decode_rows
            + self.decode_context * load.decode_context
            + self.prompt_row * load.prompt_rows
            + self.prompt_context * load.prompt_context
        )

    def rows_s(self, start: int, num_rows: int) -> float:
        """Seconds that rows of one sequence add to a step; one row alone is like a decode."""
        if num_rows == 1:
            return self.decode_row + self.decode_context * (start + 1)
        return self.chunk_s(start, num_rows)

    def chunk_s(self, start: int, num_rows: int) -> float:
        """Seconds that a chunk adds to a step."""
        return self.prompt_row * num_rows + self.prompt_context * attended(start, num_rows)

    def rows_within(self, seconds: float, start: int, most: int) -> int:
        """Rows of a prompt from position `start` that add at most `seconds` to a step, at most
        `most`: the root of prompt_row n + prompt_context (n start + n (n + 1) / 2) = seconds."""
        if seconds <= 0:
            return 0
        square = self.prompt_context / 2
        linear = self.prompt_row + self.prompt_context * (start + 0.5)
        # The form without cancellation: 2 c / (b + sqrt(b^2 + 4 a c)); it also covers a = 0.
        divisor = linear + math.sqrt(linear * linear + 4 * square * seconds)
        if divisor == 0 or 2 * seconds >= most * divisor:
            return most
        return int(2 * seconds / divisor)


class StepTimeFit:
    """Fits a StepTime to the steps it is shown: O(1) for each, solved again now and then."""

    def __init__(self) -> None:
        # Normal equations (upper triangle and right side) of decode steps and of those with prompts
        # apart: hours of decoding must not make it forget what a prompt costs.
        self._decode = _Moments()
        self._prompt = _Moments()
        self._num_steps = 0
        self._news = 0
        self._error: float | None = None
        self._model: StepTime | None = None

    @property
    def model(self) -> StepTime | None:
        """The present fit; None before the first step."""
        return self._model

    @property
    def error(self) -> float:
        """Recent mean of |predicted - measured| / measured, at most 1; 0 before there was a
        prediction."""
        return self._error or 0.0

    @property
    def num_alone(self) -> float:
        """Steps of decodes alone that the fit rests on, older ones counting less."""
        return self._decode.weight

    def observe(self, load: StepLoad, seconds: float) -> None:
        """A step took so long. Times that are not above zero say nothing."""
        if not seconds > 0 or math.isinf(seconds):
            return
        if self._model is not None:
            error = min(1.0, abs(self._model.predict(load) / seconds - 1))
            before = error if self._error is None else self._error
            self._error = _ERROR_KEEP * before + (1 - _ERROR_KEEP) * error
            self._news += _SURPRISE_NEWS * (error > _SURPRISE)
        if load.prompt_rows:
            self._prompt.add(load, seconds, _KEEP_PROMPT)
            if load.decode_rows:
                self._decode.fade(_KEEP_DECODE)
            self._news += _PROMPT_NEWS
        else:
            self._decode.add(load, seconds, _KEEP_DECODE)
            self._news += 1
        self._num_steps += 1
        if self._news >= min(self._num_steps, _REFIT_NEWS):
            self._news = 0
            self._model = self._solve()

    def _solve(self) -> StepTime:
        prompt, decode = self._prompt, self._decode
        if decode.matrix[0][0] == 0:  # decodes were never alone
            return StepTime(*prompt.solution(range(NUM_FEATURES)))
        coefficients = decode.solution(_DECODES)
        coefficients += prompt.solution(_PROMPTS, coefficients)
        if prompt.matrix[_PROMPT_ROW][_PROMPT_ROW] == 0:
            # Nothing is known of prompts: a row takes as long as one of a decode and its share of
            # all that a step takes beside. Prompts are cheaper, so the first chunk is short.
            coefficients[_PROMPT_ROW] = decode.per_row_s
        return StepTime(*coefficients)


class _Moments:
    """Exponentially weighted sums of x x^T and x of x = features / seconds (the target is 1)."""

    def __init__(self) -> None:
        self.matrix = [[0.0] * NUM_FEATURES for _ in range(NUM_FEATURES)]
        self.right = [0.0] * NUM_FEATURES
        self.weight = 0.0

    @property
    def per_row_s(self) -> float:
        """Seconds of a step for each of its decode rows."""
        return self.right[_DECODE_ROW] / self.matrix[_DECODE_ROW][_DECODE_ROW]

    def solution(self, wanted: Sequence[int], known: Sequence[float] = ()) -> list[float]:
        """The coefficients of the `wanted` features, given the first ones."""
        matrix, right = self.matrix, self.right
        left = [right[i] - sum(matrix[i][j] * x for j, x in enumerate(known)) for i in wanted]
        ridges = [_CONTEXT_RIDGE if i == _DECODE_CONTEXT else _RIDGE for i in wanted]
        part = [[matrix[i][j] for j in wanted] for i in wanted]
        return nonnegative_solution(part, left, ridges)

    def add(self, load: StepLoad, seconds: float, keep: float) -> None:
        features = (
            1 / seconds,
            load.decode_rows / seconds,
            load.decode_context / seconds,
            load.prompt_rows / seconds,
            load.prompt_context / seconds,
        )
        self.weight = keep * self.weight + 1
        right = self.right
        for i, x in enumerate(features):
            row = self.matrix[i]
            right[i] = keep * right[i] + x
            for j in range(NUM_FEATURES):
                row[j] = keep * row[j] + x * features[j]

    def fade(self, keep: float) -> None:
        """Let all that is known count less."""
        self.weight *= keep
        self.right = [keep * x for x in self.right]
        self.matrix = [[keep * x for x in row] for row in self.matrix]


def nonnegative_solution(
    matrix: Sequence[Sequence[float]], right: Sequence[float], ridges: Sequence[float]
) -> list[float]:
    """The x >= 0 that minimizes x^T A x / 2 - b^T x for a symmetric A >= 0 with small `ridges`.

    Lawson and Hanson's active-set method (Solving Least Squares Problems, 1974, chapter 23) on the
    normal equations, whose variables are scaled to a unit diagonal. Variables that no step used (a
    zero on the diagonal) stay 0.
    """
    size = len(right)
    scale = [1 / math.sqrt(matrix[i][i]) if matrix[i][i] > 0 else 0.0 for i in range(size)]
    a = [[scale[i] * matrix[i][j] * scale[j] for j in range(size)] for i in range(size)]
    for i in range(size):
        a[i][i] += ridges[i]
    b = [scale[i] * right[i] for i in range(size)]
    x = [0.0] * size
    free: list[int] = []
    tolerance = 1e-12 * max(1.0, *map(abs, b))
    for _ in range(3 * size):
        gradient = [b[i] - sum(a[i][j] * x[j] for j in free) for i in range(size)]
        candidates = [i for i in range(size) if i not in free and gradient[i] > tolerance]
        if not candidates:
            break
        free.append(max(candidates, key=gradient.__getitem__))
        x = _step_to_feasible(a, b, x, free)
    return [scale[i] * x[i] for i in range(size)]


def _step_to_feasible(
    a: Sequence[Sequence[float]], b: Sequence[float], x: list[float], free: list[int]
) -> list[float]:
    """Solve for the free variables; those that would fall below 0 leave `free`, one after another,
    each where the way from `x` to the solution meets its bound."""
    while True:
        wanted = _solve([[a[i][j] for j in free] for i in free], [b[i] for i in free])
        if all(value > 0 for value in wanted):
            solved = [0.0] * len(x)
            for i, value in zip(free, wanted, strict=True):
                solved[i] = value
            return solved
        share = min(
            x[i] / (x[i] - value) for i, value in zip(free, wanted, strict=True) if value <= 0
        )
        moved = {i: x[i] + share * (v - x[i]) for i, v in zip(free, wanted, strict=True)}
        lowest = min(moved.values())
        x = [max(0.0, moved.get(i, 0.0)) for i in range(len(x))]
        free[:] = [i for i in free if moved[i] > lowest and moved[i] > 0]
        if not free:
            return [0.0] * len(x)


def _solve(a: list[list[float]], b: list[float]) -> list[float]:
    """Gaussian elimination of a symmetric positive definite system (no pivots needed)."""
    size = len(b)
    for k in range(size):
        for i in range(k + 1, size):
            factor = a[i][k] / a[k][k]
            for j in range(k, size):
                a[i][j] -= factor * a[k][j]
            b[i] -= factor * b[k]
    x = [0.0] * size
    for k in reversed(range(size)):
        x[k] = (b[k] - sum(a[k][j] * x[j] for j in range(k + 1, size))) / a[k][k]
    return x
