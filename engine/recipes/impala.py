"""IMPALA (Espeholt et al. 2018) as a pipeline.

::

    repeat until stop.env_step, or what else is set of stop:
        collect:
            measure how far the run is
            step num_envs environments num_steps times with a copy of the policy
        learn:
            set the learning rate for how far the run was
            train: one gradient step on the trajectories, with targets and advantages by V-trace
            ask for the new weights to be copied before the next iteration
            evaluate now and then

With async_mode the two stations run at the same time, one iteration apart: what is learned from
was collected by weights one update old, for which V-trace corrects.

Launched in roles, collectors send their trajectories to the learner and go on with the newest weights
they have; V-trace corrects for their age.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from engine.policies.config import IMPALAConfig
from engine.recipes.config import Count, LooseExchangeConfig, RunConfig, decays_of
from engine.recipes.roles import COLLECT_AND_LEARN, COLLECTOR, LEARNER, check_roles

if TYPE_CHECKING:
    from engine.bus.bus import Bus
    from engine.recipes.parts import Watch
    from engine.runs.folder import Run
    from engine.task import Task


ROLES = (COLLECTOR, LEARNER)


class CollectConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is collected between two updates."""

    num_steps: Annotated[int, Meta(ge=1, description="steps of every environment")] = 20


class TrainConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the updates are computed."""

    threads: Annotated[Count, Meta(description="torch threads; one is the quickest for small nets")] = 1


class IMPALARun(RunConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of IMPALA."""

    policy: IMPALAConfig = IMPALAConfig()
    collect: CollectConfig = CollectConfig()
    train: TrainConfig = TrainConfig()
    exchange: LooseExchangeConfig = LooseExchangeConfig()

    def decays(self) -> dict[str, str]:
        """Return the settings that change until the end of the run, each with one that does not."""
        return decays_of(self.policy)


def impala(
    config: IMPALARun,
    *,
    watch: Watch | None = None,
    roles: frozenset[str] = COLLECT_AND_LEARN,
    bus: Bus | None = None,
) -> Task:
    """Return the task that trains IMPALA as `config` says; run it inside ``with task:``.

    With only one of the `roles`, the part of it that this process plays in a run of several, on its `bus`.
    """
    from engine.context import OnlineContext
    from engine.middleware.collector import Collector
    from engine.middleware.functional.anneal import anneal, measure_progress
    from engine.middleware.functional.batch import batch_trajectory
    from engine.middleware.functional.exchange import (
        follow_model,
        publish_model,
        receive_trajectories,
        send_trajectories,
    )
    from engine.middleware.functional.publish import publish_weights
    from engine.middleware.functional.staleness import measure_staleness
    from engine.middleware.functional.stop import TimeLimit, stop_at_env_step
    from engine.middleware.functional.train import train
    from engine.policies.impala import IMPALA
    from engine.recipes.parts import beginning, make_envs, make_evaluator, part_of, set_threads, stops
    from engine.seeding import stream
    from engine.task import Task

    check_roles(impala, roles)
    together = roles == COLLECT_AND_LEARN
    set_threads(config.train.threads)
    envs = make_envs(config, roles, bus)
    policy = IMPALA(*envs.spaces, config.policy, device=config.device, seed=config.seed)
    actor = policy.actor(stream(config.seed, "collect", part_of(bus)))
    task = Task(
        OnlineContext(),
        role="main" if together else "+".join(sorted(roles)),
        bus=bus,
        async_mode=config.async_mode,
        max_lag=config.max_lag,
    )
    task.own(*envs.present)
    limit = TimeLimit(config.stop.seconds)
    total, lockstep = config.stop.env_step, config.exchange.lockstep
    patience, capacity = config.exchange.patience, config.exchange.capacity

    if envs.training is not None:
        task.use(
            *beginning(limit),
            *([] if together else [follow_model(actor, task.bus, lockstep=lockstep, timeout=patience)]),
            measure_progress(total_env_steps=total, limit=limit),
            Collector(actor, envs.training, num_steps=config.collect.num_steps),
            stop_at_env_step(total)
            if together
            else send_trajectories(actor, task.bus, capacity=capacity, timeout=patience),
            name="collect",
        )
    if envs.evaluation is not None:
        watched = [] if watch is None else [watch(policy)]
        if not together:
            task.use(
                *beginning(limit),
                measure_progress(total_env_steps=total, limit=limit),
                receive_trajectories(
                    policy, task.bus, lockstep=lockstep, capacity=capacity, timeout=patience
                ),
                stop_at_env_step(total),
                name="receive",
            )
        task.use(
            anneal(policy),
            batch_trajectory(),
            measure_staleness(policy),
            train(policy),
            publish_weights(policy, actor, task.bus) if together else publish_model(policy, task.bus),
            make_evaluator(policy, config, envs.evaluation, limit, watched),
            *stops(config.stop, limit),
            *watched,
            name="learn",
        )
    return task


def train(
    env: str | None = None,
    *,
    seed: int | None = None,
    config: IMPALARun | None = None,
    overrides: Sequence[str] = (),
    run_dir: str | Path | None = None,
    progress: str = "auto",
) -> Run:
    """Train IMPALA and return the run, whose `path` holds everything it left behind.

    Starts from `config`, or from the shipped configuration of `env`, or from the defaults;
    `seed` replaces its seed; `overrides` are words as on the command line
    (``"policy.learning_rate=1e-3"``).  The first
    Ctrl-C ends it after the iteration under way, everything saved.
    """
    from engine.recipes.experiment import train_with

    return train_with(
        impala, env, seed=seed, config=config, overrides=overrides, run_dir=run_dir, progress=progress
    )


main = impala
