"""The reference loops are right before they are quick."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "scripts" / "reference"
LOOPS = ["plain_ppo", "tuned_ppo", "plain_dqn", "tuned_dqn"]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"reference_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _keep_threads() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def naive_advantage(columns: list[np.ndarray], discount: float, lambda_: float) -> np.ndarray:
    """A_t as the sum of (discount * lambda)^k * delta_{t+k} until the episode's end, term by term."""
    reward, value, next_value, terminated, truncated = columns
    result = np.zeros(reward.shape)
    for t in range(reward.shape[0]):
        for i in range(reward.shape[1]):
            for k in range(reward.shape[0] - t):
                s = t + k
                future = 0.0 if terminated[s, i] else discount * next_value[s, i]
                result[t, i] += (discount * lambda_) ** k * (reward[s, i] + future - value[s, i])
                if terminated[s, i] or truncated[s, i]:
                    break
    return result


def random_columns(length: int) -> list[np.ndarray]:
    generator = np.random.default_rng(length)
    numbers = [generator.normal(size=(length, 3)).astype(np.float32) for _ in range(3)]
    return numbers + [generator.random((length, 3)) < 0.15 for _ in range(2)]


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 37])
@pytest.mark.parametrize("name", ["gae_scan", "gae_loop"])
def test_advantages_equal_the_naive_double_loop(name: str, length: int) -> None:
    columns = random_columns(length)
    advantage = getattr(load("gae_scan"), name)(*columns, 0.97, 0.9)
    np.testing.assert_allclose(advantage, naive_advantage(columns, 0.97, 0.9), atol=1e-5)


def test_tuned_ppo_estimates_the_naive_advantages() -> None:
    module = load("tuned_ppo")
    reward, value, _, terminated, truncated = random_columns(23)
    values = np.concatenate([value, value[:1] + 1])
    advantage = module.Gae(reward.shape)(reward, values, terminated, terminated | truncated)
    columns = [reward, value, values[1:], terminated, truncated]
    expected = naive_advantage(columns, module.DISCOUNT, module.GAE_LAMBDA)
    np.testing.assert_allclose(advantage, expected, atol=1e-5)


def test_tuned_ppo_acts_in_numpy_as_torch_would() -> None:
    module = load("tuned_ppo")
    nets = module.Nets(4, 2, seed=3)
    obs = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    with torch.no_grad():
        nets.flat.add_(0.1)  # an optimizer step must reach both views
        expected = nets.logits(torch.from_numpy(obs)).numpy()
    act = module.NumpyForward(nets.numpy[:6], 8)
    np.testing.assert_allclose(act(obs, np.empty((8, 2), np.float32)), expected, atol=1e-5)


def test_tuned_ppo_leaves_out_the_dummy_rows_and_only_those() -> None:
    rollout = load("tuned_ppo").Rollout()
    rollout.ended[5, 2] = True  # row 4 ended environment 2, so its row 5 is the dummy
    rollout.ended[128, 1] = True  # the dummy of this one is row 0 of the next rollout
    rows = rollout.valid_rows()
    assert sorted(set(range(1024)) - set(rows.tolist())) == [5 * 8 + 2]


def test_rows_that_tuned_ppo_keeps_are_real_steps_of_the_environment() -> None:
    gym = pytest.importorskip("gymnasium")
    env = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    env.reset(seed=0)
    ended = np.zeros(3, np.bool_)
    for _ in range(200):
        _, reward, terminated, truncated, _ = env.step(np.ones(3, np.int64))
        assert (reward == ~ended).all()  # CartPole pays 1 for each real step and 0 for the dummy
        ended = terminated | truncated
    env.close()


def test_episode_returns_reach_across_rollouts() -> None:
    rollout = load("tuned_ppo").Rollout()
    rollout.reward[:] = 1.0
    assert rollout.finished_returns() == []
    rollout.ended[3 + 1, 0] = True
    rollout.ended[9 + 1, 0] = True
    assert rollout.finished_returns() == [128 + 4, 6]


def test_tuned_dqn_evaluates_both_networks_in_numpy_as_torch_would() -> None:
    module = load("tuned_dqn")
    net = module.Net(4, 2, seed=3)
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    with torch.no_grad():
        before = net(torch.from_numpy(obs)).numpy()
        net.flat.mul_(1.5)
        after = net(torch.from_numpy(obs)).numpy()
    online, target = module.NumpyForward(net.numpy, 64), module.NumpyForward(net.target, 64)
    np.testing.assert_allclose(online(obs), after, atol=1e-5)
    np.testing.assert_allclose(target(obs), before, atol=1e-5)
    net.sync_target()
    np.testing.assert_allclose(target(obs), after, atol=1e-5)


def test_gradients_land_in_the_flat_tensor() -> None:
    net = load("tuned_dqn").Net(4, 2, seed=0)
    net(torch.ones(5, 4)).sum().backward()
    joined = torch.cat([weight.grad.reshape(-1) for weight in net.torch])
    assert torch.equal(net.flat.grad, joined)
    assert joined.abs().sum() > 0


def test_ring_keeps_the_newest_across_the_wrap() -> None:
    ring = load("numpy_ring").NumpyRing(10)
    for start in range(0, 24, 4):
        number = np.arange(start, start + 4)
        obs = np.repeat(number[:, None], 4, 1)
        ring.push(obs, number, number, obs + 1, number % 2 == 0)
    batch = ring.sample(500)
    assert len(ring) == 10
    assert set(batch["action"].tolist()) == set(range(14, 24))
    np.testing.assert_array_equal(batch["next_obs"][:, 0], batch["action"] + 1)
    np.testing.assert_array_equal(batch["terminated"], batch["action"] % 2 == 0)


@pytest.mark.parametrize("name", LOOPS)
def test_a_short_run_finishes_and_repeats_itself(name: str) -> None:
    torch.set_num_threads(1)
    module = load(name)
    (speed, first), (_, second) = module.run(1500, 5), module.run(1500, 5)
    assert speed > 0
    assert 1500 <= first["env_steps"] < 1500 + 1024
    assert first["episode_returns"] == second["episode_returns"]
    assert first["episode_returns"]


def test_references_import_nothing_from_engine() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert "engine" not in [name.split(".")[0] for name in names], path
