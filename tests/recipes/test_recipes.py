"""The recipes end to end: they run, repeat bit for bit, and leave what they promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
import torch

import engine
from engine import config as configs
from engine.data.prioritized import PrioritizedReplay
from engine.envs.config import EnvConfig
from engine.envs.toy import DictEnv
from engine.errors import ConfigError, StateError, UsageError
from engine.middleware.recorder import Recorder
from engine.policies.config import DQNConfig, IMPALAConfig, PPOConfig
from engine.recipes import dqn as dqn_recipe
from engine.recipes import impala as impala_recipe
from engine.recipes import ppo as ppo_recipe
from engine.recipes.config import EvaluateConfig, StopConfig
from engine.recipes.dqn import DQNRun, dqn
from engine.recipes.experiment import run_experiment
from engine.recipes.impala import IMPALARun, impala
from engine.recipes.ppo import PPORun, ppo
from engine.runs.folder import Run
from engine.runs.progress import Progress
from engine.runs.summary import summary
from engine.runs.trackers import TensorBoard, Trackers
from engine.state.graph import shared
from engine.testing import jitter

NEVER = EvaluateConfig(every=1_000_000)


def short_ppo(env: str = "CartPole-v1", num_envs: int = 8, seed: int = 3, **more: Any) -> PPORun:
    return PPORun(
        env=EnvConfig(id=env, num_envs=num_envs),
        seed=seed,
        policy=PPOConfig(epochs=2, hidden=(16,)),
        collect=ppo_recipe.CollectConfig(num_steps=32),
        **{"evaluate": NEVER, "stop": StopConfig(env_step=500), **more},
    )


def short_dqn(
    env: str = "CartPole-v1", num_envs: int = 1, seed: int = 3, n_step: int = 1, **more: Any
) -> DQNRun:
    return DQNRun(
        env=EnvConfig(id=env, num_envs=num_envs),
        seed=seed,
        policy=DQNConfig(hidden=(16,), target_update=20, n_step=n_step),
        train=dqn_recipe.TrainConfig(warm_up=50, batch_size=16, buffer_size=200),
        **{"evaluate": NEVER, "stop": StopConfig(env_step=300), **more},
    )


def short_prioritized(**more: Any) -> DQNRun:
    config = short_dqn(**more)
    prioritized = dqn_recipe.PrioritizedConfig(alpha=0.5, beta_start=0.2)
    return msgspec.structs.replace(
        config, train=msgspec.structs.replace(config.train, prioritized=prioritized)
    )


def short_impala(env: str = "CartPole-v1", num_envs: int = 8, seed: int = 3, **more: Any) -> IMPALARun:
    return IMPALARun(
        env=EnvConfig(id=env, num_envs=num_envs),
        seed=seed,
        policy=IMPALAConfig(hidden=(16,)),
        collect=impala_recipe.CollectConfig(num_steps=32),
        **{"evaluate": NEVER, "stop": StopConfig(env_step=500), **more},
    )


def trained(
    recipe: Any, config: Any, *, jitter_seed: int | None = None
) -> tuple[dict[str, torch.Tensor], Any]:
    """Run a recipe; return the final parameters and the last context."""
    policies: list[Any] = []

    def watch(policy: Any) -> Any:
        policies.append(policy)
        return lambda ctx: None

    with recipe(config, watch=watch) as task:
        if jitter_seed is not None:
            jitter(task, seed=jitter_seed)
        ctx = task.run()
    return policies[0].state_dict()["model"], ctx


@pytest.mark.parametrize("num_envs", [1, 8])
@pytest.mark.parametrize(("recipe", "config"), [(ppo, short_ppo), (dqn, short_dqn), (impala, short_impala)])
def test_the_same_seed_gives_the_same_parameters_bit_for_bit(recipe: Any, config: Any, num_envs: int) -> None:
    torch.rand(3)  # whatever happened to the global generator before
    first, _ = trained(recipe, config(num_envs=num_envs))
    np.random.seed(0)
    torch.rand(7)
    second, _ = trained(recipe, config(num_envs=num_envs))
    other, _ = trained(recipe, config(num_envs=num_envs, seed=4))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_evaluating_changes_nothing_about_training() -> None:
    never, _ = trained(ppo, short_ppo())
    often, ctx = trained(ppo, short_ppo(evaluate=EvaluateConfig(every=100, episodes=3)))
    assert "eval/return_mean" in ctx.metrics
    assert all(torch.equal(never[name], often[name]) for name in never)


EACH = pytest.mark.parametrize(
    ("recipe", "config"),
    [(ppo, short_ppo), (dqn, short_dqn), (dqn, short_prioritized), (impala, short_impala)],
    ids=["ppo", "dqn", "dqn-prioritized", "impala"],
)


@EACH
@pytest.mark.parametrize("vectorization", ["sync", pytest.param("process", marks=pytest.mark.slow)])
def test_nothing_that_changes_is_in_reach_of_two_stations(
    recipe: Any, config: Any, vectorization: Any, tmp_path: Path
) -> None:
    run = Run.create(env="CartPole-v1", algo="any", seed=0, run_dir=tmp_path / "run")
    stop = StopConfig(env_step=64, return_mean=1e6, seconds=1e6, no_progress=1_000_000)
    env = EnvConfig(id="CartPole-v1", num_envs=2, vectorization=vectorization)
    settings = msgspec.structs.replace(
        config(evaluate=EvaluateConfig(every=64, episodes=1), stop=stop), env=env
    )
    recorders: list[Recorder] = []

    def watch(policy: Any) -> Any:
        trackers = Trackers([TensorBoard(run.path / "tb")])
        recorders.append(Recorder(run, policy, progress=display, trackers=[trackers], every=16))
        return recorders[0]

    with Progress("off", None, "") as display, recipe(settings, watch=watch) as task:
        task.own(*recorders).measure()
        recorders[0].watch(task)
        for _ in range(2):  # as built, and with all that running adds
            assert shared(task._members) == []
            task.run()


@EACH
def test_every_kept_field_is_written_by_one_station(recipe: Any, config: Any) -> None:
    kept: dict[str, Any] = {}
    writers: dict[str, set[str]] = {"collect": set(), "learn": set()}

    def look(station: str | None, ctx: Any) -> None:
        now = {name: getattr(ctx, name) for name in ("total_step", "env_step", "env_episode", "train_iter")}
        if station is not None:
            writers[station] |= {name for name in now if now[name] != kept[name]}
        kept.update(now)

    with recipe(config()) as task:
        task.before("collect", lambda ctx: look(None, ctx))
        task.after("collect", lambda ctx: look("collect", ctx))
        task.after("learn", lambda ctx: look("learn", ctx))
        task.run()
    assert writers == {"collect": {"env_step", "env_episode"}, "learn": {"train_iter"}}


@EACH
@pytest.mark.parametrize("async_mode", [False, True])
def test_the_evaluation_that_is_due_at_the_end_of_the_budget_is_played(
    recipe: Any, config: Any, async_mode: bool
) -> None:
    due = {"evaluate": EvaluateConfig(every=256, episodes=2), "stop": StopConfig(env_step=256)}
    _, ctx = trained(recipe, config(async_mode=async_mode, **due))
    assert ctx.metrics["eval/episodes"] == 2


@EACH
def test_overlapped_runs_repeat_bit_for_bit_and_collect_no_more_than_runs_in_order(
    recipe: Any, config: Any
) -> None:
    env = EnvConfig(id="CartPole-v1", num_envs=4, vectorization="sync")
    ordered = msgspec.structs.replace(config(), env=env)
    overlapped = msgspec.structs.replace(ordered, async_mode=True)
    _, ctx = trained(recipe, ordered)
    first, mine = trained(recipe, overlapped)
    again, _ = trained(recipe, overlapped)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert mine.metrics["train/staleness_mean"] > ctx.metrics["train/staleness_mean"]
    assert (mine.total_step, mine.env_step, mine.train_iter) == (ctx.total_step, ctx.env_step, ctx.train_iter)


@EACH
@pytest.mark.parametrize("vectorization", ["sync", pytest.param("process", marks=pytest.mark.slow)])
def test_overlapped_numbers_do_not_depend_on_which_station_is_quicker(
    recipe: Any, config: Any, vectorization: str
) -> None:
    settings = msgspec.structs.replace(
        config(stop=StopConfig(env_step=400), evaluate=EvaluateConfig(every=150, episodes=2)),
        env=EnvConfig(id="CartPole-v1", num_envs=2, vectorization=vectorization),  # type: ignore[arg-type]
        async_mode=True,
    )
    expected, ctx = trained(recipe, settings)
    for jitter_seed in range(2):
        parameters, again = trained(recipe, settings, jitter_seed=jitter_seed)
        assert all(torch.equal(parameters[name], expected[name]) for name in expected)
        assert again.metrics == ctx.metrics


@EACH
def test_overlapped_without_any_lag_is_in_order_bit_for_bit(recipe: Any, config: Any) -> None:
    in_order, ctx = trained(recipe, config())
    without_lag, mine = trained(recipe, config(async_mode=True, max_lag=0))
    assert all(torch.equal(in_order[name], without_lag[name]) for name in in_order)
    assert mine.metrics == ctx.metrics


@pytest.mark.parametrize(("recipe", "config"), [(ppo, short_ppo), (impala, short_impala)])
@pytest.mark.parametrize(("async_mode", "expected"), [(False, [0, 0, 0]), (True, [0, 1, 1])])
def test_fresh_data_is_as_stale_as_the_stations_are_apart(
    recipe: Any, config: Any, async_mode: bool, expected: list[int]
) -> None:
    seen: list[Any] = []
    with recipe(
        config(async_mode=async_mode), watch=lambda policy: lambda ctx: seen.append(ctx.metrics)
    ) as task:
        task.run(max_step=3)
    assert [row["train/staleness_mean"] for row in seen] == expected
    assert [row["train/staleness_max"] for row in seen] == expected


def test_max_lag_says_something_of_async_mode_alone() -> None:
    env = {"env": {"id": "CartPole-v1"}}
    assert configs.convert({**env, "async_mode": True, "max_lag": 0}, PPORun).max_lag == 0
    with pytest.raises(ConfigError, match="needs async_mode=true"):
        configs.convert({**env, "max_lag": 2}, PPORun)
    with pytest.raises(ConfigError, match="'max_lag' of DQNRun must be a whole number >= 0"):
        configs.convert({**env, "async_mode": True, "max_lag": -1}, DQNRun)


@pytest.mark.parametrize(
    "env", ["engine.envs.toy:DictEnv", "engine.envs.toy:TupleEnv", "engine.envs.toy:ContinuousTargetEnv"]
)
@pytest.mark.parametrize(("recipe", "config"), [(ppo, short_ppo), (impala, short_impala)])
def test_policy_gradients_run_on_dict_tuple_and_box_spaces(recipe: Any, config: Any, env: str) -> None:
    _, ctx = trained(recipe, config(env))
    assert ctx.env_step >= 500
    assert np.isfinite(list(ctx.metrics.values())).all()


def test_the_bias_of_drawing_by_priority_is_undone_fully_at_the_end_of_the_run() -> None:
    with dqn(short_prioritized()) as task:
        buffer = next(f.value for f in task.holdings() if isinstance(f.value, PrioritizedReplay))
        assert buffer.beta == 0.2
        task.run(max_step=150)
        assert buffer.beta == pytest.approx(0.2 + 0.8 * 149 / 300)
        task.run()
        assert buffer.beta == pytest.approx(1.0, abs=0.01)
        assert len(set(buffer.priorities().tolist())) > 50


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("env", ["engine.envs.toy:DictEnv", "engine.envs.toy:TupleEnv"])
def test_dqn_runs_on_dict_and_tuple_spaces(env: str, n_step: int) -> None:
    _, ctx = trained(dqn, short_dqn(env, num_envs=3, n_step=n_step))
    assert ctx.train_iter == ctx.env_step - 50


@pytest.mark.parametrize("async_mode", [False, True])
def test_ppo_solves_the_dict_environment(async_mode: bool) -> None:
    config = short_ppo(
        "engine.envs.toy:DictEnv",
        stop=StopConfig(env_step=8_000),
        evaluate=EvaluateConfig(every=8_000),
        async_mode=async_mode,
    )
    config = msgspec.structs.replace(config, policy=PPOConfig(learning_rate=1e-2, hidden=(32,)))
    _, ctx = trained(ppo, config)
    from engine.envs.toy import DictEnv

    assert ctx.metrics["eval/return_mean"] >= 0.9 * DictEnv().optimal_return


def test_train_leaves_a_folder_that_describes_itself_and_a_policy_that_acts(tmp_path: Path) -> None:
    run = ppo_recipe.train(
        "CartPole-v1",
        seed=1,
        overrides=["stop.env_step=600", "evaluate.every=300", "evaluate.episodes=2", "evaluate.video=0"],
        run_dir=tmp_path / "run",
        progress="off",
    )
    info = json.loads((run.path / "run.json").read_text())
    assert (info["state"], info["seed"], info["env"]) == ("finished", 1, "CartPole-v1")
    assert {"return_mean", "return_std", "episodes"} <= info["result"].keys()
    assert run.metrics().series("eval/return_mean")[0][-1] >= 600, "the last policy is evaluated too"
    for name in (
        "config.yaml",
        "metrics.jsonl",
        "plots/learning_curve.png",
        "plots/timing.png",
        "logs/main-0.jsonl",
    ):
        assert (run.path / name).stat().st_size >= 0
    assert list((run.path / "tb").glob("events.*"))
    policy = engine.load_policy(run.path)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    action = policy.act(obs, deterministic=True)
    assert env.action_space.contains(action)
    assert policy.act(np.stack([obs, obs]), deterministic=True).tolist() == [action, action]
    assert str(run.path) in summary(run)


@pytest.mark.parametrize("vectorization", ["sync", pytest.param("process", marks=pytest.mark.slow)])
def test_wrappers_that_change_rewards_change_no_reported_return(vectorization: str, tmp_path: Path) -> None:
    run = ppo_recipe.train(
        "CartPole-v1",
        seed=1,
        overrides=[
            *("stop.env_step=512", "evaluate.every=256", "evaluate.episodes=2", "evaluate.video=0"),
            *("collect.num_steps=128", "env.num_envs=2", "env.wrappers=[NormalizeReward]"),
            f"env.vectorization={vectorization}",
        ],
        run_dir=tmp_path / "run",
        progress="off",
    )
    metrics = run.metrics()
    # CartPole pays one a step: its return is its length, which no wrapper here changes.
    assert metrics.series("collect/return_mean") == metrics.series("collect/length_mean")
    assert metrics.series("eval/return_mean") == metrics.series("eval/length_mean")
    assert metrics.last("collect/wrapped_return_mean") != metrics.last("collect/return_mean")
    logged = (run.path / "logs" / "main-0.jsonl").read_text()
    told = [line for line in logged.splitlines() if "collect/wrapped_return_mean" in line]
    assert len(told) == 1
    assert "rewards of CartPoleEnv itself" in told[0]
    assert "(NormalizeReward)" in told[0]


def test_train_without_a_shipped_configuration_starts_from_defaults(tmp_path: Path) -> None:
    run = dqn_recipe.train(
        "engine.envs.toy:DictEnv",
        overrides=["stop.env_step=200", "train.warm_up=50", "evaluate.episodes=2"],
        run_dir=tmp_path / "run",
        progress="off",
    )
    assert run.state == "finished"


def test_wrong_ways_to_call_train_say_what_is_right(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs an environment"):
        ppo_recipe.train()
    with pytest.raises(ConfigError, match="learning_rate"):
        ppo_recipe.train("CartPole-v1", overrides=["policy.learning_rat=1"], run_dir=tmp_path / "x")
    with pytest.raises(UsageError, match="env is"):
        ppo_recipe.train("Acrobot-v1", config=short_ppo())


def test_a_failing_environment_leaves_a_failed_run_and_the_error(tmp_path: Path) -> None:
    run = Run.create(env="crash", algo="ppo", seed=0, run_dir=tmp_path / "run")
    config = short_ppo("engine.envs.toy:CrashEnv")
    with pytest.raises(Exception, match=r"\S") as caught:
        run_experiment(ppo, config, run=run, progress="off")
    assert any("collector.step" in note for note in caught.value.__notes__)
    assert Run.open(run.path).state == "failed"


def test_a_run_without_a_policy_says_so(tmp_path: Path) -> None:
    run = Run.create(env="x", algo="ppo", seed=0, run_dir=tmp_path / "run")
    with pytest.raises(StateError, match="no policy yet"):
        engine.load_policy(run.path)


class Undrawn(DictEnv):
    """It takes a render mode and draws nothing, as most environments of one's own do at first."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # as gymnasium declares it

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode


