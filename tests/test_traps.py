"""The traps of reinforcement learning, sprung on whole pipelines; oracles are brute force or closed form."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import nn

import engine
from engine import OnlineContext, Task
from engine.cli.main import call
from engine.data.n_step import NStep
from engine.data.replay import ReplayBuffer
from engine.envs.config import EnvConfig
from engine.errors import ConfigError, EngineError, EnvError
from engine.middleware.collector import Collector
from engine.middleware.functional.estimate import estimate_advantage
from engine.middleware.functional.evaluate import run_episodes
from engine.middleware.functional.publish import publish_weights
from engine.middleware.functional.push import push, push_n_step
from engine.middleware.functional.staleness import measure_staleness
from engine.middleware.functional.train import train
from engine.policies.config import DQNConfig, PPOConfig
from engine.policies.dqn import DQN
from engine.policies.ppo import PPO
from engine.recipes import dqn as dqn_recipe
from engine.recipes import ppo as ppo_recipe
from engine.recipes.config import EvaluateConfig, StopConfig
from engine.recipes.dqn import DQNRun, dqn
from engine.recipes.experiment import run_experiment
from engine.recipes.parts import make_evaluation_env, make_training_env
from engine.recipes.ppo import PPORun, ppo
from engine.runs.folder import Run
from engine.testing import CountingActor, CountingPolicy, Script, scripted_env

GAMMA, LAMBDA = 0.9, 0.8
SCRIPTS = [
    [Script([1.0, -2.0, 3.0]), Script([4.0], "truncated"), Script([5.0, 6.0], "both"), Script([7.0])],
    [Script([0.5, 1.5, 2.5, 3.5, 4.5], "truncated"), Script([-1.0, -2.0], "truncated")],
    [Script([9.0], "both"), Script([1.0] * 40)],
]
MODES = list(AutoresetMode)
NEVER = EvaluateConfig(every=1_000_000, episodes=2)

Row = tuple[tuple[int, int], float, bool, tuple[int, int], bool]


def ppo_run(
    env: str | EnvConfig = "CartPole-v1", *, num_envs: int = 4, num_steps: int = 32, **more: Any
) -> PPORun:
    defaults: dict[str, Any] = {
        "env": EnvConfig(id=env, num_envs=num_envs) if isinstance(env, str) else env,
        "seed": 3,
        "policy": PPOConfig(epochs=2, hidden=(16,), learning_rate=3e-3),
        "collect": ppo_recipe.CollectConfig(num_steps=num_steps),
        "evaluate": NEVER,
        "stop": StopConfig(env_step=1_000),
    }
    return PPORun(**{**defaults, **more})


def dqn_run(env: str | EnvConfig = "CartPole-v1", *, num_envs: int = 1, **more: Any) -> DQNRun:
    defaults: dict[str, Any] = {
        "env": EnvConfig(id=env, num_envs=num_envs) if isinstance(env, str) else env,
        "seed": 3,
        "policy": DQNConfig(hidden=(16,), target_update=20),
        "train": dqn_recipe.TrainConfig(warm_up=50, batch_size=16, buffer_size=200),
        "evaluate": NEVER,
        "stop": StopConfig(env_step=300),
    }
    return DQNRun(**{**defaults, **more})


def transitions(scripts: list[Script], count: int) -> list[Row]:
    """The first `count` transitions of a scripted environment: obs, reward, terminated, next_obs, ended."""
    rows: list[Row] = []
    episode = 0
    while len(rows) < count:
        script = scripts[episode % len(scripts)]
        for t, reward in enumerate(script.rewards):
            last = t == len(script.rewards) - 1
            terminated = last and script.end != "truncated"
            rows.append(((episode, t), reward, terminated, (episode, t + 1), last))
        episode += 1
    return rows[:count]


def naive_advantages(rows: list[Row], value: Any) -> list[float]:
    """Sum forward from every row to the end of its episode or of the rows, as the paper defines it."""
    found = []
    for start in range(len(rows)):
        total, weight = 0.0, 1.0
        for obs, reward, terminated, next_obs, ended in rows[start:]:
            target = reward if terminated else reward + GAMMA * value(next_obs)
            total += weight * (target - value(obs))
            weight *= GAMMA * LAMBDA
            if ended:
                break
        found.append(total)
    return found


@pytest.mark.parametrize("num_steps", [1, 2, 13])
@pytest.mark.parametrize("mode", MODES)
def test_a_ppo_batch_holds_what_a_naive_computation_per_episode_gives(
    mode: AutoresetMode, num_steps: int
) -> None:
    env = scripted_env(*SCRIPTS, autoreset=mode)
    policy = PPO(env.single_observation_space, env.single_action_space, PPOConfig(hidden=(8,)), seed=1)
    actor = policy.actor(np.random.default_rng(0))
    collect = Collector(actor, env, num_steps=num_steps)
    estimate = estimate_advantage(policy, discount=GAMMA, gae_lambda=LAMBDA)

    def value(obs: tuple[int, int]) -> float:
        with torch.no_grad():
            return float(policy.model.value(torch.tensor([obs], dtype=torch.float32))[0])

    ctx: Any = OnlineContext()
    done = [0] * env.num_envs
    for _ in range(60 // num_steps):
        collect(ctx)
        estimate(ctx)
        valid = ctx.trajectory["valid"]
        expected: dict[tuple[int, int], tuple[tuple[int, int], float]] = {}
        for b, scripts in enumerate(SCRIPTS):
            count = int(valid[:, b].sum())
            rows = transitions(scripts, done[b] + count)[done[b] :]
            done[b] += count
            places = np.flatnonzero(valid[:, b]).tolist()
            for t, row, advantage in zip(places, rows, naive_advantages(rows, value), strict=True):
                expected[t, b] = row[0], advantage
        assert (mode is AutoresetMode.NEXT_STEP) or valid.all()
        in_order = [expected[place] for place in sorted(expected)]
        batch = ctx.batch
        np.testing.assert_array_equal(batch["obs"].numpy(), [obs for obs, _ in in_order])
        np.testing.assert_allclose(batch["advantage"], [a for _, a in in_order], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            batch["returns"], [a + value(obs) for obs, a in in_order], rtol=1e-4, atol=1e-4
        )
    assert ctx.env_step == sum(done)


def log_probs_under(model: Any, batch: Any) -> torch.Tensor:
    """The log-probabilities of a batch's actions under a model's weights, by torch's own distributions."""
    with torch.no_grad():
        out = model.policy(batch["obs"])
    law: Any
    if isinstance(out, tuple):
        normal = torch.distributions.Normal(out[0].double(), out[1].double().exp())
        law = torch.distributions.Independent(normal, 1)
    else:
        law = torch.distributions.Categorical(logits=out.double())
    found: torch.Tensor = law.log_prob(batch["action"]).detach()
    return found


