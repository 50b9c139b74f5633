"""Say how the run goes, a line at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.context import Middleware
from engine.middleware.functional.rhythm import Every


class Averages:
    """Means of metrics since they were last taken."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: dict[str, Any]) -> None:
        """Take in the numbers of one iteration; what is no number is passed over."""
        sums, counts = self._sums, self._counts
        for name, value in metrics.items():
            if isinstance(value, (int, float)):
                if name in sums:
                    sums[name] += value
                    counts[name] += 1
                else:
                    sums[name], counts[name] = value, 1

    def take(self) -> dict[str, float]:
        """Return the means and start anew."""
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means


def log(*, every: int = 1, write: Callable[[str], Any] = print) -> Middleware:
    """Write a line every `every` iterations: the counters, and each metric's mean since the last line.

    Stands after the middleware whose metrics it tells.  Reads: ctx.metrics, the counters.
    """
    due, averages = Every(every), Averages()

    def log(ctx: Any) -> None:
        averages.add(ctx.metrics)
        if due(ctx.total_step + 1):
            counters = [f"step {ctx.total_step + 1}"]
            counters += [f"{name} {ctx.get(name):,}" for name in ("env_step", "train_iter") if ctx.get(name)]
            numbers = [f"{name} {value:.4g}" for name, value in averages.take().items()]
            write("  ".join(counters + numbers))

    return log