def test_an_environment_that_cannot_be_drawn_costs_the_film_and_not_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = short_ppo(f"{__name__}:Undrawn", evaluate=EvaluateConfig(every=1_000_000, video=1))
    run = ppo_recipe.train(config=config, run_dir=tmp_path / "run", progress="plain")
    assert run.state == "finished"
    assert run.result["episodes"] == 20
    assert "no film was made" in capsys.readouterr().err
    assert not list((tmp_path / "run" / "videos").iterdir())


def test_arguments_of_the_wrong_kind_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="like \\['seed=1'\\]"):
        ppo_recipe.train("CartPole-v1", overrides="seed=1")
    with pytest.raises(UsageError, match=r"like 'engine.envs.toy:DictEnv'"):
        ppo_recipe.train(DictEnv)  # type: ignore[arg-type]


def test_a_recipe_that_returns_no_task_is_named(tmp_path: Path) -> None:
    def forgetful(config: PPORun) -> Any:
        ppo(config).close()

    run = Run.create(env="e", algo="a", seed=0, run_dir=tmp_path / "run")
    with pytest.raises(UsageError, match="forgetful must return a Task, and returned None"):
        run_experiment(forgetful, short_ppo(), run=run, progress="off")
    assert run.state == "failed"


def test_the_summary_tells_only_what_can_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(env="e", algo="a", seed=0, run_dir=tmp_path / "run")
    run.finish("interrupted", "interrupted")
    assert " eval " not in summary(run)
    assert "interrupted: by Ctrl-C" in summary(run)
    (run.path / "policies" / "last").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for name in ("engine", "python"):
        (tmp_path / "bin" / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", "")
    assert "  bin/engine eval " in summary(run)
    assert "  bin/tensorboard " in summary(run)


@pytest.mark.parametrize(("seed", "expected"), [(0, 0), (5, 5), (None, 3)])
def test_the_seed_given_to_train_replaces_the_one_of_the_config(
    seed: int | None, expected: int, tmp_path: Path
) -> None:
    config = short_ppo(stop=StopConfig(env_step=100), evaluate=EvaluateConfig(episodes=1))
    run = ppo_recipe.train(config=config, seed=seed, run_dir=tmp_path / "run", progress="off")
    assert run.info["seed"] == expected
