"""What recipes have in common: environments, stop conditions, threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

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

if TYPE_CHECKING:
    from engine.bus.bus import Bus

Watch: TypeAlias = Callable[[Any], Middleware]
"""Given the policy, returns the middleware that watches over the run; it stands last."""


def part_of(bus: Bus | None) -> int:
    """Return which of several collectors this process is: 1 for ``collector_1``, 0 where it is alone."""
    number = "" if bus is None else bus.peer.rpartition("_")[2]
    return int(number) if number.isdigit() else 0


def make_training_env(config: RunConfig, part: int = 0) -> VectorEnv:
    """Return the environments to collect in; every `part` of a run sees episodes of its own."""
    role = f"collector_{part}" if part else "main"
    return make_env(**msgspec.structs.asdict(config.env), seed=config.seed, role=role)


def make_evaluation_env(config: RunConfig, *, render_mode: str | None = None) -> VectorEnv:
    """Return environments of their own to evaluate in: other seeds, one for each episode up to ten."""
    settings = msgspec.structs.asdict(config.env)
    settings["num_envs"] = 1 if render_mode else min(config.evaluate.episodes, 10)
    return make_env(**settings, seed=config.seed, role="evaluate", render_mode=render_mode)


class Envs(NamedTuple):
    """The environments of a process: to collect in, to evaluate in; None where its roles have none."""

    training: VectorEnv | None
    evaluation: VectorEnv | None

    @property
    def present(self) -> list[VectorEnv]:
        """Those that there are, which the task must own."""
        return [env for env in self if env is not None]

    @property
    def spaces(self) -> tuple[Any, Any]:
        """What a policy sees and does: the observation and the action space."""
        env = self.present[0]
        return env.single_observation_space, env.single_action_space


def make_envs(config: RunConfig, roles: frozenset[str], bus: Bus | None) -> Envs:
    """Return the environments that a process of these roles needs."""
    training = make_training_env(config, part_of(bus)) if "collector" in roles else None
    try:
        return Envs(training, make_evaluation_env(config) if "learner" in roles else None)
    except BaseException:
        if training is not None:
            training.close()
        raise


def make_evaluator(policy: Any, config: RunConfig, env: VectorEnv) -> Evaluator:
    """Return the evaluator of a run, which plays in `env`."""
    actor = policy.actor(stream(config.seed, "evaluate"))
    every, episodes = config.evaluate.every, config.evaluate.episodes
    return Evaluator(policy, actor, env, every=every, num_episodes=episodes)


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
