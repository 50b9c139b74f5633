"""Tell a policy how far the run is, for schedules that end with it.

Two middleware, because one counts where the data is collected and the other changes the policy.
"""

from __future__ import annotations

from typing import Any, Protocol

from engine.context import Middleware
from engine.errors import UsageError


class Anneals(Protocol):
    """A policy whose step sizes depend on the fraction of the run that is done."""

    def set_progress(self, fraction: float) -> None: ...


def measure_progress(*, total_env_steps: int) -> Middleware:
    """Say which fraction of the run is done: ``env_step / total_env_steps``, at most 1.

    Stands before what collects.  Reads: ctx.env_step.  Writes: ctx.progress.
    """
    if total_env_steps < 1:
        raise UsageError(f"total_env_steps is at least 1, not {total_env_steps}")

    def measure_progress(ctx: Any) -> None:
        ctx.progress = min(1.0, ctx.env_step / total_env_steps)

    return measure_progress


def anneal(policy: Anneals) -> Middleware:
    """Tell the policy the progress that `measure_progress` found.

    Stands before what learns.  Reads: ctx.progress.
    """

    def anneal(ctx: Any) -> None:
        policy.set_progress(ctx.progress)

    return anneal
