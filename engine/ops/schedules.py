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


def as_schedule(value: float | Schedule) -> Schedule:
    """Return a schedule as it is, and a number as the constant schedule."""
    return value if callable(value) else Constant(float(value))


def _check_finite(schedule: object, **numbers: float) -> None:
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise UsageError(f"{schedule}: {name} must be a finite number")