def off_ratio(log_prob: torch.Tensor, recorded: torch.Tensor) -> float:
    """How far the ratio is from 1, at most; float32 holds a log-probability to within a share of its size."""
    ratio = (log_prob - recorded).exp()
    return float(((ratio - 1).abs() / log_prob.abs().clamp(min=1.0)).max())


@pytest.mark.parametrize(
    "env", ["CartPole-v1", "engine.envs.toy:DictEnv", "engine.envs.toy:ContinuousTargetEnv"]
)
def test_the_policy_that_is_trained_is_the_one_that_collected(env: str) -> None:
    """The ratio is 1 on every row before the first gradient step of each update, not of the first alone."""
    policies: list[Any] = []
    off: list[float] = []

    def compare(ctx: Any) -> None:
        off.append(off_ratio(log_probs_under(policies[0].model, ctx.batch), ctx.batch["log_prob"]))

    def watch(policy: Any) -> Any:
        policies.append(policy)
        return lambda ctx: None

    with ppo(ppo_run(env), watch=watch) as task:
        task.before("learn.train", compare)
        task.run(max_step=8)
    assert len(off) == 8
    assert max(off) < 1e-6


@pytest.mark.parametrize("env", ["CartPole-v1", "engine.envs.toy:ContinuousTargetEnv"])
def test_the_ratio_of_stale_data_is_to_the_weights_that_acted(env: str) -> None:
    config = ppo_run(env, num_envs=2)
    with make_training_env(config) as training_env:
        policy = PPO(
            training_env.single_observation_space, training_env.single_action_space, config.policy, seed=1
        )
        acted = copy.deepcopy(policy.model)
        collect = Collector(policy.actor(np.random.default_rng(0)), training_env, num_steps=32)
        estimate = estimate_advantage(policy, discount=GAMMA, gae_lambda=LAMBDA)
        ctx: Any = OnlineContext()
        for _ in range(2):
            collect(ctx)
            estimate(ctx)
            if policy.version == 0:
                policy.learn(ctx.batch)  # and the actor stays one version behind
    assert off_ratio(log_probs_under(acted, ctx.batch), ctx.batch["log_prob"]) < 1e-6
    assert off_ratio(log_probs_under(policy.model, ctx.batch), ctx.batch["log_prob"]) > 1e-3
    measure_staleness(policy)(ctx)
    assert (ctx.metrics["train/staleness_mean"], ctx.metrics["train/staleness_max"]) == (1.0, 1.0)


