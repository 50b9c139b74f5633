"""Change how much an actor explores as the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from engine.context import Middleware


class Explores(Protocol):
    """An actor that takes a random action with probability `epsilon`, one for all environments or (B,)."""

    epsilon: Any


def explore(actor: Explores, schedule: Callable[[float], Any]) -> Middleware:
    """Set the actor's epsilon to ``schedule(ctx.env_step)``, which no resuming can restart.

    The schedule gives a number, or one for each environment (B,), as `ops.schedules.Ladder` does.

    Reads: ctx.env_step.  Writes: ctx.epsilon and ctx.metrics["collect/epsilon"], the mean over environments.
    """

    def explore(ctx: Any) -> None:
        actor.epsilon = epsilon = schedule(ctx.env_step)
        ctx.epsilon = float(epsilon.mean()) if isinstance(epsilon, np.ndarray) else epsilon
        ctx.metrics["collect/epsilon"] = ctx.epsilon

    return explore
