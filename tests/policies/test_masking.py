"""A model of the user's own that masks actions: -inf teaches exactly what a very small logit does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from engine.policies.config import IMPALAConfig, PPOConfig
from engine.policies.impala import IMPALA
from engine.policies.ppo import PPO

BOX = spaces.Box(-1, 1, (3,))
ACTIONS = [spaces.Discrete(4), spaces.MultiDiscrete([3, 2])]
STEPS, ENVS = 8, 6


class Masking(nn.Module):
    """Rules out the first action if the first observation is positive, the last if the second is."""

    def __init__(self, outputs: int, masked: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.actor, self.critic = nn.Linear(3, outputs), nn.Linear(3, 1)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        self.masked = masked

    def policy(self, obs: torch.Tensor) -> torch.Tensor:
        logits = self.actor(obs)
        ruled_out = torch.zeros_like(logits, dtype=torch.bool)
        ruled_out[:, 0], ruled_out[:, -1] = obs[:, 0] > 0, obs[:, 1] > 0
        return logits.masked_fill(ruled_out, self.masked)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs).squeeze(-1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.policy(obs), self.value(obs)


def taught(algorithm: Any, action_space: Any, masked: float) -> tuple[torch.Tensor, dict[str, float], Any]:
    """Return the parameters and the last metrics after five updates, and the last actions."""
    config = {PPO: PPOConfig, IMPALA: IMPALAConfig}[algorithm](entropy_coef=0.1, learning_rate=0.01)
    outputs = 4 if isinstance(action_space, spaces.Discrete) else 5
    policy = algorithm(BOX, action_space, config, model=Masking(outputs, masked), seed=1)
    actor = policy.actor(np.random.default_rng(2))
    for update in range(5):
        random = np.random.default_rng(update)
        obs = random.normal(size=(STEPS + 1, ENVS, 3)).astype(np.float32)
        columns = actor.sample(obs[:-1].reshape(-1, 3))
        columns = {name: column.reshape(STEPS, ENVS, *column.shape[1:]) for name, column in columns.items()}
        numbers = random.normal(size=(3, STEPS, ENVS)).astype(np.float32)
        rows = dict(zip(("reward", "advantage", "returns"), numbers, strict=True))
        flags = dict.fromkeys(("terminated", "truncated"), np.zeros((STEPS, ENVS), bool))
        metrics = policy.learn({"obs": obs[:-1], "next_obs": obs[1:], **columns, **rows, **flags})
        actor.load(policy)
    parameters = nn.utils.parameters_to_vector(policy.model.parameters()).detach()
    return parameters, metrics, (obs[:-1], columns["action"])


@pytest.mark.parametrize("algorithm", [PPO, IMPALA])
@pytest.mark.parametrize("action_space", ACTIONS, ids=str)
def test_minus_infinity_teaches_what_a_very_small_logit_does(algorithm, action_space) -> None:
    found, metrics, (obs, action) = taught(algorithm, action_space, -np.inf)
    expected, others, _ = taught(algorithm, action_space, -1e9)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert metrics == pytest.approx(others, rel=1e-4, abs=1e-6)
    first, last = (action, action) if action.ndim == 2 else (action[..., 0], action[..., 1])
    assert not (first[obs[..., 0] > 0] == 0).any()
    assert not (last[obs[..., 1] > 0] == (3 if action.ndim == 2 else 1)).any()
