"""Act in environments and record what happened: one vector step at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from engine.context import Middleware
from engine.envs.vector import Episode, VectorEnv
from engine.types import Actor


class EpisodeWindow:
    """Means over the last episodes, so that a few odd ones do not hide the trend."""

    def __init__(self, size: int = 100) -> None:
        self.size = size
        self._returns: deque[float] = deque(maxlen=size)
        self._lengths: deque[int] = deque(maxlen=size)
        self._wrapped: deque[float] = deque(maxlen=size)

    def add(
        self, episodes: Iterable[Episode], metrics: dict[str, Any], *, wrapped: Iterable[Episode] = ()
    ) -> None:
        """Take in episodes that ended, and write the means to `metrics` as ``collect/...``.

        `wrapped` are those that ended as wrappers have it, where wrappers change rewards or ends.
        """
        for episode in episodes:
            self._returns.append(episode.return_)
            self._lengths.append(episode.length)
        self._wrapped.extend(episode.return_ for episode in wrapped)
        if self._returns:
            metrics["collect/return_mean"] = sum(self._returns) / len(self._returns)
            metrics["collect/length_mean"] = sum(self._lengths) / len(self._lengths)
        if self._wrapped:
            metrics["collect/wrapped_return_mean"] = sum(self._wrapped) / len(self._wrapped)


def act(actor: Actor, env: VectorEnv) -> Middleware:
    """Choose an action for each environment.

    Writes: ctx.obs (B, ...), ctx.acted: the actor's columns (B, ...), ``action`` among them.
    """

    def act(ctx: Any) -> None:
        ctx.obs = env.obs
        ctx.acted = actor.sample(ctx.obs)

    return act


def step(actor: Actor, env: VectorEnv, record: Callable[..., None]) -> Middleware:
    """Take the chosen actions and `record` the transitions.

    ``record(**columns)`` takes one row (B, ...) of every column: obs, the actor's own, reward,
    terminated, truncated, next_obs, valid (False: no transition) and version (of the weights).

    Reads: ctx.obs, ctx.acted.  Writes: ctx.env_step, ctx.env_episode (ends as the agent meets them),
    ctx.metrics["collect/return_mean"] and ["collect/length_mean"] when an episode ended, and
    ["collect/wrapped_return_mean"] where wrappers change rewards or ends.
    """
    window = EpisodeWindow()
    all_valid = np.ones(env.num_envs, np.bool_)
    versions = np.full(env.num_envs, actor.version, np.int64)

    def step(ctx: Any) -> None:
        acted = ctx.acted
        result = env.step(acted["action"])
        if versions[0] != actor.version:
            versions[:] = actor.version
        valid = result.valid
        record(
            obs=ctx.obs,
            **acted,
            reward=result.reward,
            terminated=result.terminated,
            truncated=result.truncated,
            next_obs=result.next_obs,
            valid=all_valid if valid is None else valid,
            version=versions,
        )
        ctx.env_step += env.num_envs if valid is None else int(np.count_nonzero(valid))
        if result.episodes or result.wrapped:
            ctx.env_episode += len(result.wrapped if env.wrappers else result.episodes)
            window.add(result.episodes, ctx.metrics, wrapped=result.wrapped)

    return step