def trained_policy(recipe: Any, config: Any) -> Any:
    policies: list[Any] = []

    def watch(policy: Any) -> Any:
        policies.append(policy)
        return lambda ctx: None

    with recipe(config, watch=watch) as task:
        task.run()
    return policies[0]


@pytest.mark.parametrize("vectorized", [1, 4])
def test_a_constant_reward_drives_the_value_to_its_closed_form_across_truncations(vectorized: int) -> None:
    env = EnvConfig(id="engine.envs.toy:ConstantRewardEnv", num_envs=vectorized, kwargs={"length": 5})
    config = ppo_run(
        env=env,
        policy=PPOConfig(hidden=(16,), learning_rate=1e-2, discount=0.8, epochs=6, max_grad_norm=10.0),
        num_steps=64 // vectorized,
        stop=StopConfig(env_step=4_000),
    )
    policy = trained_policy(ppo, config)
    # With truncation taken for termination it would be the mean of 1 to 3.4: about 2.3.
    assert policy.values(np.ones((1, 1), np.float32))[0] == pytest.approx(1 / (1 - 0.8), rel=0.03)


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_constant_reward_drives_q_to_its_closed_form_across_truncations(n_step: int) -> None:
    env = EnvConfig(id="engine.envs.toy:ConstantRewardEnv", num_envs=2, kwargs={"length": 5})
    config = dqn_run(
        env=env,
        policy=DQNConfig(
            hidden=(16,), learning_rate=1e-2, discount=0.8, target_update=10, n_step=n_step, huber=None
        ),
        stop=StopConfig(env_step=1_000),
    )
    policy = trained_policy(dqn, config)
    q = policy.model(torch.ones(1, 1)).detach().numpy()
    np.testing.assert_allclose(q, 1 / (1 - 0.8), rtol=0.03)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_dqn_bootstraps_what_it_stored_from_the_true_next_observations(
    mode: AutoresetMode, n_step: int
) -> None:
    """Small rings that wrap: of every stored row, the target is worked out from the script again."""
    env = scripted_env(SCRIPTS[0], autoreset=mode)
    config = DQNConfig(hidden=(8,), discount=GAMMA, double=False, n_step=n_step)
    policy = DQN(env.single_observation_space, env.single_action_space, config, seed=1)
    buffer = ReplayBuffer(7, generator=np.random.default_rng(0))
    collect = Collector(CountingActor(), env, num_steps=3)
    store = push(buffer) if n_step == 1 else push_n_step(buffer, NStep(n_step, GAMMA, 1))
    script = transitions(SCRIPTS[0], 200)
    start_of = {row[0]: i for i, row in enumerate(script)}

    def q(obs: tuple[int, int]) -> np.ndarray:
        with torch.no_grad():
            return policy.target(torch.tensor([obs], dtype=torch.float32))[0].numpy()

    def target(obs: tuple[int, int]) -> float:
        total, weight = 0.0, 1.0
        for _, reward, terminated, next_obs, ended in script[start_of[obs] :][:n_step]:
            total += weight * reward
            weight *= GAMMA
            bootstrap = 0.0 if terminated else weight * float(q(next_obs).max())
            if ended:
                break
        return total + bootstrap

    ctx: Any = OnlineContext()
    checked = set()
    for _ in range(15):
        collect(ctx)
        store(ctx)
        if not len(buffer):
            continue
        for _ in range(4):
            batch = buffer.sample(1)
            obs = (int(batch["obs"][0, 0]), int(batch["obs"][0, 1]))
            error = abs(float(q(obs)[batch["action"][0]]) - target(obs))
            fresh = DQN(env.single_observation_space, env.single_action_space, config, seed=1)
            assert fresh.learn(batch)["train/td_error"] == pytest.approx(error, rel=1e-4, abs=1e-4)
            checked.add(obs)
    assert len(checked) > 15


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_sees_the_same_returns_however_environments_reset(mode: AutoresetMode) -> None:
    env = scripted_env(*SCRIPTS, autoreset=mode)
    episodes = run_episodes(CountingActor().act, env, 7)
    first = [[sum(script.rewards) for script in (scripts * 3)[:3]] for scripts in SCRIPTS]
    # 7 episodes over 3 environments: 3, 2 and 2, whichever ends first.
    assert sorted(e.return_ for e in episodes) == sorted([*first[0], *first[1][:2], *first[2][:2]])
    again = run_episodes(CountingActor().act, env, 3)
    assert len(again) == 3, "a second evaluation is not disturbed by what the first left running"


