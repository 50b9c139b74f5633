"""DQN on CartPole-v1 in one plain loop, written the way one writes it first.

Reference for speed and for learning; imports nothing from engine.  One environment, one gradient step on
64 replayed transitions per env step, two relu layers of 64, a target network copied now and then.
Errors are squared: with values near 100 the rare row that ends an episode errs by dozens, which a Huber loss
of delta 1 counts as one, so that values stay too high and the policy falls apart after 10k steps.
Mnih et al. 2015, https://doi.org/10.1038/nature14236.
`python scripts/reference/plain_dqn.py [steps] [seed]`.
"""

from __future__ import annotations

import copy
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

CAPACITY = 100_000
BATCH_SIZE = 64
LEARNING_STARTS = 1_000
LEARNING_RATE = 1e-3  # falls to zero over the run
DISCOUNT = 0.99
TARGET_EVERY = 50
EPSILON_END = 0.05
EPSILON_STEPS = 5_000
MAX_GRAD_NORM = 1000.0


class Replay:
    """The newest CAPACITY transitions, one array a column."""

    def __init__(self) -> None:
        self.obs = np.zeros((CAPACITY, 4), np.float32)
        self.next_obs = np.zeros((CAPACITY, 4), np.float32)
        self.action = np.zeros(CAPACITY, np.int64)
        self.reward = np.zeros(CAPACITY, np.float32)
        self.terminated = np.zeros(CAPACITY, np.float32)
        self.count = 0

    def add(self, obs: Any, next_obs: Any, action: int, reward: float, terminated: bool) -> None:
        i = self.count % CAPACITY
        self.obs[i] = obs
        self.next_obs[i] = next_obs
        self.action[i] = action
        self.reward[i] = reward
        self.terminated[i] = terminated
        self.count += 1

    def sample(self, generator: np.random.Generator) -> tuple[torch.Tensor, ...]:
        index = generator.integers(0, min(self.count, CAPACITY), BATCH_SIZE)
        columns = (self.obs, self.next_obs, self.action, self.reward, self.terminated)
        return tuple(torch.as_tensor(column[index]) for column in columns)


def run(total_steps: int = 50_000, seed: int = 1) -> tuple[float, dict[str, Any]]:
    """Train for `total_steps` env steps; return steps per second and what came of it.

    The dictionary holds `env_steps`, `episode_returns` in order, and `act`, the greedy action of one obs.
    The speed is that of the steps with a gradient step, after the first LEARNING_STARTS.
    """
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    env = gym.make("CartPole-v1")
    network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    loss_function = nn.MSELoss()
    replay = Replay()

    def act(obs: np.ndarray) -> int:
        with torch.no_grad():
            return int(network(torch.as_tensor(obs)).argmax())

    obs, _ = env.reset(seed=seed)
    episode_return, episode_returns = 0.0, []
    start = time.perf_counter()
    for step in range(total_steps):
        if step == LEARNING_STARTS:
            start = time.perf_counter()
        epsilon = max(EPSILON_END, 1.0 - (1.0 - EPSILON_END) * step / EPSILON_STEPS)
        action = int(generator.integers(2)) if generator.random() < epsilon else act(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        # Only termination ends the future; a truncated row bootstraps from its true final observation.
        replay.add(obs, next_obs, action, float(reward), terminated)
        episode_return += float(reward)
        obs = next_obs
        if terminated or truncated:
            episode_returns.append(episode_return)
            episode_return = 0.0
            obs, _ = env.reset()

        if step >= LEARNING_STARTS:
            batch_obs, batch_next_obs, batch_action, batch_reward, batch_terminated = replay.sample(generator)
            with torch.no_grad():
                best = target(batch_next_obs).max(dim=1).values
                goal = batch_reward + DISCOUNT * (1.0 - batch_terminated) * best
            value = network(batch_obs).gather(1, batch_action.unsqueeze(1)).squeeze(1)
            loss = loss_function(value, goal)
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1.0 - step / total_steps)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            if step % TARGET_EVERY == 0:
                target.load_state_dict(network.state_dict())
    seconds = time.perf_counter() - start
    env.close()
    speed = (total_steps - LEARNING_STARTS) / seconds
    return speed, {"env_steps": total_steps, "episode_returns": episode_returns, "act": act}


def evaluate(act: Any, episodes: int = 20, seed: int = 1000) -> float:
    """Mean return of greedy episodes."""
    env = gym.make("CartPole-v1")
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total += float(reward)
            ended = terminated or truncated
    env.close()
    return total / episodes


if __name__ == "__main__":
    torch.set_num_threads(1)
    numbers = [int(argument) for argument in sys.argv[1:]]
    speed, info = run(*numbers)
    print(f"{speed:.0f} steps/s over {info['env_steps']} steps; greedy return {evaluate(info['act']):.1f}")
