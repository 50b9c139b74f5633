"""Function-style middleware, one fact at a time."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from engine import OnlineContext, Task
from engine.bus.bus import Bus
from engine.data.n_step import NStep
from engine.data.replay import ReplayBuffer
from engine.errors import UsageError
from engine.middleware.evaluator import Evaluator
from engine.middleware.functional.anneal import anneal, measure_progress
from engine.middleware.functional.evaluate import evaluate, run_episodes
from engine.middleware.functional.explore import explore
from engine.middleware.functional.log import Averages, log
from engine.middleware.functional.measure import time_iteration
from engine.middleware.functional.publish import publish_weights
from engine.middleware.functional.push import push, push_n_step
from engine.middleware.functional.rhythm import Every
from engine.middleware.functional.sample import sample
from engine.middleware.functional.save import save_best_policy
from engine.middleware.functional.staleness import measure_staleness
from engine.middleware.functional.stop import (
    TimeLimit,
    stop_after_seconds,
    stop_at_env_step,
    stop_at_return,
    stop_without_progress,
)
from engine.middleware.functional.train import train
from engine.ops.schedules import Constant, Ladder, Linear
from engine.policies.config import DQNConfig
from engine.policies.dqn import DQN
from engine.testing import CountingActor, CountingPolicy, FakeClock, Script, scripted_env
from engine.tree import as_tree, batch_size, is_tree


def trajectory(valid: list[bool]) -> dict[str, Any]:
    rows = len(valid)
    column = np.arange(rows, dtype=np.float32)[:, None]
    flags = np.zeros((rows, 1), bool)
    return {
        "obs": column,
        "action": column.astype(np.int64),
        "reward": np.ones((rows, 1), np.float32),
        "terminated": flags,
        "truncated": flags,
        "next_obs": column + 1,
        "valid": np.array(valid)[:, None],
        "version": np.zeros((rows, 1), np.int64),
    }


def test_every_is_true_once_for_each_multiple_and_does_not_drift() -> None:
    due = Every(100)
    assert [count for count in (0, 64, 128, 192, 256, 600, 601, 699, 700) if due(count)] == [
        128,
        256,
        600,
        700,
    ]
    with pytest.raises(UsageError, match="every="):
        Every(0)


def test_explore_is_a_function_of_the_counter() -> None:
    actor = CountingActor()
    ctx = OnlineContext(env_step=50)
    explore(actor, Linear(1.0, 0.0, 100))(ctx)
    assert actor.epsilon == 0.5
    assert ctx.metrics == {"collect/epsilon": 0.5}


def test_explore_sets_one_epsilon_for_each_environment_and_tells_their_mean() -> None:
    actor = CountingActor()
    ctx = OnlineContext()
    explore(actor, Ladder(Constant(0.5), 1.0, range(2), 2))(ctx)
    np.testing.assert_allclose(actor.epsilon, [0.5, 0.25])
    assert ctx.metrics == {"collect/epsilon": 0.375}
    assert ctx.epsilon == 0.375


def test_push_stores_valid_rows_only() -> None:
    buffer = ReplayBuffer(10, generator=np.random.default_rng(0))
    ctx = OnlineContext()
    ctx.trajectory = trajectory([True, False, True])
    push(buffer)(ctx)
    assert len(buffer) == 2
    assert set(np.unique(buffer.sample(64)["obs"])) == {0.0, 2.0}


def test_push_n_step_stores_joined_transitions() -> None:
    buffer = ReplayBuffer(10, generator=np.random.default_rng(0))
    ctx = OnlineContext()
    ctx.trajectory = trajectory([True, True, True])
    push_n_step(buffer, NStep(2, 0.5, 1))(ctx)
    batch = buffer.sample(32)
    assert len(buffer) == 2
    np.testing.assert_allclose(batch["reward"], 1.5)
    np.testing.assert_allclose(batch["discount"], 0.25)
    np.testing.assert_allclose(batch["next_obs"] - batch["obs"], 2)


def test_sample_makes_one_tree_and_train_counts() -> None:
    buffer = ReplayBuffer(10, generator=np.random.default_rng(0))
    ctx = OnlineContext()
    ctx.trajectory = trajectory([True])
    push(buffer)(ctx)
    policy = CountingPolicy()
    sample(buffer, batch_size=5)(ctx)
    train(policy)(ctx)
    assert is_tree(policy.batches[0])
    assert batch_size(policy.batches[0]) == 5
    assert (ctx.train_iter, ctx.metrics) == (1, {"train/loss": 1.0})


class LoadingActor(CountingActor):
    """Remembers which versions it loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[int] = []

    def load(self, policy: Any) -> None:
        super().load(policy)
        self.loads.append(self.version)


