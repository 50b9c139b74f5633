"""Learning on tensors, as devices other than the CPU do it, computes what learning in numpy does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from engine.policies.config import DQNConfig, IMPALAConfig, PPOConfig
from engine.policies.dqn import DQN
from engine.policies.impala import IMPALA
from engine.policies.ppo import PPO
from engine.policies.trainers import AutogradTrainer
from engine.tree import as_tree

BOX, ROWS = spaces.Box(-1, 1, (3,)), 64


def as_on_a_device(policy: Any) -> Any:
    """Send a CPU policy down the branch of other devices."""
    policy._on_cpu = False
    policy._trainer = AutogradTrainer(policy.model, policy._weights, policy.device)
    policy._trainer._on_cpu = False
    policy._weights._array = None
    policy._optimizer._chunks = []
    return policy


def agree(make: Any, batch: dict[str, Any]) -> None:
    plain, moved = make(), as_on_a_device(make())
    for _ in range(3):
        expected, found = plain.learn(as_tree(batch)), moved.learn(as_tree(batch))
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert all(type(value) is float for value in found.values())
    for a, b in zip(plain.model.parameters(), moved.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    "action_space", [spaces.Discrete(2), spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2,))]
)
def test_ppo_learns_the_same(action_space) -> None:
    config = PPOConfig(epochs=2, target_kl=0.5, value_clip=0.2, entropy_coef=0.01)
    random = np.random.default_rng(0)
    obs = random.normal(size=(ROWS, 3)).astype(np.float32)
    columns = PPO(BOX, action_space, config, seed=1).actor(random).sample(obs)
    numbers = {
        name: random.normal(size=ROWS).astype(np.float32) for name in ("advantage", "returns", "value")
    }
    batch = {"obs": obs, **columns, **numbers, "valid": np.arange(ROWS) % 5 != 0}
    agree(lambda: PPO(BOX, action_space, config, seed=1), batch)


@pytest.mark.parametrize("valid", [None, np.arange(64).reshape(8, 8) % 5 != 0], ids=["all", "some"])
@pytest.mark.parametrize(
    "action_space", [spaces.Discrete(2), spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2,))]
)
def test_impala_learns_the_same(action_space, valid) -> None:
    config = IMPALAConfig(entropy_coef=0.01, rho_clip=2.0, c_clip=None)
    random = np.random.default_rng(0)
    obs, next_obs = random.normal(size=(2, ROWS, 3)).astype(np.float32)
    columns = {"obs": obs, "next_obs": next_obs}
    columns |= IMPALA(BOX, action_space, config, seed=2).actor(random).sample(obs)
    batch = {name: column.reshape(8, 8, *column.shape[1:]) for name, column in columns.items()}
    batch["reward"] = random.normal(size=(8, 8)).astype(np.float32)
    batch["terminated"], batch["truncated"] = random.random((2, 8, 8)) < 0.2
    batch["version"] = np.zeros((8, 8), np.int64)
    if valid is not None:
        batch["valid"] = valid
    agree(lambda: IMPALA(BOX, action_space, config, seed=1), batch)


@pytest.mark.parametrize("double", [False, True])
def test_dqn_learns_the_same(double) -> None:
    random = np.random.default_rng(0)
    obs, next_obs = random.normal(size=(2, ROWS, 3)).astype(np.float32)
    batch = {"obs": obs, "next_obs": next_obs, "action": random.integers(0, 3, ROWS)}
    batch |= {"reward": random.normal(size=ROWS).astype(np.float32), "terminated": random.random(ROWS) < 0.3}
    batch["weight"] = random.random(ROWS).astype(np.float32)
    agree(lambda: DQN(BOX, spaces.Discrete(3), DQNConfig(double=double, target_update=2), seed=1), batch)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_policy_on_cuda_learns_and_its_actor_acts_on_the_cpu() -> None:
    policy = PPO(BOX, spaces.Discrete(2), device="cuda")
    actor, obs = policy.actor(np.random.default_rng(0)), np.zeros((8, 3), np.float32)
    columns = actor.sample(obs)
    policy.learn(as_tree({"obs": obs, **columns, "advantage": np.ones(8, "f4"), "returns": np.ones(8, "f4")}))
    actor.load(policy)
    np.testing.assert_allclose(actor.sample(obs)["logits"], policy._forward(obs)[0], atol=1e-5)
