"""End the run when enough is enough; each asks the task to finish after the iteration."""

from __future__ import annotations

import math
import time
from typing import Any

from engine.context import Middleware
from engine.errors import UsageError
from engine.types import Clock


def stop_at_env_step(env_step: int) -> Middleware:
    """Finish when `env_step` transitions have been collected.  Reads: ctx.env_step."""
    if env_step < 1:
        raise UsageError(f"env_step is at least 1, not {env_step}")

    def stop_at_env_step(ctx: Any) -> None:
        if ctx.env_step >= env_step:
            ctx.finish(f"{env_step:,} env steps are done")

    return stop_at_env_step


def stop_at_return(return_mean: float, *, metric: str = "eval/return_mean") -> Middleware:
    """Finish when `metric` reaches `return_mean`.  Reads: ctx.metrics[metric], where it is written."""

    def stop_at_return(ctx: Any) -> None:
        value = ctx.metrics.get(metric)
        if value is not None and value >= return_mean:
            ctx.finish(f"{metric} is {value:g}, the goal was {return_mean:g}")

    return stop_at_return


def stop_after_seconds(seconds: float, *, clock: Clock = time.perf_counter) -> Middleware:
    """Finish `seconds` after the first iteration began."""
    if not seconds > 0:
        raise UsageError(f"seconds is above 0, not {seconds}")
    start: float | None = None

    def stop_after_seconds(ctx: Any) -> None:
        nonlocal start
        if start is None:
            start = clock()
        if clock() - start >= seconds:
            ctx.finish(f"{seconds:g} seconds have passed")

    return stop_after_seconds


def stop_without_progress(env_steps: int, *, metric: str = "eval/return_mean") -> Middleware:
    """Finish when `metric` has set no new best for `env_steps` env steps.

    Reads: ctx.env_step, ctx.metrics[metric], where it is written.
    """
    if env_steps < 1:
        raise UsageError(f"env_steps is at least 1, not {env_steps}")
    best, best_at = -math.inf, 0

    def stop_without_progress(ctx: Any) -> None:
        nonlocal best, best_at
        value = ctx.metrics.get(metric)
        if value is not None and value > best:
            best, best_at = value, ctx.env_step
        if ctx.env_step - best_at >= env_steps and best > -math.inf:
            ctx.finish(f"{metric} has not passed {best:g} for {ctx.env_step - best_at:,} env steps")

    return stop_without_progress