def test_newer_weights_are_copied_and_only_where_nothing_runs() -> None:
    policy, actor, bus = CountingPolicy(), LoadingActor(), Bus()
    publish = publish_weights(policy, actor, bus)
    ctx = OnlineContext()
    while_running = []
    for version in (3, 3, 5):
        policy.version = version
        publish(ctx)
        while_running.append(actor.version)
        bus.deliver()
    assert while_running == [0, 3, 3]
    assert actor.loads == [3, 5]
    assert ctx.metrics == {"train/version": 5}


def test_weights_are_published_at_the_end_of_every_iteration_the_last_included() -> None:
    policy, actor = CountingPolicy(), CountingActor()
    seen: list[tuple[int, int]] = []

    def learn(ctx: OnlineContext) -> None:
        seen.append((actor.version, policy.version))
        policy.version += 1

    with Task(OnlineContext()) as task:
        task.use(
            learn, publish_weights(policy, actor, task.bus), lambda ctx: seen.append((actor.version, -1))
        )
        task.run(max_step=2)
    assert seen == [(0, 0), (0, -1), (1, 1), (1, -1)]
    assert actor.version == 2


def test_what_publishes_holds_the_policy_and_what_acts_the_actor() -> None:
    policy, actor = CountingPolicy(), CountingActor()
    with Task(OnlineContext()) as task:
        task.use(publish_weights(policy, actor, task.bus))
        assert [found.value for found in task.holdings()] == [policy]


def test_weights_are_published_under_the_name_of_ones_choice() -> None:
    policy, actor, bus = CountingPolicy(), CountingActor(), Bus()
    policy.version = 1
    publish_weights(policy, actor, bus, event="player_model_0")(OnlineContext())
    assert bus.wait_for("player_model_0", timeout=0) is None
    with pytest.raises(UsageError, match="cannot name an event"):
        publish_weights(policy, actor, bus, event="model")


def test_anneal_tells_the_fraction_of_the_run() -> None:
    policy = CountingPolicy()
    measure, tell = measure_progress(total_env_steps=100), anneal(policy)
    for env_step, expected in ((0, 0.0), (50, 0.5), (500, 1.0)):
        ctx = OnlineContext(env_step=env_step)
        measure(ctx)
        ctx.env_step += 30  # what is collected in between belongs to the next iteration
        tell(ctx)
        assert policy.progress == expected


def test_without_env_steps_to_reach_a_run_is_as_far_as_its_time() -> None:
    clock = FakeClock()
    limit = TimeLimit(8, clock=clock)
    measure = measure_progress(total_env_steps=None, limit=limit)
    found = []
    for seconds in (0, 0, 2, 4, 100):
        clock.advance(seconds)
        ctx = OnlineContext(env_step=10**9)
        measure(ctx)
        found.append(ctx.progress)
        limit.begin()  # the time of the first measurement is not counted
    assert found == [0.0, 0.0, 0.25, 0.75, 1.0]
    ctx = OnlineContext(env_step=50)
    measure_progress(total_env_steps=100, limit=limit)(ctx)
    assert ctx.progress == 0.5, "env steps go first: they repeat"
    measure_progress(total_env_steps=None)(ctx)
    assert ctx.progress == 0.0, "an end that is not known does not come nearer"


