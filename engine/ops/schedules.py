"""Numbers that change with a counter: pure functions of it, so that nothing restarts on resume.

A schedule is called with a counter (env steps, updates) and returns a float.  The ones here are
frozen, compare equal when they mean the same, and can be pickled::

    epsilon = Linear(1.0, 0.05, 10_000)
    epsilon(0), epsilon(5_000), epsilon(99_999)  # 1.0, 0.525, 0.05
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.errors import UsageError

Schedule: TypeAlias = Callable[[float], float]
"""Maps a counter (from 0) to a value."""


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value at every count."""

    value: float

    def __post_init__(self) -> None:
        _check_finite(self, value=self.value)

    def __call__(self, count: float) -> float:
        return self.value


@dataclass(frozen=True, slots=True)
class Linear:
    """From `start` at 0 to `end` at `steps` in a straight line; `end` from there on."""

    start: float
    end: float
    steps: float

    def __post_init__(self) -> None:
        _check_finite(self, start=self.start, end=self.end, steps=self.steps)
        if self.steps <= 0:
            raise UsageError(f"{self}: steps must be above 0")

    def __call__(self, count: float) -> float:
        if count >= self.steps:
            return self.end
        return self.start + (self.end - self.start) * max(count, 0) / self.steps


@dataclass(frozen=True, slots=True)
class Exponential:
    """From `start` at 0 towards `end`, half of the way that is left in every `half_life` counts.

    value(count) = end + (start - end) * 2^(-count / half_life)
    """

    start: float
    end: float
    half_life: float

    def __post_init__(self) -> None:
        _check_finite(self, start=self.start, end=self.end, half_life=self.half_life)
        if self.half_life <= 0:
            raise UsageError(f"{self}: half_life must be above 0")

    def __call__(self, count: float) -> float:
        return self.end + (self.start - self.end) * math.pow(0.5, max(count, 0) / self.half_life)


@dataclass(frozen=True, slots=True)
class Ladder:
    """A value for each of the `rungs`, numbers out of 0 to `total` - 1: powers of one schedule's value.

    value_i(count) = schedule(count)^(1 + alpha * i / (total - 1))

    So epsilon is spread over many actors, the first of which explores most: Horgan et al., "Distributed
    prioritized experience replay", 2018 (https://arxiv.org/abs/1803.00933), with 0.4 at every count and
    alpha = 7.  A ladder of one rung, or with alpha = 0, has `schedule` on every rung.
    """

    schedule: Schedule
    alpha: float
    rungs: range
    total: int

    def __post_init__(self) -> None:
        _check_finite(self, alpha=self.alpha)
        if self.alpha < 0:
            raise UsageError(f"{self}: alpha must be 0 or above")
        if not self.rungs or min(self.rungs) < 0 or max(self.rungs) >= self.total:
            raise UsageError(f"{self}: rungs must be some of 0 to total - 1")

    def __call__(self, count: float) -> NDArray[np.float64]:
        """Return the values (rungs,) at a count."""
        exponents = 1.0 + self.alpha * np.asarray(self.rungs) / max(self.total - 1, 1)
        values: NDArray[np.float64] = self.schedule(count) ** exponents
        return values


def as_schedule(value: float | Schedule) -> Schedule:
    """Return a schedule as it is, and a number as the constant schedule."""
    return value if callable(value) else Constant(float(value))


def _check_finite(schedule: object, **numbers: float) -> None:
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise UsageError(f"{schedule}: {name} must be a finite number")
