"""PPO on CartPole-v1 in one plain loop, written the way one writes it first.

Reference for speed and for learning; imports nothing from engine.  Torch modules for acting and
learning, distribution objects, one optimizer over all parameters, advantages by a loop over time.
Schulman et al. 2017, https://arxiv.org/abs/1707.06347.
`python scripts/reference/plain_ppo.py [steps] [seed]`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

NUM_ENVS = 8
NUM_STEPS = 128
EPOCHS = 4
MINIBATCHES = 4
LEARNING_RATE = 1e-3  # falls to zero over the run
DISCOUNT = 0.99
GAE_LAMBDA = 0.95
CLIP = 0.2
ENTROPY_WEIGHT = 0.01
VALUE_WEIGHT = 0.5
MAX_GRAD_NORM = 0.5


def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights and zero bias."""
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    """Two separate networks of two tanh layers: a critic and an actor."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        gain = 2**0.5
        self.critic = nn.Sequential(
            layer(inputs, 64, gain), nn.Tanh(), layer(64, 64, gain), nn.Tanh(), layer(64, 1, 1.0)
        )
        self.actor = nn.Sequential(
            layer(inputs, 64, gain), nn.Tanh(), layer(64, 64, gain), nn.Tanh(), layer(64, actions, 0.01)
        )

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs).squeeze(-1)

    def policy(self, obs: torch.Tensor) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=self.actor(obs))


def run(total_steps: int = 100_000, seed: int = 1) -> tuple[float, dict[str, Any]]:
    """Train for about `total_steps` real env steps; return steps per second and what came of it.

    The dictionary holds `env_steps` (dummy rows of the autoreset are not counted), `episode_returns` of
    the episodes that ended, in order, and `agent`.
    """
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    env = gym.make_vec("CartPole-v1", num_envs=NUM_ENVS, vectorization_mode="vector_entry_point")
    agent = Agent(4, 2)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)

    first_obs, _ = env.reset(seed=seed)
    next_obs = torch.as_tensor(first_obs)
    ended = torch.zeros(NUM_ENVS, dtype=torch.bool)  # the next step of these is the dummy step of NEXT_STEP
    running_return = np.zeros(NUM_ENVS)
    episode_returns: list[float] = []
    env_steps = 0

    start = time.perf_counter()
    while env_steps < total_steps:
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * max(1.0 - env_steps / total_steps, 0.0)

        obs = torch.zeros(NUM_STEPS, NUM_ENVS, 4)
        action = torch.zeros(NUM_STEPS, NUM_ENVS, dtype=torch.int64)
        log_prob = torch.zeros(NUM_STEPS, NUM_ENVS)
        reward = torch.zeros(NUM_STEPS, NUM_ENVS)
        terminated = torch.zeros(NUM_STEPS, NUM_ENVS, dtype=torch.bool)
        truncated = torch.zeros(NUM_STEPS, NUM_ENVS, dtype=torch.bool)
        valid = torch.zeros(NUM_STEPS, NUM_ENVS, dtype=torch.bool)
        value = torch.zeros(NUM_STEPS, NUM_ENVS)
        next_value = torch.zeros(NUM_STEPS, NUM_ENVS)

        for t in range(NUM_STEPS):
            obs[t] = next_obs
            valid[t] = ~ended
            with torch.no_grad():
                policy = agent.policy(next_obs)
                action[t] = policy.sample()
                log_prob[t] = policy.log_prob(action[t])
                value[t] = agent.value(next_obs)
            new_obs, new_reward, new_terminated, new_truncated, _ = env.step(action[t].numpy())
            next_obs = torch.as_tensor(new_obs)
            reward[t] = torch.as_tensor(new_reward)
            terminated[t] = torch.as_tensor(new_terminated)
            truncated[t] = torch.as_tensor(new_truncated)
            ended = terminated[t] | truncated[t]
            running_return += new_reward
            for i in np.flatnonzero(ended.numpy()):
                episode_returns.append(float(running_return[i]))
                running_return[i] = 0.0

        # Under NEXT_STEP the observation after step t is the true successor of row t, also where an episode
        # ends there: the reset comes one step later.  So its value is the right one to bootstrap from.
        with torch.no_grad():
            next_value[:-1] = value[1:]
            next_value[-1] = agent.value(next_obs)
            advantage = torch.zeros(NUM_STEPS, NUM_ENVS)
            following = torch.zeros(NUM_ENVS)
            for t in reversed(range(NUM_STEPS)):
                delta = reward[t] + DISCOUNT * next_value[t] * ~terminated[t] - value[t]
                following = delta + DISCOUNT * GAE_LAMBDA * ~(terminated[t] | truncated[t]) * following
                advantage[t] = following
            returns = advantage + value

        rows = np.flatnonzero(valid.numpy())
        env_steps += len(rows)
        batch_obs = obs.reshape(-1, 4)
        batch_action = action.reshape(-1)
        batch_log_prob = log_prob.reshape(-1)
        batch_advantage = advantage.reshape(-1)
        batch_returns = returns.reshape(-1)
        for _ in range(EPOCHS):
            generator.shuffle(rows)
            for part in np.array_split(rows, MINIBATCHES):
                index = torch.as_tensor(part)
                policy = agent.policy(batch_obs[index])
                ratio = (policy.log_prob(batch_action[index]) - batch_log_prob[index]).exp()
                weight = batch_advantage[index]
                weight = (weight - weight.mean()) / (weight.std() + 1e-8)
                policy_loss = -torch.min(weight * ratio, weight * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                value_loss = 0.5 * (agent.value(batch_obs[index]) - batch_returns[index]).pow(2).mean()
                entropy = policy.entropy().mean()
                loss = policy_loss + VALUE_WEIGHT * value_loss - ENTROPY_WEIGHT * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
                optimizer.step()
    seconds = time.perf_counter() - start
    env.close()
    return env_steps / seconds, {"env_steps": env_steps, "episode_returns": episode_returns, "agent": agent}


def evaluate(agent: Agent, episodes: int = 20, seed: int = 1000) -> float:
    """Mean return of one greedy episode in each of `episodes` environments."""
    env = gym.make_vec("CartPole-v1", num_envs=episodes, vectorization_mode="vector_entry_point")
    obs, _ = env.reset(seed=seed)
    alive, total = np.ones(episodes, np.bool_), 0.0
    while alive.any():
        with torch.no_grad():
            action = agent.actor(torch.as_tensor(obs)).argmax(dim=1).numpy()
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward[alive].sum())
        alive &= ~(terminated | truncated)
    env.close()
    return total / episodes


if __name__ == "__main__":
    torch.set_num_threads(1)
    numbers = [int(argument) for argument in sys.argv[1:]]
    speed, info = run(*numbers)
    print(f"{speed:.0f} steps/s over {info['env_steps']} steps; greedy return {evaluate(info['agent']):.1f}")
