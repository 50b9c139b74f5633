"""Deep Q-learning (Mnih et al. 2015; double, dueling and n-step as configured) as a pipeline.

::

    repeat until stop.env_step:
        collect:
            measure how far the run is, set epsilon
            step every environment collect.num_steps times with a copy of the policy
        learn:
            set the learning rate for how far the run was
            push the transitions into the replay buffer
            train: updates_per_step gradient steps for each env step after warm_up
            ask for the new weights to be copied before the next iteration
            evaluate now and then

With async_mode the two stations run at the same time, one iteration apart: the copy that acts is
one iteration's updates older than in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from engine.policies.config import DQNConfig
from engine.recipes.config import Count, RunConfig

if TYPE_CHECKING:
    from engine.recipes.parts import Watch
    from engine.runs.folder import Run
    from engine.task import Task


class CollectConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is collected between two updates, and how it explores."""

    num_steps: Annotated[int, Meta(ge=1, description="steps of every environment")] = 1
    epsilon_start: Annotated[float, Meta(ge=0, le=1, description="share of random actions at first")] = 1.0
    epsilon_end: Annotated[float, Meta(ge=0, le=1, description="share of random actions later")] = 0.05
    epsilon_steps: Annotated[int, Meta(ge=1, description="env steps on the way there")] = 10_000


class TrainConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is learned from what was collected."""

    batch_size: Annotated[int, Meta(ge=1, description="transitions of one gradient step")] = 64
    warm_up: Annotated[int, Meta(ge=0, description="env steps before the first gradient step")] = 1_000
    updates_per_step: Annotated[float, Meta(gt=0, description="gradient steps for each env step")] = 1.0
    buffer_size: Annotated[int, Meta(ge=1, description="transitions that are remembered")] = 100_000
    threads: Annotated[Count, Meta(description="of torch; one is the quickest for small nets")] = 1


class DQNRun(RunConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of DQN."""

    policy: DQNConfig = DQNConfig()
    collect: CollectConfig = CollectConfig()
    train: TrainConfig = TrainConfig()


def dqn(config: DQNRun, *, watch: Watch | None = None) -> Task:
    """Return the task that trains DQN as `config` says; run it inside ``with task:``."""
    from engine.context import OnlineContext
    from engine.data.n_step import NStep
    from engine.data.replay import ReplayBuffer
    from engine.middleware.collector import Collector
    from engine.middleware.functional.anneal import anneal, measure_progress
    from engine.middleware.functional.explore import explore
    from engine.middleware.functional.publish import publish_weights
    from engine.middleware.functional.push import push, push_n_step
    from engine.middleware.functional.stop import stop_at_env_step
    from engine.middleware.learner import ReplayLearner
    from engine.ops.schedules import Linear
    from engine.policies.dqn import DQN
    from engine.recipes.parts import make_evaluator, make_training_env, set_threads, stops
    from engine.seeding import stream
    from engine.task import Task

    collect, learn = config.collect, config.train
    set_threads(learn.threads)
    env = make_training_env(config)
    policy = DQN(
        env.single_observation_space,
        env.single_action_space,
        config.policy,
        device=config.device,
        seed=config.seed,
    )
    actor = policy.actor(stream(config.seed, "collect"))
    evaluator, evaluation_env = make_evaluator(policy, config)
    buffer = ReplayBuffer(learn.buffer_size, generator=stream(config.seed, "replay"))
    n_step = NStep(config.policy.n_step, config.policy.discount, env.num_envs)

    task = Task(OnlineContext(), async_mode=config.async_mode, max_lag=config.max_lag)
    task.own(env, evaluation_env)
    task.use(
        measure_progress(total_env_steps=config.stop.env_step),
        explore(actor, Linear(collect.epsilon_start, collect.epsilon_end, collect.epsilon_steps)),
        Collector(actor, env, num_steps=collect.num_steps),
        stop_at_env_step(config.stop.env_step),
        name="collect",
    )
    task.use(
        anneal(policy),
        push(buffer) if config.policy.n_step == 1 else push_n_step(buffer, n_step),
        ReplayLearner(
            policy,
            buffer,
            batch_size=learn.batch_size,
            warm_up=learn.warm_up,
            updates_per_step=learn.updates_per_step,
        ),
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
    config: DQNRun | None = None,
    overrides: Sequence[str] = (),
    run_dir: str | Path | None = None,
    progress: str = "auto",
) -> Run:
    """Train DQN and return the run, whose `path` holds everything it left behind.

    Starts from `config`, or from the shipped configuration of `env`, or from the defaults;
    `seed` replaces its seed; `overrides` are words as on the command line
    (``"policy.learning_rate=1e-3"``).  The first
    Ctrl-C ends it after the iteration under way, everything saved.
    """
    from engine.recipes.experiment import train_with

    return train_with(
        dqn, env, seed=seed, config=config, overrides=overrides, run_dir=run_dir, progress=progress
    )


main = dqn
