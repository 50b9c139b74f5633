"""Change how much an actor explores as the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from engine.context import Middleware


class Explores(Protocol):
    """An actor that takes a random action with probability `epsilon`."""

    epsilon: float


def explore(actor: Explores, schedule: Callable[[float], float]) -> Middleware:
    """Set the actor's epsilon to ``schedule(ctx.env_step)``, which no resuming can restart.

    Reads: ctx.env_step.  Writes: ctx.epsilon, ctx.metrics["collect/epsilon"].
    """

    def explore(ctx: Any) -> None:
        ctx.epsilon = actor.epsilon = schedule(ctx.env_step)
        ctx.metrics["collect/epsilon"] = ctx.epsilon

    return explore
