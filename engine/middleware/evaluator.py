"""The evaluator: plays episodes now and then to see how good the policy is."""

from __future__ import annotations

from engine.context import OnlineContext
from engine.envs.vector import VectorEnv
from engine.middleware.functional.evaluate import evaluate
from engine.middleware.functional.rhythm import Every
from engine.pipeline import serial
from engine.types import Actor, Policy


class Evaluator:
    """Evaluate the policy once for every `every` env steps, over `num_episodes` episodes.

    Reads: ctx.env_step.  Writes: ctx.metrics["eval/..."] when it is time (see `evaluate`).
    """

    def __init__(
        self, policy: Policy, actor: Actor, env: VectorEnv, *, every: int, num_episodes: int = 10
    ) -> None:
        self._due = Every(every)
        self.pipeline = serial(evaluate(policy, actor, env, num_episodes=num_episodes))

    def __call__(self, ctx: OnlineContext) -> None:
        if self._due(ctx.env_step):
            self.pipeline(ctx)
