"""The collectors: they step environments until there is enough to work on."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.context import OnlineContext
from engine.data.rollout import Rollout
from engine.envs.vector import VectorEnv
from engine.errors import UsageError
from engine.middleware.functional.collect import act, step
from engine.pipeline import serial
from engine.tree import map as tree_map
from engine.types import Actor, Arrays


class Collector:
    """Step the environments `num_steps` times and hand over the trajectory (num_steps, B, ...).

    Episodes run on from one call to the next.  Where no row of it is a transition (all of them are
    the dummy step of NEXT_STEP autoreset) it is dropped and the next one taken.

    Writes: ctx.trajectory: a dict of columns (T, B, ...): obs, action and what else the actor
    records, reward, terminated, truncated, next_obs, valid, version; ctx.env_step,
    ctx.env_episode, ctx.metrics["collect/..."].
    """

    def __init__(self, actor: Actor, env: VectorEnv, *, num_steps: int) -> None:
        self.num_steps = num_steps
        self._rollout = Rollout(num_steps)
        self.pipeline = serial(act(actor, env), step(actor, env, self._rollout.add))

    def __call__(self, ctx: OnlineContext) -> None:
        before = ctx.env_step
        while ctx.env_step == before:  # twice at most: dummy steps are followed by real ones
            for _ in range(self.num_steps):
                self.pipeline(ctx)
            ctx.trajectory = self._rollout.take()


class EpisodeCollector:
    """Step the environments until `num_episodes` episodes have ended, and hand those over whole.

    Steps of running episodes are held for the next call, so that no episode is preferred for
    being short.  Ends early, with the episodes so far, when the task is finishing.

    Writes: ctx.episodes: a list of dicts of columns (T, ...), in order of their ends;
    ctx.env_step, ctx.env_episode, ctx.metrics["collect/..."].
    """

    def __init__(self, actor: Actor, env: VectorEnv, *, num_episodes: int) -> None:
        if num_episodes < 1:
            raise UsageError(f"num_episodes is at least 1, not {num_episodes}")
        self.num_episodes = num_episodes
        self._rows: list[list[dict[str, Arrays]]] = [[] for _ in range(env.num_envs)]
        self._ended: list[dict[str, Arrays]] = []
        self.pipeline = serial(act(actor, env), step(actor, env, self._record))

    def __call__(self, ctx: Any) -> None:
        while len(self._ended) < self.num_episodes and not ctx.finishing:
            self.pipeline(ctx)
        ctx.episodes, self._ended = self._ended[: self.num_episodes], self._ended[self.num_episodes :]

    def _record(self, **columns: Any) -> None:
        for index in np.flatnonzero(columns["valid"]).tolist():
            row = tree_map(lambda column, index=index: np.array(column[index]), columns)
            self._rows[index].append(row)
            if row["terminated"] or row["truncated"]:
                rows, self._rows[index] = self._rows[index], []
                self._ended.append(tree_map(lambda *leaves: np.stack(leaves), rows[0], *rows[1:]))
