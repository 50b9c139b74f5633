"""What recipes have in common: environments, stop conditions, threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from engine.context import Middleware
from engine.envs.make import make_env
from engine.envs.vector import VectorEnv
from engine.middleware.evaluator import Evaluator
from engine.middleware.functional.stop import (
    stop_after_seconds,
    stop_at_return,
    stop_without_progress,
)
from engine.recipes.config import RunConfig, StopConfig
from engine.seeding import stream

Watch: TypeAlias = Callable[[Any], Middleware]
"""Given the policy, returns the middleware that watches over the run; it stands last."""


def make_training_env(config: RunConfig) -> VectorEnv:
    """Return the environments to collect in."""
    return make_env(**msgspec.structs.asdict(config.env), seed=config.seed)


def make_evaluation_env(config: RunConfig, *, render_mode: str | None = None) -> VectorEnv:
    """Return environments of their own to evaluate in: other seeds, one for each episode up to ten."""
    settings = msgspec.structs.asdict(config.env)
    settings["num_envs"] = 1 if render_mode else min(config.evaluate.episodes, 10)
    return make_env(**settings, seed=config.seed, role="evaluate", render_mode=render_mode)


def make_evaluator(policy: Any, config: RunConfig) -> tuple[Evaluator, VectorEnv]:
    """Return the evaluator of a run, and the environments that it plays in, which the task must own."""
    env = make_evaluation_env(config)
    actor = policy.actor(stream(config.seed, "evaluate"))
    every, episodes = config.evaluate.every, config.evaluate.episodes
    return Evaluator(policy, actor, env, every=every, num_episodes=episodes), env


def stops(config: StopConfig) -> list[Middleware]:
    """Return the stop conditions that are set, to stand behind the evaluator, whose metrics they read.

    ``env_step`` is not among them: `stop_at_env_step` stands behind the collector, which else runs ahead.
    """
    conditions: list[Middleware] = []
    if config.return_mean is not None:
        conditions.append(stop_at_return(config.return_mean))
    if config.seconds is not None:
        conditions.append(stop_after_seconds(config.seconds))
    if config.no_progress is not None:
        conditions.append(stop_without_progress(config.no_progress))
    return conditions


def set_threads(threads: int) -> None:
    """Let torch compute with `threads` threads.

    One is the quickest for small nets: two threads on two busy cores are many times slower.
    """
    import torch

    torch.set_num_threads(threads)
