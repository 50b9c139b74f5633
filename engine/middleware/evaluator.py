"""The evaluator: plays episodes now and then to see how good the policy is."""

from __future__ import annotations

from collections.abc import Callable

from engine.context import OnlineContext
from engine.envs.vector import VectorEnv
from engine.middleware.functional.evaluate import MAX_STEPS, Tell, evaluate, never
from engine.middleware.functional.rhythm import Every
from engine.pipeline import serial
from engine.types import Actor, Policy


class Evaluator:
    """Evaluate the policy once for every `every` env steps, over `num_episodes` episodes.

    None begins once ``give_up()`` or after a signal.

    Reads: ctx.env_step.  Writes: ctx.metrics["eval/..."] when it is time, or ctx.gave_up (see `evaluate`).
    """

    def __init__(
        self,
        policy: Policy,
        actor: Actor,
        env: VectorEnv,
        *,
        every: int,
        num_episodes: int = 10,
        max_steps: int = MAX_STEPS,
        give_up: Callable[[], bool] = never,
        tell: Tell | None = None,
    ) -> None:
        self._due = Every(every)
        self._give_up = give_up
        play = evaluate(
            policy, actor, env, num_episodes=num_episodes, max_steps=max_steps, give_up=give_up, tell=tell
        )
        self.pipeline = serial(play)

    def __call__(self, ctx: OnlineContext) -> None:
        if self._due(ctx.env_step) and not self._give_up() and not ctx.hurried:
            self.pipeline(ctx)
