"""End the run when enough is enough; each asks the task to finish after the iteration."""

from __future__ import annotations

import time
from typing import Any

from engine.context import Middleware
from engine.errors import UsageError
from engine.middleware.functional.evaluate import standing
from engine.types import Clock


def stop_at_env_step(env_step: int | None) -> Middleware:
    """Finish when `env_step` transitions have been collected; None: never.  Reads: ctx.env_step."""
    if env_step is not None and env_step < 1:
        raise UsageError(f"env_step is at least 1, not {env_step}")

    def stop_at_env_step(ctx: Any) -> None:
        if env_step is not None and ctx.env_step >= env_step:
            ctx.finish(f"{env_step:,} env steps are done")

    return stop_at_env_step


def stop_at_return(return_mean: float, *, metric: str = "eval/return_mean") -> Middleware:
    """Finish when `metric` reaches `return_mean`.  Reads: ctx.metrics[metric], where it is written."""

    def stop_at_return(ctx: Any) -> None:
        value = ctx.metrics.get(metric)
        if value is not None and value >= return_mean:
            ctx.finish(f"{metric} is {value:g}, the goal was {return_mean:g}")

    return stop_at_return


class TimeLimit:
    """Wall-clock time, `seconds` from the first iteration on; None: without end.

    What stands at the front of a pipeline begins it, and whatever takes long asks whether it has `passed`.
    """

    transient = True  # a wall clock is no state of the run, and stations may share it: it is set once

    def __init__(self, seconds: float | None, *, clock: Clock = time.perf_counter) -> None:
        if seconds is not None and not seconds > 0:
            raise UsageError(f"seconds is above 0, not {seconds}")
        self.seconds = seconds
        self._clock = clock
        self._start: float | None = None

    def begin(self, ctx: Any = None) -> None:
        """Begin to count, unless that was done; a middleware."""
        if self._start is None:
            self._start = self._clock()

    def passed(self) -> bool:
        """Whether the time is over."""
        if self.seconds is None or self._start is None:
            return False
        return self._clock() - self._start >= self.seconds

    def share(self) -> float:
        """Which fraction of the time is over, at most 1; 0 if it has no end or has not begun."""
        if self.seconds is None or self._start is None:
            return 0.0
        return min(1.0, (self._clock() - self._start) / self.seconds)

    def __str__(self) -> str:
        return f"{self.seconds:g} seconds have passed"


def stop_after_seconds(seconds: float | TimeLimit, *, clock: Clock = time.perf_counter) -> Middleware:
    """Finish `seconds` after the first iteration began, or when a `TimeLimit` has passed."""
    limit = seconds if isinstance(seconds, TimeLimit) else TimeLimit(seconds, clock=clock)

    def stop_after_seconds(ctx: Any) -> None:
        limit.begin()
        if limit.passed():
            ctx.finish(str(limit))

    return stop_after_seconds


def stop_without_progress(env_steps: int, *, metric: str = "eval/return_mean") -> Middleware:
    """Finish when `metric` has set no new best for `env_steps` env steps, compared as `standing` says.

    Reads: ctx.env_step, ctx.metrics[metric] and ["eval/cut"], where they are written.
    """
    if env_steps < 1:
        raise UsageError(f"env_steps is at least 1, not {env_steps}")
    best: tuple[float, float] | None = None
    best_at = 0

    def stop_without_progress(ctx: Any) -> None:
        nonlocal best, best_at
        found = standing(ctx.metrics, metric)
        if found is not None and (best is None or found > best):
            best, best_at = found, ctx.env_step
        if best is not None and ctx.env_step - best_at >= env_steps:
            ctx.finish(f"{metric} has not passed {best[1]:g} for {ctx.env_step - best_at:,} env steps")

    return stop_without_progress