def test_a_run_without_env_steps_to_reach_does_not_stop_at_any() -> None:
    ctx = OnlineContext(env_step=10**12)
    stop_at_env_step(None)(ctx)
    assert not ctx.finishing


def learned_from(versions: list[int]) -> OnlineContext:
    ctx = OnlineContext()
    ctx.batch = as_tree({"obs": np.zeros((len(versions), 2), np.float32), "version": np.array(versions)})
    return ctx


def test_staleness_counts_updates_from_the_weights_that_acted_to_those_that_learn() -> None:
    policy = CountingPolicy()
    policy.version = 10
    ctx = learned_from([10, 7, 1, 10])
    measure_staleness(policy)(ctx)
    assert ctx.metrics == {"train/staleness_mean": 3.0, "train/staleness_max": 9.0}


def test_staleness_of_trajectories_of_several_actors_is_the_mean_over_all_of_them() -> None:
    policy = CountingPolicy()
    policy.version = 10
    version = np.full((7, 4), 10)
    version[:, 0] = 2
    ctx = OnlineContext()
    ctx.batch = as_tree({"version": version})
    measure_staleness(policy)(ctx)
    assert ctx.metrics == {"train/staleness_mean": 2.0, "train/staleness_max": 8.0}


def test_staleness_is_that_of_the_first_batch_of_an_iteration() -> None:
    policy = CountingPolicy()
    ctx = learned_from([0, 0])
    measure, learn = measure_staleness(policy), train(policy)
    for _ in range(3):
        measure(ctx)
        learn(ctx)
    assert (ctx.metrics["train/staleness_mean"], ctx.metrics["train/staleness_max"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    "rows",
    [{"obs": np.zeros((3, 2), np.float32)}, {"version": np.zeros(0, np.int64)}],
    ids=["untold", "empty"],
)
def test_staleness_of_batches_that_do_not_tell_their_version_is_not_made_up(rows: Any) -> None:
    ctx = OnlineContext()
    ctx.batch = as_tree(rows)
    measure_staleness(CountingPolicy())(ctx)
    assert ctx.metrics == {}


def test_time_iteration_measures_what_follows_also_when_it_fails() -> None:
    clock = FakeClock()

    def work(ctx: OnlineContext) -> None:
        clock.advance(3)
        if ctx.total_step == 1:
            raise ValueError

    with Task(OnlineContext()) as task:
        task.use(time_iteration(clock=clock), work)
        assert task.run(max_step=1).metrics == {"time/iteration_seconds": 3.0}
        with pytest.raises(ValueError):
            task.run(max_step=1)
        assert task.ctx.metrics == {"time/iteration_seconds": 3.0}


def test_episodes_are_shared_out_so_that_short_ones_are_not_preferred() -> None:
    short, long = Script([1.0]), Script([1.0] * 9)
    env = scripted_env([short], [long])
    episodes = run_episodes(CountingActor().act, env, 4)
    assert sorted(episode.length for episode in episodes) == [1, 1, 9, 9]


@pytest.mark.parametrize("autoreset", AutoresetMode)
def test_every_episode_counts_once_whole_or_cut_whatever_the_others_do(autoreset: AutoresetMode) -> None:
    """The k-th episode of each environment pays its first `max_steps` rewards, and is cut if it has more."""
    draws = np.random.default_rng(5)
    for _ in range(60):
        num_envs, num_episodes, max_steps = draws.integers(1, 5), int(draws.integers(1, 12)), 6
        scripts = [
            [Script(draws.normal(size=draws.integers(1, 15)).tolist()) for _ in range(12)]
            for _ in range(num_envs)
        ]
        env = scripted_env(*scripts, autoreset=autoreset)
        played = run_episodes(CountingActor().act, env, num_episodes, max_steps=max_steps)
        for index, mine in enumerate(scripts):
            share = len(range(index, num_episodes, num_envs))
            wanted = [(sum(one.rewards[:max_steps]), len(one.rewards) > max_steps) for one in mine[:share]]
            found = [(episode.return_, episode.cut) for episode in played if episode.index == index]
            assert [cut for _, cut in found] == [cut for _, cut in wanted]
            assert [sum_ for sum_, _ in found] == pytest.approx([sum_ for sum_, _ in wanted])
        assert len({episode.id for episode in played}) == num_episodes


def test_episodes_that_never_end_are_cut_and_said_to_be() -> None:
    ctx = OnlineContext()
    told: list[tuple[int, int, int]] = []
    env = scripted_env([Script([1.0] * 10**6)], [Script([5.0])])
    evaluate(
        CountingPolicy(),
        CountingActor(),
        env,
        num_episodes=4,
        max_steps=10,
        tell=lambda *words: told.append(words),
    )(ctx)
    assert ctx.metrics["eval/cut"] == 2
    assert ctx.metrics["eval/return_mean"] == (10 + 10 + 5 + 5) / 4
    assert ctx.metrics["eval/episodes"] == 4
    assert told[0] == (1, 4, 1)
    assert told[-1] == (4, 4, 20)


def test_the_best_policy_is_of_those_with_the_fewest_cut_episodes(tmp_path: Path) -> None:
    policy = DQN(Box(-1, 1, (2,)), Discrete(2), DQNConfig(hidden=(4,)))
    save, saved = save_best_policy(policy, tmp_path / "best"), []
    for cut, value in [
        (2, 50.0),
        (2, 60.0),
        (2, 55.0),
        (0, 9.0),
        (1, 99.0),
        (0, 8.0),
        (0, 9.0),
        (0, math.nan),
    ]:
        shutil.rmtree(tmp_path / "best", ignore_errors=True)
        save(OnlineContext(metrics={"eval/return_mean": value, "eval/cut": cut}))
        saved.append((tmp_path / "best").exists())
    assert saved == [True, True, False, True, False, False, True, False]


def test_evaluation_loads_weights_and_draws_nothing() -> None:
    policy, actor = CountingPolicy(), CountingActor()
    policy.version = 7
    ctx = OnlineContext()
    evaluate(policy, actor, scripted_env([Script([1.0, 2.0])], [Script([5.0])]), num_episodes=2)(ctx)
    assert ctx.metrics == {
        "eval/return_mean": 4.0,
        "eval/return_std": 1.0,
        "eval/length_mean": 1.5,
        "eval/episodes": 2,
        "eval/cut": 0,
    }
    assert (actor.version, actor.sampled, ctx.env_step, ctx.env_episode) == (7, 0, 0, 0)


class FinishingActor(CountingActor):
    """Asks to finish when it has acted twice."""

    def __init__(self, ctx: OnlineContext) -> None:
        super().__init__()
        self.ctx = ctx

    def act(self, obs: Any) -> Any:
        if self.acted == 1:
            self.ctx.finish()
        return super().act(obs)


def test_evaluation_ends_without_a_result_when_the_task_begins_to_finish() -> None:
    ctx = OnlineContext()
    actor = FinishingActor(ctx)
    endless = scripted_env([Script([0.0] * 1000)])
    evaluate(CountingPolicy(), actor, endless, num_episodes=1)(ctx)
    assert (actor.acted, ctx.metrics) == (2, {})


def test_evaluation_that_begins_while_the_task_is_finishing_is_played_to_its_end() -> None:
    ctx = OnlineContext()
    ctx.finish()
    evaluate(CountingPolicy(), FinishingActor(ctx), scripted_env([Script([1.0] * 9)]), num_episodes=2)(ctx)
    assert ctx.metrics["eval/return_mean"] == 9.0


def test_log_writes_means_every_so_many_iterations() -> None:
    lines: list[str] = []

    def measure(ctx: OnlineContext) -> None:
        ctx.env_step += 10
        ctx.metrics["train/loss"] = float(ctx.total_step)

    with Task(OnlineContext()) as task:
        task.use(measure, log(every=2, write=lines.append)).run(max_step=5)
    assert lines == ["step 2  env_step 20  train/loss 0.5", "step 4  env_step 40  train/loss 2.5"]


def test_averages_start_anew_when_taken() -> None:
    averages = Averages()
    averages.add({"a": 1.0, "name": "x"})
    averages.add({"a": 3.0, "b": 5})
    assert averages.take() == {"a": 2.0, "b": 5.0}
    assert averages.take() == {}


def run_until_stopped(*middleware: Any) -> Task:
    with Task(OnlineContext()) as task:
        task.use(*middleware).run(max_step=50)
    return task


def test_stop_at_env_step() -> None:
    def collect(ctx: OnlineContext) -> None:
        ctx.env_step += 8

    task = run_until_stopped(collect, stop_at_env_step(20))
    assert (task.ctx.env_step, task.finish_reason) == (24, "20 env steps are done")  # type: ignore[attr-defined]


def test_stop_at_return_asks_only_where_the_metric_is_written() -> None:
    def evaluate_odd(ctx: OnlineContext) -> None:
        if ctx.total_step % 2:
            ctx.metrics["eval/return_mean"] = float(ctx.total_step)

    task = run_until_stopped(evaluate_odd, stop_at_return(4.0))
    assert task.ctx.total_step == 6
    assert "goal was 4" in str(task.finish_reason)


def test_stop_after_seconds_counts_from_the_first_iteration() -> None:
    clock = FakeClock(100.0)
    task = run_until_stopped(lambda ctx: clock.advance(2), stop_after_seconds(5, clock=clock))
    assert task.ctx.total_step == 4


def test_one_time_limit_serves_a_whole_pipeline() -> None:
    clock = FakeClock(100.0)
    limit = TimeLimit(5, clock=clock)
    policy = CountingPolicy()
    endless = scripted_env([Script([0.0] * 10**6)])

    class Slow(CountingActor):
        def act(self, obs: Any) -> Any:
            clock.advance(1)
            return super().act(obs)

    def count(ctx: OnlineContext) -> None:
        ctx.env_step += 10

    actor = Slow()
    evaluator = Evaluator(policy, actor, endless, every=10, num_episodes=1, give_up=limit.passed)
    with Task(OnlineContext()) as task:
        clock.advance(50)  # building is not counted
        task.use(limit.begin, count, evaluator, stop_after_seconds(limit))
        ctx = task.run(max_step=9)
    assert (ctx.total_step, actor.acted, task.finish_reason) == (1, 5, "5 seconds have passed")
    assert (ctx.metrics, ctx.get("gave_up")) == ({}, True)


def test_no_evaluation_begins_when_the_time_is_over() -> None:
    actor = CountingActor()
    ctx = OnlineContext(env_step=10)
    env = scripted_env([Script([1.0])])
    Evaluator(CountingPolicy(), actor, env, every=10, num_episodes=1, give_up=lambda: True)(ctx)
    assert (actor.acted, ctx.metrics, ctx.get("gave_up")) == (0, {}, None)


def test_stop_without_progress_counts_env_steps_since_the_best() -> None:
    values = [1.0, 3.0, 2.0, 3.0, 1.0, 9.0]

    def measure(ctx: OnlineContext) -> None:
        ctx.env_step += 10
        ctx.metrics["eval/return_mean"] = values[ctx.total_step]

    task = run_until_stopped(measure, stop_without_progress(30))
    assert task.ctx.total_step == 5
    assert "has not passed 3" in str(task.finish_reason)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: stop_at_env_step(0),
        lambda: stop_after_seconds(0),
        lambda: stop_without_progress(0),
        lambda: measure_progress(total_env_steps=0),
        lambda: evaluate(CountingPolicy(), CountingActor(), scripted_env([Script([1.0])]), num_episodes=0),
    ],
)
def test_options_are_checked_while_building(wrong: Any) -> None:
    with pytest.raises(UsageError):
        wrong()
