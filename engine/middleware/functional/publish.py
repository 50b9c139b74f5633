"""Hand new weights to whoever acts with them."""

from __future__ import annotations

from typing import Any

from engine.context import Middleware
from engine.types import Actor, Policy


def publish_weights(policy: Policy, actor: Actor) -> Middleware:
    """Copy the policy's weights into the actor when they are newer than what it acts with.

    Writes: ctx.metrics["train/version"]: how many updates made the weights.
    """

    def publish_weights(ctx: Any) -> None:
        if actor.version != policy.version:
            actor.load(policy)
        ctx.metrics["train/version"] = policy.version

    return publish_weights
