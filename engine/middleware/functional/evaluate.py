"""Find out how good a policy is, apart from its training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.context import Middleware
from engine.envs.vector import Episode, VectorEnv
from engine.errors import UsageError
from engine.types import Actor, Arrays, Policy


def run_episodes(
    act: Callable[[Arrays], Arrays],
    env: VectorEnv,
    num_episodes: int,
    *,
    give_up: Callable[[], bool] = lambda: False,
    on_step: Callable[[], None] | None = None,
) -> list[Episode]:
    """Play `num_episodes` new episodes with ``act(obs (B, ...)) -> action (B, ...)`` and return them by id.

    Every environment plays its share and no more: taking the first that end would prefer the
    short ones.  Ends early with the episodes so far once ``give_up()``.
    """
    share = [len(range(index, num_episodes, env.num_envs)) for index in range(env.num_envs)]
    episodes: list[Episode] = []
    obs = env.reset()
    while any(share) and not give_up():
        step = env.step(act(obs))
        obs = step.obs
        if on_step is not None:
            on_step()
        for episode in step.episodes:
            if share[episode.index]:
                share[episode.index] -= 1
                episodes.append(episode)
    return sorted(episodes, key=lambda episode: episode.id)


def evaluate(
    policy: Policy,
    actor: Actor,
    env: VectorEnv,
    *,
    num_episodes: int,
    give_up: Callable[[], bool] = lambda: False,
) -> Middleware:
    """Play episodes with the policy's present weights, deterministically, in environments of its own.

    Touches neither training statistics nor random streams: `actor` is a copy that only takes
    the likeliest action, and `env` has its own seeds.

    Writes: ctx.metrics["eval/return_mean"], ["eval/return_std"], ["eval/length_mean"] and
    ["eval/episodes"]; nothing once ``give_up()``, or when the task begins to finish while they are
    played.  An evaluation that begins later belongs to an iteration that completes, and is played to
    its end.
    """
    if num_episodes < 1:
        raise UsageError(f"num_episodes is at least 1, not {num_episodes}")

    def evaluate(ctx: Any) -> None:
        actor.load(policy)
        already = ctx.finishing

        def ends() -> bool:
            return give_up() or (not already and ctx.finishing)

        episodes = run_episodes(actor.act, env, num_episodes, give_up=ends)
        if len(episodes) == num_episodes:
            returns = np.array([episode.return_ for episode in episodes])
            ctx.metrics["eval/return_mean"] = float(returns.mean())
            ctx.metrics["eval/return_std"] = float(returns.std())
            ctx.metrics["eval/length_mean"] = float(np.mean([episode.length for episode in episodes]))
            ctx.metrics["eval/episodes"] = len(episodes)

    return evaluate
