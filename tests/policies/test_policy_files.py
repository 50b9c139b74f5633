"""Policies written to a folder come back as they were, without pickle."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from engine.errors import ConfigError, StateError
from engine.policies import files
from engine.policies.config import DQNConfig, IMPALAConfig, PPOConfig
from engine.policies.dqn import DQN
from engine.policies.files import load_policy, save_policy
from engine.policies.impala import IMPALA
from engine.policies.ppo import PPO

BOX = spaces.Box(np.array([-np.inf, -1, 0], np.float32), np.array([np.inf, 1, 5], np.float32))
NESTED = spaces.Dict({"x": BOX, "pair": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])})


@pytest.mark.parametrize(
    "policy",
    [
        PPO(BOX, spaces.Discrete(4, start=1), PPOConfig(hidden=(16,), shared=True, target_kl=0.1), seed=1),
        PPO(NESTED, spaces.Box(-2, 2, (2,)), seed=2),
        IMPALA(BOX, spaces.MultiDiscrete([2, 3]), IMPALAConfig(hidden=(8,)), seed=4),
        DQN(NESTED, spaces.Discrete(4), DQNConfig(dueling=True, activation="gelu"), seed=3),
    ],
    ids=["ppo", "ppo-gaussian", "impala", "dqn"],
)
def test_a_loaded_policy_is_the_saved_one(policy, tmp_path) -> None:
    policy.version = 7
    again = load_policy(save_policy(policy, tmp_path / "best"))
    assert type(again) is type(policy)
    assert (again.config, again.version) == (policy.config, 7)
    assert (again.observation_space, again.action_space) == (policy.observation_space, policy.action_space)
    policy.observation_space.seed(0)
    for _ in range(5):
        obs = policy.observation_space.sample()
        a, b = (p.act(obs, deterministic=True) for p in (policy, again))
        np.testing.assert_array_equal(a, b)


def test_saving_again_replaces_what_was_there(tmp_path) -> None:
    first, second = (PPO(BOX, spaces.Discrete(2), seed=seed) for seed in (1, 2))
    save_policy(first, tmp_path)
    save_policy(second, tmp_path)
    loaded = load_policy(tmp_path).model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in second.model.state_dict().items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.json", "policy.safetensors"]


def test_a_failed_save_leaves_the_old_policy(tmp_path, monkeypatch) -> None:
    policy = PPO(BOX, spaces.Discrete(2), seed=1)
    save_policy(policy, tmp_path)
    before = (tmp_path / "policy.safetensors").read_bytes()
    monkeypatch.setattr(
        files.Path, "write_bytes", lambda path, data: path.touch() or (_ for _ in ()).throw(OSError)
    )
    with pytest.raises(OSError):
        save_policy(PPO(BOX, spaces.Discrete(2), seed=2), tmp_path)
    assert (tmp_path / "policy.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_the_description_is_plain_json(tmp_path) -> None:
    save_policy(PPO(BOX, spaces.Discrete(2)), tmp_path)
    found = json.loads((tmp_path / "policy.json").read_text())
    assert found["algorithm"] == "ppo"
    assert found["config"]["hidden"] == [64, 64]
    assert found["observation_space"]["low"] == ["-inf", -1.0, 0.0]


def test_a_model_of_ones_own_must_be_given_to_load(tmp_path) -> None:
    def own() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))

    policy = DQN(BOX, spaces.Discrete(2), model=own())
    save_policy(policy, tmp_path)
    with pytest.raises(ConfigError, match=r"torch\.nn\.modules\.container:Sequential.*model=\.\.\."):
        load_policy(tmp_path)
    again = load_policy(tmp_path, model=own())
    np.testing.assert_array_equal(
        again._forward(np.ones((4, 3), np.float32)), policy._forward(np.ones((4, 3), np.float32))
    )


def test_what_is_no_policy_is_named(tmp_path) -> None:
    with pytest.raises(StateError, match="no policy in"):
        load_policy(tmp_path)
    (tmp_path / "policy.safetensors").write_bytes(b"nonsense")
    with pytest.raises(StateError, match="damaged"):
        load_policy(tmp_path)
