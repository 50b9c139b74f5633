"""Tell a policy how far the run is, for schedules that end with it.

Two middleware, because one counts where the data is collected and the other changes the policy.
"""

from __future__ import annotations

from typing import Any, Protocol

from engine.context import Middleware
from engine.errors import UsageError
from engine.middleware.functional.stop import TimeLimit


class Anneals(Protocol):
    """A policy whose step sizes depend on the fraction of the run that is done."""

    def set_progress(self, fraction: float) -> None: ...


def measure_progress(*, total_env_steps: int | None, limit: TimeLimit | None = None) -> Middleware:
    """Say which fraction of the run is done: ``env_step / total_env_steps``, at most 1.

    A run without `total_env_steps` (None) is as far as its time is: what follows from it does not repeat
    exactly.  Without a `limit` too, its end is not known, and nothing of it counts as done: 0.

    Stands before what collects.  Reads: ctx.env_step.  Writes: ctx.progress.
    """
    if total_env_steps is not None and total_env_steps < 1:
        raise UsageError(f"total_env_steps is at least 1, not {total_env_steps}")
    timed = TimeLimit(None) if limit is None else limit

    def measure_progress(ctx: Any) -> None:
        if total_env_steps is None:
            ctx.progress = timed.share()
        else:
            ctx.progress = min(1.0, ctx.env_step / total_env_steps)

    return measure_progress


def anneal(policy: Anneals) -> Middleware:
    """Tell the policy the progress that `measure_progress` found.

    Stands before what learns.  Reads: ctx.progress.
    """

    def anneal(ctx: Any) -> None:
        policy.set_progress(ctx.progress)

    return anneal
