"""Tell a policy how far the run is, for schedules that end with it."""

from __future__ import annotations

from typing import Any, Protocol

from engine.context import Middleware
from engine.errors import UsageError


class Anneals(Protocol):
    """A policy whose step sizes depend on the fraction of the run that is done."""

    def set_progress(self, fraction: float) -> None: ...


def anneal(policy: Anneals, *, total_env_steps: int) -> Middleware:
    """Set the policy's progress to ``env_step / total_env_steps``, at most 1.

    Reads: ctx.env_step.
    """
    if total_env_steps < 1:
        raise UsageError(f"total_env_steps is at least 1, not {total_env_steps}")

    def anneal(ctx: Any) -> None:
        policy.set_progress(min(1.0, ctx.env_step / total_env_steps))

    return anneal
