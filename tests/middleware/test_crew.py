"""Collectors, learners and the evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from engine import OnlineContext, Task
from engine.data.prioritized import PrioritizedReplay
from engine.data.replay import ReplayBuffer
from engine.middleware.collector import Collector, EpisodeCollector
from engine.middleware.evaluator import Evaluator
from engine.middleware.functional.push import push
from engine.middleware.learner import ReplayLearner
from engine.middleware.prioritized import PrioritizedLearner
from engine.testing import CountingActor, CountingPolicy, Script, scripted_env

EPISODES = [Script([1.0, 2.0]), Script([3.0, 4.0, 5.0], "truncated"), Script([6.0], "both")]


def collect(autoreset: AutoresetMode, num_steps: int = 24) -> tuple[dict[str, Any], OnlineContext]:
    ctx = OnlineContext()
    Collector(CountingActor(), scripted_env(EPISODES, autoreset=autoreset), num_steps=num_steps)(ctx)
    return ctx.trajectory, ctx


@pytest.mark.parametrize("autoreset", list(AutoresetMode))
def test_the_collector_counts_and_stores_true_transitions_in_every_autoreset_mode(
    autoreset: AutoresetMode,
) -> None:
    trajectory, ctx = collect(autoreset)
    valid = trajectory["valid"]
    assert ctx.env_step == valid.sum()
    # By hand: each episode's transitions, one after the other, as (episode, t) -> (episode, t + 1).
    expected = [
        (episode, t, reward, t == len(script.rewards) - 1 and script.end != "truncated")
        for episode, script in enumerate(EPISODES * 8)
        for t, reward in enumerate(script.rewards)
    ][: ctx.env_step]
    columns = (trajectory[name][valid] for name in ("obs", "reward", "terminated"))
    rows = zip(*columns, strict=True)
    got = [(int(obs[0]), int(obs[1]), float(reward), bool(end)) for obs, reward, end in rows]
    assert got == expected
    np.testing.assert_array_equal(
        trajectory["next_obs"][valid], trajectory["obs"][valid] + np.array([0, 1], np.float32)
    )
    assert not (trajectory["terminated"] & trajectory["truncated"]).any()


def test_the_collector_reports_means_of_ended_episodes() -> None:
    _, ctx = collect(AutoresetMode.SAME_STEP, num_steps=5)
    assert ctx.env_episode == 2
    assert ctx.metrics == {"collect/return_mean": (3.0 + 12.0) / 2, "collect/length_mean": 2.5}


def test_trajectories_handed_over_are_not_written_again() -> None:
    collector = Collector(CountingActor(), scripted_env(EPISODES), num_steps=3)
    ctx = OnlineContext()
    collector(ctx)
    first = ctx.trajectory
    before = first["obs"].copy()
    collector(ctx)
    np.testing.assert_array_equal(first["obs"], before)
    assert ctx.trajectory["obs"][0, 0, 1] == 1.0, "the second call goes on where the first ended"


def test_every_sample_carries_the_version_of_the_weights() -> None:
    actor = CountingActor()
    collector = Collector(actor, scripted_env(EPISODES, EPISODES), num_steps=2)
    ctx = OnlineContext()
    actor.version = 4
    collector(ctx)
    assert (ctx.trajectory["version"] == 4).all()
    assert ctx.trajectory["version"].shape == (2, 2)


@pytest.mark.parametrize("autoreset", list(AutoresetMode))
def test_the_episode_collector_hands_over_whole_episodes(autoreset: AutoresetMode) -> None:
    collector = EpisodeCollector(CountingActor(), scripted_env(EPISODES, autoreset=autoreset), num_episodes=2)
    ctx: Any = OnlineContext()
    collector(ctx)
    assert [list(episode["reward"]) for episode in ctx.episodes] == [[1.0, 2.0], [3.0, 4.0, 5.0]]
    collector(ctx)
    assert [list(episode["reward"]) for episode in ctx.episodes] == [[6.0], [1.0, 2.0]]
    assert ctx.env_step == 8


def test_the_episode_collector_ends_when_finishing() -> None:
    ctx: Any = OnlineContext()
    ctx.finish()
    EpisodeCollector(CountingActor(), scripted_env(EPISODES), num_episodes=2)(ctx)
    assert ctx.episodes == []


@pytest.mark.parametrize(("num_envs", "ratio"), [(1, 1.0), (3, 0.5), (2, 0.3), (4, 2.0)])
def test_the_ratio_of_updates_to_env_steps_is_exact(num_envs: int, ratio: float) -> None:
    env = scripted_env(*[EPISODES] * num_envs)
    buffer = ReplayBuffer(100, generator=np.random.default_rng(0))
    policy = CountingPolicy()
    with Task(OnlineContext()) as task:
        task.use(Collector(CountingActor(), env, num_steps=1), push(buffer))
        task.use(ReplayLearner(policy, buffer, batch_size=4, warm_up=10, updates_per_step=ratio))
        ctx: Any = task.run(max_step=40)
    assert ctx.train_iter == np.ceil((ctx.env_step - 10) * ratio)
    assert policy.version == ctx.train_iter


def test_replayed_data_grows_stale_by_every_update() -> None:
    """All rows are of version 0, and each iteration learns twice: 0, 2, 4 updates lie before it."""
    policy = CountingPolicy()
    buffer = ReplayBuffer(100, generator=np.random.default_rng(0))
    seen: list[tuple[float, float]] = []

    def remember(ctx: OnlineContext) -> None:
        seen.append((ctx.metrics["train/staleness_mean"], ctx.metrics["train/staleness_max"]))

    with Task(OnlineContext()) as task:
        task.use(Collector(CountingActor(), scripted_env(EPISODES), num_steps=1), push(buffer))
        task.use(ReplayLearner(policy, buffer, batch_size=4, warm_up=0, updates_per_step=2.0), remember)
        task.run(max_step=3)
    assert seen == [(0.0, 0.0), (2.0, 2.0), (4.0, 4.0)]
    assert policy.version == 6


def test_the_evaluator_plays_when_it_is_time() -> None:
    policy = CountingPolicy()
    evaluator = Evaluator(policy, CountingActor(), scripted_env([Script([2.0])]), every=10, num_episodes=3)
    seen = []
    for env_step in (4, 8, 12, 16, 20, 24):
        ctx = OnlineContext(env_step=env_step)
        evaluator(ctx)
        if ctx.metrics:
            seen.append((env_step, ctx.metrics["eval/return_mean"]))
    assert seen == [(12, 2.0), (20, 2.0)]


class ErrorsOfRewards(CountingPolicy):
    """Its error of a row is the row's reward, once it has learned from it."""

    td_error: Any = None

    def learn(self, batch: Any) -> dict[str, float]:
        self.td_error = batch["reward"]
        return super().learn(batch)


def test_what_was_learned_from_gets_the_priority_of_its_newest_error() -> None:
    buffer = PrioritizedReplay(100, generator=np.random.default_rng(0), alpha=1.0, epsilon=0.5)
    with Task(OnlineContext()) as task:
        task.use(Collector(CountingActor(), scripted_env(EPISODES), num_steps=1), push(buffer))
        task.use(PrioritizedLearner(ErrorsOfRewards(), buffer, batch_size=4, warm_up=2))
        ctx: Any = task.run(max_step=40)
    assert ctx.train_iter == ctx.env_step - 2
    state = buffer.state_dict()
    rewards = state["columns"]["reward"]
    learned = state["priorities"] == rewards + 0.5
    assert learned.sum() > 20
    # the others wait with the largest priority there had been when they came
    assert np.isin(state["priorities"][~learned], [1.0, *(rewards + 0.5)]).all()
    assert {"weight", "replay_index"} <= set(ctx.batch.keys())