def test_evaluating_changes_nothing_about_training_dqn() -> None:
    def curve(evaluate: EvaluateConfig) -> tuple[list[Any], Any]:
        seen: list[Any] = []
        policies: list[Any] = []

        def watch(policy: Any) -> Any:
            policies.append(policy)

            def remember(ctx: Any) -> None:
                mine = {k: v for k, v in ctx.metrics.items() if not k.startswith("eval/")}
                seen.append((ctx.env_step, ctx.env_episode, ctx.train_iter, mine))

            return remember

        with dqn(dqn_run(num_envs=4, evaluate=evaluate), watch=watch) as task:
            ctx = task.run()
        assert ("eval/return_mean" in ctx.metrics) == (evaluate is not NEVER)
        return seen, policies[0].state_dict()["model"]

    never, weights = curve(NEVER)
    often, same = curve(EvaluateConfig(every=1, episodes=3))
    assert never == often
    assert all(torch.equal(weights[name], same[name]) for name in weights)


@pytest.mark.parametrize("vectorization", ["sync", "native", "process"])
def test_no_two_environments_play_the_same_episode(vectorization: Any) -> None:
    config = ppo_run(env=EnvConfig(id="CartPole-v1", num_envs=3, vectorization=vectorization))
    with make_training_env(config) as env, make_evaluation_env(config) as evaluation_env:
        first = np.concatenate([env.obs, evaluation_env.obs, env.reset(), evaluation_env.reset()])
    assert len(np.unique(first, axis=0)) == len(first)


@pytest.mark.parametrize("pieces", [[12], [1, 4, 7]])
def test_schedules_follow_the_env_steps_alone_and_go_on_in_a_second_call(pieces: list[int]) -> None:
    """Four native environments whose dummy rows are no env steps: counting iterations would be wrong."""
    config = dqn_run(
        num_envs=4,
        policy=DQNConfig(hidden=(16,), learning_rate=0.1, learning_rate_decay="linear"),
        collect=dqn_recipe.CollectConfig(num_steps=5, epsilon_end=0.1, epsilon_steps=150),
    )
    before: list[int] = []
    seen: list[tuple[float, float]] = []

    def watch(policy: Any) -> Any:
        return lambda ctx: seen.append((ctx.epsilon, policy.learning_rate))

    with dqn(config, watch=watch) as task:
        task.before("collect.collector", lambda ctx: before.append(ctx.env_step))
        for max_step in pieces:
            ctx = task.run(max_step=max_step)
    assert before[0] == 0
    assert ctx.env_step < 12 * 20, "there were dummy rows"
    expected = [(max(0.1, 1 - 0.9 * n / 150), 0.1 * (1 - n / 300)) for n in before]
    np.testing.assert_allclose(seen, expected)


def test_a_rollout_of_dummy_rows_alone_is_no_batch() -> None:
    config = ppo_run(
        env=EnvConfig(id="CartPole-v1", num_envs=1, vectorization="native"),
        num_steps=1,
        stop=StopConfig(env_step=60),
    )
    with ppo(config) as task:
        ctx = task.run()
    assert ctx.env_step == ctx.train_iter == 60
    assert ctx.env_episode >= 1


def test_one_row_a_minibatch_still_teaches() -> None:
    """Normalised alone, an advantage would always be 0, and the policy never change."""
    policy = PPO(
        spaces.Box(-1, 1, (2,)), spaces.Discrete(2), PPOConfig(minibatches=4, epochs=1, value_coef=0.0)
    )
    before = policy.state_dict()["model"]
    obs = np.eye(2, dtype=np.float32)
    columns = policy.actor(np.random.default_rng(0)).sample(obs)
    numbers = {"advantage": np.ones(2, np.float32), "returns": np.ones(2, np.float32)}
    policy.learn({"obs": obs, **columns, **numbers})
    after = policy.state_dict()["model"]
    assert any(not torch.equal(before[name], after[name]) for name in before if name.startswith("actor"))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_learning_that_is_not_finite_ends_the_run_naming_the_metric(value: float) -> None:
    class Diverging(CountingPolicy):
        def learn(self, batch: Any) -> dict[str, float]:
            return super().learn(batch) | {"train/grad_norm": value if self.version == 3 else 1.0}

    ctx: Any = OnlineContext()

    def make_batch(ctx: Any) -> None:
        ctx.batch = None

    with Task(ctx) as task, pytest.raises(EngineError, match=r"train/grad_norm is (nan|inf) in update 3"):
        task.use(make_batch, train(Diverging())).run(max_step=9)


