"""Find out how good a policy is, apart from its training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from engine.context import Middleware
from engine.envs.vector import Episode, VectorEnv
from engine.errors import UsageError
from engine.types import Actor, Arrays, Policy

MAX_STEPS = 100_000
"""After so many steps an episode that has not ended is cut."""

Tell: TypeAlias = Callable[[int, int, int], None]
"""Takes in, after each step, how many episodes are played, out of how many, and how many steps that took."""


def never() -> bool:
    """Do not give up."""
    return False


def run_episodes(
    act: Callable[[Arrays], Arrays],
    env: VectorEnv,
    num_episodes: int,
    *,
    max_steps: int = MAX_STEPS,
    give_up: Callable[[], bool] = never,
    tell: Tell | None = None,
) -> list[Episode]:
    """Play `num_episodes` new episodes with ``act(obs (B, ...)) -> action (B, ...)`` and return them by id.

    Every environment plays its share and no more: taking the first that end would prefer the
    short ones.  An episode that has not ended after `max_steps` counts as it is then, with ``cut``.
    Ends early with the episodes so far once ``give_up()``.
    """
    share = [len(range(index, num_episodes, env.num_envs)) for index in range(env.num_envs)]
    cut = [False] * env.num_envs  # its last episode still runs on
    episodes: list[Episode] = []
    steps = since_reset = 0
    obs = env.reset()
    while any(share) and not give_up():
        step = env.step(act(obs))
        obs = step.obs
        steps, since_reset = steps + 1, since_reset + 1
        for episode in step.episodes:
            if cut[episode.index]:
                cut[episode.index] = False
            elif share[episode.index]:
                share[episode.index] -= 1
                episodes.append(episode)
        if since_reset >= max_steps:
            for index in range(env.num_envs):
                if share[index] and not cut[index] and env.running(index)[1] >= max_steps:
                    share[index], cut[index] = share[index] - 1, True
                    episodes.append(env.cut(index))
            # Not every vector environment can reset a single row, so those that are cut wait for the others.
            if any(share) and all(cut[index] for index in range(env.num_envs) if share[index]):
                obs = env.reset()
                cut, since_reset = [False] * env.num_envs, 0
        if tell is not None:
            tell(len(episodes), num_episodes, steps)
    return sorted(episodes, key=lambda episode: episode.id)


def evaluate(
    policy: Policy,
    actor: Actor,
    env: VectorEnv,
    *,
    num_episodes: int,
    max_steps: int = MAX_STEPS,
    give_up: Callable[[], bool] = never,
    tell: Tell | None = None,
) -> Middleware:
    """Play episodes with the policy's present weights, deterministically, in environments of its own.

    Touches neither training statistics nor random streams: `actor` is a copy that only takes
    the likeliest action, and `env` has its own seeds.  Episodes of more than `max_steps` are cut.

    Writes: ctx.metrics["eval/return_mean"], ["eval/return_std"], ["eval/length_mean"], ["eval/episodes"]
    and ["eval/cut"], how many of them were cut.  Once ``give_up()``, or when a signal comes or the task
    begins to finish while they are played, it writes ctx.gave_up = True instead.  An evaluation that
    begins when the task is finishing already belongs to an iteration that completes, and is played to its
    end.
    """
    if num_episodes < 1:
        raise UsageError(f"num_episodes is at least 1, not {num_episodes}")
    if max_steps < 1:
        raise UsageError(f"max_steps is at least 1, not {max_steps}")

    def evaluate(ctx: Any) -> None:
        actor.load(policy)
        already = ctx.finishing

        def ends() -> bool:
            return give_up() or ctx.hurried or (not already and ctx.finishing)

        episodes = run_episodes(actor.act, env, num_episodes, max_steps=max_steps, give_up=ends, tell=tell)
        if len(episodes) < num_episodes:
            ctx.gave_up = True
            return
        returns = np.array([episode.return_ for episode in episodes])
        ctx.metrics["eval/return_mean"] = float(returns.mean())
        ctx.metrics["eval/return_std"] = float(returns.std())
        ctx.metrics["eval/length_mean"] = float(np.mean([episode.length for episode in episodes]))
        ctx.metrics["eval/episodes"] = len(episodes)
        ctx.metrics["eval/cut"] = sum(episode.cut for episode in episodes)

    return evaluate


def standing(metrics: Mapping[str, Any], metric: str = "eval/return_mean") -> tuple[float, float] | None:
    """Return what evaluations are compared by, the larger the better; None where there was none.

    Episodes that were cut say little, so the fewer of them come first, and then `metric`.
    """
    value = metrics.get(metric)
    return None if value is None or math.isnan(value) else (-float(metrics.get("eval/cut", 0)), float(value))
