"""Measuring side by side: every figure is a ratio of things timed in turns in one run.

Absolute times on a shared machine mean little; two sides timed one right after the other see the same
machine.  Each round times every side once, every other round in reverse order; a ratio is taken within a
round, and what is reported is the median over rounds with the lowest and highest.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass
class Sides:
    """What was measured of each side, one number a round."""

    unit: str
    numbers: dict[str, list[float]]

    def ratio(self, side: str, other: str) -> Ratio:
        """The ratio of two sides, taken round by round."""
        return Ratio([a / b for a, b in zip(self.numbers[side], self.numbers[other], strict=True)])


@dataclass
class Ratio:
    """Paired ratios (or differences) of one comparison."""

    rounds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.rounds):.2f} to {max(self.rounds):.2f})"


@dataclass
class Goal:
    """A measured figure beside the limit it must keep; `limit` None is for information."""

    what: str
    figure: Ratio
    limit: float | None = None
    at_least: bool = False
    unit: str = ""

    @property
    def kept(self) -> bool | None:
        if self.limit is None:
            return None
        return self.figure.median >= self.limit if self.at_least else self.figure.median <= self.limit

    @property
    def wanted(self) -> str:
        if self.limit is None:
            return "-"
        return f"{'>=' if self.at_least else '<='} {self.limit:g}{self.unit}"


@dataclass
class Section:
    """One table of the report."""

    title: str
    setting: str
    sides: list[Sides] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Part:
    """What one benchmark adds to a section of several."""

    goals: list[Goal]
    sides: list[Sides] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def take_turns(sides: Mapping[str, Callable[[int], float]], rounds: int, unit: str) -> Sides:
    """Call each side with the number of the round; it returns its own figure (seconds, steps/s, ...)."""
    names = list(sides)
    numbers: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            gc.collect()
            numbers[name].append(sides[name](number))
    return Sides(unit, numbers)


def timed(call: Callable[[], object], times: int, scale: float = 1e6) -> Callable[[int], float]:
    """A side that calls `call` `times` times and gives the mean duration, in microseconds by default."""

    def side(_: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - start) / times * scale

    return side
