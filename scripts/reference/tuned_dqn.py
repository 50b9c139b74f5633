"""DQN on CartPole-v1 tuned by hand: the speed a pipeline of `engine` has to match.

Reference for speed and for learning; imports nothing from engine and only public torch.  Settings and
losses are those of plain_dqn.py.  What makes it quick:

- acting and the target network run in numpy on memory shared with the parameters; the greedy forward is
  skipped on exploring steps; uniform numbers are drawn in blocks;
- a transition is one row of one float matrix, so that sampling is one `take` into memory of its own, which
  torch reads as views made once;
- all parameters lie in one flat tensor and so do their gradients: clipping is one norm, fused Adam one
  tensor, syncing the target one copy;
- the environment is the plain single one without checker; one torch thread.

Gradients come from autograd through a loss anybody can read and change: no hand-derived backward pass.
`python scripts/reference/tuned_dqn.py [steps] [seed]`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch.nn import functional as F

CAPACITY = 100_000
BATCH_SIZE = 64
LEARNING_STARTS = 1_000
LEARNING_RATE = 1e-3  # falls to zero over the run
DISCOUNT = 0.99
TARGET_EVERY = 50
EPSILON_END = 0.05
EPSILON_STEPS = 5_000
MAX_GRAD_NORM = 1000.0
HIDDEN = 64
BLOCK = 1024  # steps whose random numbers are drawn at once

Array = np.ndarray


class Net:
    """Two relu layers and a linear one, over one flat parameter tensor and one flat gradient.

    Weights are stored (inputs, outputs), so that both numpy's and torch's products read them as they lie.
    """

    def __init__(self, inputs: int, actions: int, seed: int) -> None:
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(i, o) for i, o in ((inputs, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, actions))]
        start = [
            p.detach().t() if p.ndim == 2 else p.detach() for layer in layers for p in layer.parameters()
        ]
        sizes = [p.numel() for p in start]
        self.flat = torch.cat([p.reshape(-1) for p in start])
        self.flat.grad = torch.zeros_like(self.flat)
        self.torch: list[torch.Tensor] = []
        for piece, grad, like in zip(self.flat.split(sizes), self.flat.grad.split(sizes), start, strict=True):
            weight = piece.view(like.shape).detach().requires_grad_()
            weight.grad = grad.view(like.shape)
            self.torch.append(weight)
        # The target network lives in numpy alone, laid out alike.
        self.flat_numpy = self.flat.numpy()
        self.flat_target = self.flat_numpy.copy()
        ends = np.cumsum(sizes)[:-1]
        self.numpy = [a.reshape(p.shape) for a, p in zip(np.split(self.flat_numpy, ends), start, strict=True)]
        self.target = [
            a.reshape(p.shape) for a, p in zip(np.split(self.flat_target, ends), start, strict=True)
        ]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        w1, b1, w2, b2, w3, b3 = self.torch
        x = torch.relu(torch.addmm(b1, x, w1))
        x = torch.relu(torch.addmm(b2, x, w2))
        return torch.addmm(b3, x, w3)

    def sync_target(self) -> None:
        np.copyto(self.flat_target, self.flat_numpy)


class NumpyForward:
    """The same forward pass for a fixed number of rows, into memory of its own, seeing every new weight."""

    def __init__(self, weights: list[Array], rows: int) -> None:
        self.weights = weights
        self.first = np.empty((rows, weights[1].size), np.float32)
        self.second = np.empty((rows, weights[3].size), np.float32)
        self.out = np.empty((rows, weights[5].size), np.float32)

    def __call__(self, x: Array) -> Array:
        w1, b1, w2, b2, w3, b3 = self.weights
        first, second, out = self.first, self.second, self.out
        np.dot(x, w1, out=first)
        np.add(first, b1, out=first)
        np.maximum(first, 0.0, out=first)
        np.dot(first, w2, out=second)
        np.add(second, b2, out=second)
        np.maximum(second, 0.0, out=second)
        np.dot(second, w3, out=out)
        return np.add(out, b3, out=out)


def run(total_steps: int = 50_000, seed: int = 1) -> tuple[float, dict[str, Any]]:
    """Train for `total_steps` env steps; return steps per second and what came of it.

    The dictionary holds `env_steps`, `episode_returns` in order, and `act`, the greedy action of one obs.
    The speed is that of the steps with a gradient step, after the first LEARNING_STARTS.  Sets torch to
    one thread.
    """
    torch.set_num_threads(1)
    generator = np.random.default_rng(seed)
    env = gym.make("CartPole-v1", disable_env_checker=True)
    net = Net(4, 2, seed)
    optimizer = torch.optim.Adam([net.flat], lr=LEARNING_RATE, fused=True)
    forward_one = NumpyForward(net.numpy, 1)
    forward_target = NumpyForward(net.target, BATCH_SIZE)
    assert net.flat.grad is not None
    grad = net.flat.grad.numpy()

    # A row: obs 0-3, next_obs 4-7, action 8, reward 9, discount 10 (0 where terminated).
    ring = np.zeros((CAPACITY, 11), np.float32)
    batch = np.empty((BATCH_SIZE, 11), np.float32)
    batch_obs = torch.from_numpy(batch)[:, 0:4]
    batch_next_obs, batch_reward, batch_discount = batch[:, 4:8], batch[:, 9], batch[:, 10]
    chosen = np.empty((BATCH_SIZE, 1), np.int64)
    batch_action = torch.from_numpy(chosen)
    goal = np.empty((BATCH_SIZE, 1), np.float32)
    batch_goal = torch.from_numpy(goal)

    def act(obs: Array) -> int:
        left, right = forward_one(obs.reshape(1, 4))[0].tolist()
        return int(right > left)

    obs, _ = env.reset(seed=seed)
    episode_return, episode_returns = 0.0, []
    coins: list[list[float]] = []
    draws = np.empty((BLOCK, BATCH_SIZE))
    start = time.perf_counter()
    for step in range(total_steps):
        if step == LEARNING_STARTS:
            start = time.perf_counter()
        if step % BLOCK == 0:
            coins = generator.random((BLOCK, 2)).tolist()
            generator.random(out=draws)
        coin, side = coins[step % BLOCK]
        epsilon = max(EPSILON_END, 1.0 - (1.0 - EPSILON_END) * step / EPSILON_STEPS)
        action = int(side < 0.5) if coin < epsilon else act(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        # Only termination ends the future; a truncated row bootstraps from its true final observation.
        row = ring[step % CAPACITY]
        row[0:4] = obs
        row[4:8] = next_obs
        row[8:11] = action, reward, 0.0 if terminated else DISCOUNT
        episode_return += float(reward)
        obs = next_obs
        if terminated or truncated:
            episode_returns.append(episode_return)
            episode_return = 0.0
            obs, _ = env.reset()

        if step >= LEARNING_STARTS:
            index = (draws[step % BLOCK] * min(step + 1, CAPACITY)).astype(np.int64)
            ring.take(index, 0, out=batch, mode="clip")
            chosen[:, 0] = batch[:, 8]
            best = forward_target(batch_next_obs)
            np.maximum(best[:, 0], best[:, 1], out=goal[:, 0])
            goal[:, 0] *= batch_discount
            goal[:, 0] += batch_reward
            loss = F.mse_loss(net(batch_obs).gather(1, batch_action), batch_goal)
            grad.fill(0.0)
            loss.backward()
            squares = float(grad.dot(grad))
            if squares > MAX_GRAD_NORM**2:
                np.multiply(grad, MAX_GRAD_NORM / squares**0.5, out=grad)
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1.0 - step / total_steps)
            optimizer.step()
            if step % TARGET_EVERY == 0:
                net.sync_target()
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
    numbers = [int(argument) for argument in sys.argv[1:]]
    speed, info = run(*numbers)
    print(f"{speed:.0f} steps/s over {info['env_steps']} steps; greedy return {evaluate(info['act']):.1f}")
