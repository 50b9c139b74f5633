"""Proximal policy optimization (Schulman et al. 2017) as a pipeline.

::

    repeat until stop.env_step:
        collect:
            measure how far the run is
            step num_envs environments num_steps times with a copy of the policy
        learn:
            set the learning rate for how far the run was
            estimate advantages
            train: policy.epochs passes of policy.minibatches gradient steps
            ask for the new weights to be copied before the next iteration
            evaluate now and then

With async_mode the two stations run at the same time, one iteration apart: what is learned from
was collected by weights one update old.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from engine.policies.config import PPOConfig
from engine.recipes.config import Count, RunConfig

if TYPE_CHECKING:
    from engine.recipes.parts import Watch
    from engine.runs.folder import Run
    from engine.task import Task


class CollectConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is collected between two updates."""

    num_steps: Annotated[int, Meta(ge=1, description="steps of every environment")] = 128


class TrainConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the updates are computed."""

    threads: Annotated[Count, Meta(description="of torch; one is the quickest for small nets")] = 1


class PPORun(RunConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of PPO."""

    policy: PPOConfig = PPOConfig()
    collect: CollectConfig = CollectConfig()
    train: TrainConfig = TrainConfig()


def ppo(config: PPORun, *, watch: Watch | None = None) -> Task:
    """Return the task that trains PPO as `config` says; run it inside ``with task:``."""
    from engine.context import OnlineContext
    from engine.middleware.collector import Collector
    from engine.middleware.functional.anneal import anneal, measure_progress
    from engine.middleware.functional.estimate import estimate_advantage
    from engine.middleware.functional.publish import publish_weights
    from engine.middleware.functional.staleness import measure_staleness
    from engine.middleware.functional.stop import stop_at_env_step
    from engine.middleware.functional.train import train
    from engine.policies.ppo import PPO
    from engine.recipes.parts import make_evaluator, make_training_env, set_threads, stops
    from engine.seeding import stream
    from engine.task import Task

    set_threads(config.train.threads)
    env = make_training_env(config)
    policy = PPO(
        env.single_observation_space,
        env.single_action_space,
        config.policy,
        device=config.device,
        seed=config.seed,
    )
    actor = policy.actor(stream(config.seed, "collect"))
    evaluator, evaluation_env = make_evaluator(policy, config)

    task = Task(OnlineContext(), async_mode=config.async_mode, max_lag=config.max_lag)
    task.own(env, evaluation_env)
    task.use(
        measure_progress(total_env_steps=config.stop.env_step),
        Collector(actor, env, num_steps=config.collect.num_steps),
        stop_at_env_step(config.stop.env_step),
        name="collect",
    )
    task.use(
        anneal(policy),
        estimate_advantage(policy, discount=config.policy.discount, gae_lambda=config.policy.gae_lambda),
        measure_staleness(policy),
        train(policy),
        publish_weights(policy, actor, task.bus),
        evaluator,
        *stops(config.stop),
        *([] if watch is None else [watch(policy)]),
        name="learn",
    )
    return task


def train(
    env: str | None = None,
    *,
    seed: int | None = None,
    config: PPORun | None = None,
    overrides: Sequence[str] = (),
    run_dir: str | Path | None = None,
    progress: str = "auto",
) -> Run:
    """Train PPO and return the run, whose `path` holds everything it left behind.

    Starts from `config`, or from the shipped configuration of `env`, or from the defaults;
    `seed` replaces its seed; `overrides` are words as on the command line
    (``"policy.learning_rate=1e-3"``).  The first
    Ctrl-C ends it after the iteration under way, everything saved.
    """
    from engine.recipes.experiment import train_with

    return train_with(
        ppo, env, seed=seed, config=config, overrides=overrides, run_dir=run_dir, progress=progress
    )


main = ppo
