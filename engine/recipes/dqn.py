"""Deep Q-learning (Mnih et al. 2015; double, dueling and n-step as configured) as a pipeline.

::

    repeat until stop.env_step, or what else is set of stop:
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

Launched in roles, many collectors fill one replay buffer: they join n steps themselves, and act with
the newest weights they have.  These options make it Ape-X (Horgan et al. 2018), and do the same in
one process::

    collect: {epsilon_start: 0.4, epsilon_end: 0.4, epsilon_alpha: 7}  # each environment by its own epsilon
    train: {prioritized: {initial_priority: td_error}}  # who collects finds the first errors
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from engine.policies.config import DQNConfig
from engine.recipes.config import Count, RowsExchangeConfig, RunConfig, decays_of
from engine.recipes.roles import COLLECT_AND_LEARN, COLLECTOR, LEARNER, check_roles

if TYPE_CHECKING:
    from engine.bus.bus import Bus
    from engine.context import Middleware
    from engine.data.replay import ReplayBuffer
    from engine.policies.dqn import DQN
    from engine.recipes.parts import Watch
    from engine.runs.folder import Run
    from engine.task import Task


ROLES = (COLLECTOR, LEARNER)


class CollectConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is collected between two updates, and how it explores."""

    num_steps: Annotated[int, Meta(ge=1, description="steps of every environment")] = 1
    epsilon_start: Annotated[float, Meta(ge=0, le=1, description="share of random actions at first")] = 1.0
    epsilon_end: Annotated[float, Meta(ge=0, le=1, description="share of random actions later")] = 0.05
    epsilon_steps: Annotated[int, Meta(ge=1, description="env steps on the way there")] = 10_000
    epsilon_alpha: Annotated[
        float,
        Meta(
            ge=0,
            description="how much less the later environments explore, the last of them by "
            "epsilon^(1 + this); 0: all alike; Ape-X: 7",
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.epsilon_alpha):
            raise ValueError(f"epsilon_alpha must be a finite number, not {self.epsilon_alpha}")


class PrioritizedConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prioritised replay (Schaul et al. 2016)."""

    alpha: Annotated[
        float, Meta(ge=0, le=1, description="0: drawn uniformly; 1: in proportion to the errors")
    ] = 0.6
    beta_start: Annotated[
        float,
        Meta(ge=0, le=1, description="how far the bias is corrected at first; fully at the end of the run"),
    ] = 0.4
    epsilon: Annotated[
        float, Meta(gt=0, description="added to every error, so that each transition can be drawn")
    ] = 1e-6
    initial_priority: Annotated[
        Literal["largest", "td_error"],
        Meta(
            description="priority of new transitions. largest: the largest so far; td_error: by the error "
            "that the collector finds"
        ),
    ] = "largest"


class TrainConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is learned from what was collected."""

    batch_size: Annotated[int, Meta(ge=1, description="transitions of one gradient step")] = 64
    warm_up: Annotated[int, Meta(ge=0, description="env steps before the first gradient step")] = 1_000
    updates_per_step: Annotated[float, Meta(gt=0, description="gradient steps for each env step")] = 1.0
    buffer_size: Annotated[int, Meta(ge=1, description="transitions that are remembered")] = 100_000
    prioritized: Annotated[
        PrioritizedConfig | None,
        Meta(description="draw transitions with large errors more often; null: uniformly"),
    ] = None
    threads: Annotated[Count, Meta(description="torch threads; one is the quickest for small nets")] = 1


class DQNRun(RunConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of DQN."""

    policy: DQNConfig = DQNConfig()
    collect: CollectConfig = CollectConfig()
    train: TrainConfig = TrainConfig()
    exchange: RowsExchangeConfig = RowsExchangeConfig()

    def decays(self) -> dict[str, str]:
        """Return the settings that change until the end of the run, each with one that does not."""
        ranked, name = self.train.prioritized, "train.prioritized.beta_start"
        if ranked is None or ranked.beta_start == 1:
            return decays_of(self.policy)
        return {**decays_of(self.policy), f"{name}={ranked.beta_start:g}": f"{name}=1"}


def dqn(
    config: DQNRun,
    *,
    watch: Watch | None = None,
    roles: frozenset[str] = COLLECT_AND_LEARN,
    bus: Bus | None = None,
) -> Task:
    """Return the task that trains DQN as `config` says; run it inside ``with task:``.

    With only one of the `roles`, the part of it that this process plays in a run of several, on its `bus`.
    """
    from engine.context import OnlineContext
    from engine.data.n_step import NStep
    from engine.middleware.collector import Collector
    from engine.middleware.functional.anneal import anneal, measure_progress
    from engine.middleware.functional.exchange import follow_model, publish_model, receive_rows, send_rows
    from engine.middleware.functional.explore import explore
    from engine.middleware.functional.priorities import rows_with_errors
    from engine.middleware.functional.publish import publish_weights
    from engine.middleware.functional.push import prepare_rows, push, push_n_step, push_rows, rows_to_push
    from engine.middleware.functional.stop import TimeLimit, stop_at_env_step
    from engine.policies.dqn import DQN
    from engine.recipes.parts import beginning, make_envs, make_evaluator, part_of, set_threads, stops
    from engine.seeding import stream
    from engine.task import Task

    check_roles(dqn, roles)
    together = roles == COLLECT_AND_LEARN
    collect, exchange, total = config.collect, config.exchange, config.stop.env_step
    set_threads(config.train.threads)
    envs = make_envs(config, roles, bus)
    policy = DQN(*envs.spaces, config.policy, device=config.device, seed=config.seed)
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
    lockstep, patience, capacity = exchange.lockstep, exchange.patience, exchange.capacity
    n_step = None
    if config.policy.n_step > 1:
        n_step = NStep(config.policy.n_step, config.policy.discount, config.env.num_envs)
    make_rows, ranked = rows_to_push(n_step), config.train.prioritized
    finds_errors = ranked is not None and ranked.initial_priority == "td_error"
    if finds_errors:
        make_rows = rows_with_errors(actor, make_rows)

    if envs.training is not None:
        task.use(
            *beginning(limit),
            *([] if together else [follow_model(actor, task.bus, lockstep=lockstep, timeout=patience)]),
            measure_progress(total_env_steps=total, limit=limit),
            explore(actor, epsilons(config, bus)),
            Collector(actor, envs.training, num_steps=collect.num_steps),
            *([prepare_rows(make_rows)] if together and finds_errors else []),
            stop_at_env_step(total)
            if together
            else send_rows(
                actor,
                task.bus,
                make_rows,
                least_steps=1 if lockstep else exchange.least_steps,
                capacity=capacity,
                timeout=patience,
            ),
            name="collect",
        )
    if envs.evaluation is not None:
        watched = [] if watch is None else [watch(policy)]
        buffer, learner = _replay(config, policy)
        store = push(buffer) if n_step is None else push_n_step(buffer, n_step)
        if finds_errors or not together:
            store = push_rows(buffer)
        if not together:
            task.use(
                *beginning(limit),
                measure_progress(total_env_steps=total, limit=limit),
                receive_rows(policy, task.bus, lockstep=lockstep, capacity=capacity, timeout=patience),
                stop_at_env_step(total),
                name="receive",
            )
        task.use(
            anneal(policy),
            store,
            *learner,
            publish_weights(policy, actor, task.bus) if together else publish_model(policy, task.bus),
            make_evaluator(policy, config, envs.evaluation, limit, watched),
            *stops(config.stop, limit),
            *watched,
            name="learn",
        )
    return task


def epsilons(config: DQNRun, bus: Bus | None = None) -> Callable[[float], Any]:
    """Return what maps env steps to the share of random actions; evaluation has none.

    It is one for all environments, or with ``epsilon_alpha`` one for each of this process (num_envs,):
    the rungs of a ladder over all environments of the N collectors that the run began with, those of
    collector c being c * num_envs and the following.  An environment is what Ape-X calls an actor, and N is 1
    without roles: so one process of eight environments explores as eight processes of one do.

    A collector that joins later (c >= N) takes the rungs of c modulo N: it adds to the mix of exploration
    that the run has, where rungs of its own beyond the last would all but never explore.
    """
    from engine.ops.schedules import Ladder, Linear
    from engine.recipes.parts import part_of

    collect, num_envs = config.collect, config.env.num_envs
    epsilon = Linear(collect.epsilon_start, collect.epsilon_end, collect.epsilon_steps)
    if not collect.epsilon_alpha:
        return epsilon
    collectors = 1 if bus is None else max(1, bus.crew.get(COLLECTOR.name, 1))
    first = part_of(bus) % collectors * num_envs
    rungs = range(first, first + num_envs)
    return Ladder(epsilon, collect.epsilon_alpha, rungs, collectors * num_envs)


def _replay(config: DQNRun, policy: DQN) -> tuple[ReplayBuffer, list[Middleware]]:
    """Return the buffer, and what learns from it: uniformly or by priority."""
    from engine.data.prioritized import PrioritizedReplay
    from engine.data.replay import ReplayBuffer
    from engine.middleware.functional.priorities import anneal_importance
    from engine.middleware.learner import ReplayLearner
    from engine.middleware.prioritized import PrioritizedLearner
    from engine.ops.schedules import Linear
    from engine.recipes.advice import advise_replay
    from engine.seeding import stream

    learn, draws = config.train, stream(config.seed, "replay")
    size, warm_up, ratio = learn.batch_size, learn.warm_up, learn.updates_per_step
    advise_replay(config, policy.observation_space)
    if learn.prioritized is None:
        buffer = ReplayBuffer(learn.buffer_size, generator=draws)
        return buffer, [
            ReplayLearner(policy, buffer, batch_size=size, warm_up=warm_up, updates_per_step=ratio)
        ]
    alpha, beta, epsilon = learn.prioritized.alpha, learn.prioritized.beta_start, learn.prioritized.epsilon
    ranked = PrioritizedReplay(learn.buffer_size, generator=draws, alpha=alpha, beta=beta, epsilon=epsilon)
    return ranked, [
        anneal_importance(ranked, Linear(beta, 1.0, 1.0)),
        PrioritizedLearner(policy, ranked, batch_size=size, warm_up=warm_up, updates_per_step=ratio),
    ]


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
