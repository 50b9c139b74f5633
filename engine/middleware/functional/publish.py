"""Hand new weights to whoever acts with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.context import Middleware
from engine.types import Actor, Policy

if TYPE_CHECKING:
    from engine.bus.bus import Bus


def publish_weights(policy: Policy, actor: Actor, bus: Bus, *, event: str = "learner_model") -> Middleware:
    """Let the actor copy the policy's weights, where they are newer, before the next iteration begins.

    The copying is done by a handler of `event`, that is while nothing runs: no iteration acts
    with half of the weights, whichever way the task runs.  `bus` is the task's, ``task.bus``.
    What is returned holds no actor, so actor and policy may belong to members that run at the same time.

    Writes: ctx.metrics["train/version"]: how many updates made the weights.
    """

    def load() -> None:
        if actor.version != policy.version:
            actor.load(policy)

    bus.on(event, load)

    def publish_weights(ctx: Any) -> None:
        bus.emit(event)
        ctx.metrics["train/version"] = policy.version

    return publish_weights