def test_what_cannot_work_leaves_no_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENGINE_RUNS", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for recipe, env, words, error in (
        ("ppo", "CartPole-v1", ["device=cuda"], ConfigError),
        ("dqn", "Pendulum-v1", [], EnvError),
        ("ppo", "CartPole-v9", [], EnvError),
    ):
        module = {"ppo": ppo_recipe, "dqn": dqn_recipe}[recipe]
        with pytest.raises(error):
            module.train(env, overrides=words)
        assert call(["run", f"engine.recipes.{recipe}:{recipe}", f"env.id={env}", *words]) == 3
        assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


class OwnModel(nn.Module):
    """A user's net for CartPole, with layers that behave differently while training."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1))
        self.heads = nn.Linear(16, 3)

    def policy(self, obs: torch.Tensor) -> torch.Tensor:
        return self.heads(self.body(obs))[:, :2]

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.heads(self.body(obs))[:, 2]

    def forward(self, obs: torch.Tensor) -> Any:
        return self.policy(obs), self.value(obs)


def own_ppo(config: PPORun, *, watch: Any = None) -> Task:
    """A user's recipe, with a model of his own."""
    env = make_training_env(config)
    policy = PPO(env.single_observation_space, env.single_action_space, config.policy, model=OwnModel())
    actor = policy.actor(np.random.default_rng(0))
    task = Task(OnlineContext()).own(env)
    task.use(Collector(actor, env, num_steps=config.collect.num_steps))
    task.use(estimate_advantage(policy, discount=0.99, gae_lambda=0.95))
    task.use(train(policy), publish_weights(policy, actor, task.bus))
    task.use(lambda ctx: ctx.finish() if ctx.total_step == 2 else None, name="stop")
    if watch is not None:
        task.use(watch(policy))
    return task


def test_a_run_with_a_model_of_ones_own_is_examined_and_loaded(tmp_path: Path) -> None:
    run = Run.create(env="CartPole-v1", algo="own", seed=0, run_dir=tmp_path / "run")
    run_experiment(own_ppo, ppo_run(), run=run, progress="off")
    assert run.state == "finished"
    assert run.result["episodes"] == 20
    with pytest.raises(ConfigError, match=r"model=\.\.\."):
        engine.load_policy(run.path)
    policy = engine.load_policy(run.path, model=OwnModel())
    assert policy.act(np.zeros((3, 4)), deterministic=True).shape == (3,)


def test_a_recipe_may_watch_no_policy(tmp_path: Path) -> None:
    def nothing(config: PPORun, *, watch: Any = None) -> Task:
        task = Task(OnlineContext())
        return task.use(lambda ctx: ctx.finish(), watch(None))

    run = Run.create(env="CartPole-v1", algo="own", seed=0, run_dir=tmp_path / "run")
    run_experiment(nothing, ppo_run(), run=run, progress="off")
    assert run.state == "finished"


def test_trying_a_model_of_ones_own_neither_changes_it_nor_draws_numbers() -> None:
    model = OwnModel()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(1)
    PPO(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), model=model)
    DQN(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), model=nn.Sequential(nn.Dropout(), nn.Linear(4, 2)))
    found = torch.rand(1)
    torch.manual_seed(1)
    nn.Linear(4, 2)
    assert torch.equal(found, torch.rand(1))
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, ()),
        spaces.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 1], np.float32)),
        spaces.Box(-1, 1, (2, 2), np.float64),
        spaces.MultiDiscrete([2, 3], start=[4, -7]),
        spaces.MultiBinary(3),
        spaces.Discrete(3, start=-5),
    ],
    ids=str,
)
def test_one_action_and_each_of_a_batch_are_in_the_space(space: Any, recwarn: Any) -> None:
    nested = spaces.Dict({"pair": spaces.Tuple([spaces.Discrete(3, start=2), spaces.Box(-1, 1, (2,))])})
    policy = PPO(nested, space, seed=1)
    one = {"pair": (3, np.zeros(2))}
    batch = {"pair": (np.array([2, 3, 4, 3]), np.zeros((4, 2)))}
    for deterministic in (True, False):
        assert space.contains(policy.act(one, deterministic=deterministic))
        assert all(space.contains(action) for action in policy.act(batch, deterministic=deterministic))
    single, several = (policy.act(obs, deterministic=True) for obs in (one, batch))
    np.testing.assert_allclose(several[[1, 3]], [single, single], atol=1e-6)
