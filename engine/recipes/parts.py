"""What recipes have in common: environments, stop conditions, threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from engine.context import Middleware
from engine.envs.make import make_env
from engine.envs.vector import VectorEnv
from engine.middleware.evaluator import Evaluator
from engine.middleware.functional.stop import (
    TimeLimit,
    stop_after_seconds,
    stop_at_return,
    stop_without_progress,
)
from engine.middleware.recorder import Recorder
from engine.recipes.config import RunConfig, StopConfig
from engine.seeding import stream

if TYPE_CHECKING:
    from engine.bus.bus import Bus

log = logging.getLogger(__name__)

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
    if training is not None and bus is not None:
        training.count_into(bus.meter.steps())
    try:
        return Envs(training, make_evaluation_env(config) if "learner" in roles else None)
    except BaseException:
        if training is not None:
            training.close()
        raise


def make_evaluator(
    policy: Any, config: RunConfig, env: VectorEnv, limit: TimeLimit, watched: Sequence[Middleware] = ()
) -> Evaluator:
    """Return the evaluator of a run, which plays in `env` until `limit`; a recorder in `watched` shows it."""
    if not env.time_limited:
        log.warning(
            "%s has no time limit, so an episode may never end; evaluations cut theirs after "
            "evaluate.max_steps=%s (env.wrappers=[{wrapper: TimeLimit, max_episode_steps: N}] sets one)",
            env.name,
            f"{config.evaluate.max_steps:_}",
        )
    return Evaluator(
        policy,
        policy.actor(stream(config.seed, "evaluate")),
        env,
        every=config.evaluate.every,
        num_episodes=config.evaluate.episodes,
        max_steps=config.evaluate.max_steps,
        give_up=limit.passed,
        tell=next((one.tell for one in watched if isinstance(one, Recorder)), None),
    )


def beginning(limit: TimeLimit) -> list[Middleware]:
    """Return what stands first in a pipeline, so that time is counted from the first iteration on."""
    return [] if limit.seconds is None else [limit.begin]


def stops(config: StopConfig, limit: TimeLimit) -> list[Middleware]:
    """Return the stop conditions that are set, to stand behind the evaluator, whose metrics they read.

    ``env_step`` is not among them: `stop_at_env_step` stands behind the collector, which else runs ahead.
    """
    conditions: list[Middleware] = []
    if config.return_mean is not None:
        conditions.append(stop_at_return(config.return_mean))
    if limit.seconds is not None:
        conditions.append(stop_after_seconds(limit))
    if config.no_progress is not None:
        conditions.append(stop_without_progress(config.no_progress))
    return conditions


def set_threads(threads: int) -> None:
    """Let torch compute with `threads` threads.

    One is the quickest for small nets: two threads on two busy cores are many times slower.
    """
    import torch

    torch.set_num_threads(threads)
