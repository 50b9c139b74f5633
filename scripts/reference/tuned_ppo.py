"""PPO on CartPole-v1 tuned by hand: the speed a pipeline of `engine` has to match.

Reference for speed and for learning; imports nothing from engine and only public torch.  Settings and
losses are those of plain_ppo.py.  What makes it quick, by what each saves on a small machine:

- acting and the value of a whole rollout run in numpy on the parameters' own memory: at these sizes a
  torch forward is mostly dispatch;
- actions are sampled by the Gumbel trick from noise drawn once a rollout; log-probabilities of the
  rollout are computed once at its end from the kept logits; so is the critic;
- all parameters lie in one flat tensor and so do their gradients: clipping is one norm, fused Adam one
  tensor; the weights are views of it;
- advantages by a doubling scan; each epoch gathers its shuffled rows once and cuts them into
  minibatches by slices; nothing is allocated per step by this file;
- one torch thread, and no product of numpy's large enough for BLAS to start a second.

Gradients come from autograd through a loss anybody can read and change: no hand-derived backward pass.
`python scripts/reference/tuned_ppo.py [steps] [seed]`.
"""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch.nn import functional as F

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
HIDDEN = 64
# Rows in one product: above 64 x 64 x 64 OpenBLAS starts threads, which cost a busy machine half its speed.
JUDGED = 64

Array = np.ndarray


class Nets:
    """Actor and critic of two tanh layers each, over one flat parameter tensor and one flat gradient.

    Weights are stored (inputs, outputs), so that both numpy's and torch's products read them as they lie.
    """

    def __init__(self, inputs: int, actions: int, seed: int) -> None:
        torch.manual_seed(seed)
        shapes: list[tuple[int, ...]] = []
        for outputs in (actions, 1):
            shapes += [
                (inputs, HIDDEN),
                (HIDDEN,),
                (HIDDEN, HIDDEN),
                (HIDDEN,),
                (HIDDEN, outputs),
                (outputs,),
            ]
        sizes = [int(np.prod(shape)) for shape in shapes]
        self.flat = torch.zeros(sum(sizes))
        self.flat.grad = torch.zeros(sum(sizes))
        self.torch: list[torch.Tensor] = []
        self.numpy: list[Array] = []
        pieces = zip(self.flat.split(sizes), self.flat.grad.split(sizes), shapes, strict=True)
        for i, (piece, grad, shape) in enumerate(pieces):
            weight = piece.view(shape).detach()
            if len(shape) == 2:
                gain = 2**0.5 if i % 6 < 4 else (0.01 if i < 6 else 1.0)
                torch.nn.init.orthogonal_(weight.t(), gain)
            self.numpy.append(weight.numpy())
            weight.requires_grad_()
            weight.grad = grad.view(shape)
            self.torch.append(weight)

    def logits(self, obs: torch.Tensor) -> torch.Tensor:
        return forward(self.torch[:6], obs)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return forward(self.torch[6:], obs).view(-1)


def forward(weights: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Two tanh layers and a linear one."""
    w1, b1, w2, b2, w3, b3 = weights
    x = torch.tanh(torch.addmm(b1, x, w1))
    x = torch.tanh(torch.addmm(b2, x, w2))
    return torch.addmm(b3, x, w3)


class NumpyForward:
    """The same forward pass for a fixed number of rows, into memory of its own, seeing every new weight."""

    def __init__(self, weights: list[Array], rows: int) -> None:
        self.weights = weights
        self.first = np.empty((rows, weights[1].size), np.float32)
        self.second = np.empty((rows, weights[3].size), np.float32)

    def __call__(self, x: Array, out: Array) -> Array:
        w1, b1, w2, b2, w3, b3 = self.weights
        first, second = self.first, self.second
        np.dot(x, w1, out=first)
        np.add(first, b1, out=first)
        np.tanh(first, out=first)
        np.dot(first, w2, out=second)
        np.add(second, b2, out=second)
        np.tanh(second, out=second)
        np.dot(second, w3, out=out)
        return np.add(out, b3, out=out)


class Gae:
    """Advantages (T, B) by a doubling scan, into memory of its own (see gae_scan.py)."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.total = np.empty(shape, np.float32)
        self.factor = np.empty(shape, np.float32)
        self.scratch = np.empty(shape, np.float32)

    def __call__(self, reward: Array, values: Array, terminated: Array, ended: Array) -> Array:
        """`values` (T + 1, B): row t + 1 is the value of the true successor of row t."""
        total, factor, scratch = self.total, self.factor, self.scratch
        np.multiply(values[1:], DISCOUNT, out=total)
        total[terminated] = 0.0
        total += reward
        total -= values[:-1]
        factor[:] = DISCOUNT * GAE_LAMBDA
        factor[ended] = 0.0
        length, span = len(total), 1
        while span < length:
            rest = scratch[: length - span]
            np.multiply(factor[:-span], total[span:], out=rest)
            total[:-span] += rest
            np.multiply(factor[:-span], factor[span:], out=rest)
            factor[:-span] = rest
            factor[-span:] = 0.0
            span *= 2
        return total


class Rollout:
    """Preallocated storage of NUM_STEPS rows of NUM_ENVS, and what is derived from it."""

    def __init__(self) -> None:
        shape = (NUM_STEPS, NUM_ENVS)
        self.obs = np.zeros((NUM_STEPS + 1, NUM_ENVS, 4), np.float32)
        self.logits = np.zeros((*shape, 2), np.float32)
        self.action = np.zeros(shape, np.int64)
        self.reward = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, np.bool_)
        self.truncated = np.zeros(shape, np.bool_)
        self.ended = np.zeros((NUM_STEPS + 1, NUM_ENVS), np.bool_)  # row t: did row t - 1 end an episode
        self.running_return = np.zeros(NUM_ENVS)

    def valid_rows(self) -> Array:
        """Flat indices of the rows to learn from: the row after an end is the dummy step of NEXT_STEP."""
        return np.flatnonzero(~self.ended[:-1].ravel())

    def finished_returns(self) -> list[float]:
        """Returns of the episodes that ended in this rollout, in order of time."""
        total = np.cumsum(self.reward, axis=0, dtype=np.float64)
        total += self.running_return
        counted = np.zeros(NUM_ENVS)
        finished = []
        for t, i in zip(*np.nonzero(self.ended[1:]), strict=True):
            finished.append(float(total[t, i] - counted[i]))
            counted[i] = total[t, i]
        self.running_return = total[-1] - counted
        return finished


def run(total_steps: int = 100_000, seed: int = 1) -> tuple[float, dict[str, Any]]:
    """Train for about `total_steps` real env steps; return steps per second and what came of it.

    The dictionary holds `env_steps` (dummy rows of the autoreset are not counted), `episode_returns` of
    the episodes that ended, in order, and `nets`.  Sets torch to one thread.
    """
    torch.set_num_threads(1)
    generator = np.random.default_rng(seed)
    env = gym.make_vec("CartPole-v1", num_envs=NUM_ENVS, vectorization_mode="vector_entry_point")
    nets = Nets(4, 2, seed)
    optimizer = torch.optim.Adam([nets.flat], lr=LEARNING_RATE, eps=1e-5, fused=True)
    act = NumpyForward(nets.numpy[:6], NUM_ENVS)
    judge = NumpyForward(nets.numpy[6:], JUDGED)
    judge_last = NumpyForward(nets.numpy[6:], NUM_ENVS)
    estimate = Gae((NUM_STEPS, NUM_ENVS))
    rollout = Rollout()

    size = NUM_STEPS * NUM_ENVS
    noise = np.empty((NUM_STEPS, NUM_ENVS, 2), np.float32)
    scores = np.empty((NUM_ENVS, 2), np.float32)
    values = np.empty(((NUM_STEPS + 1) * NUM_ENVS, 1), np.float32)
    log_probs = np.empty((size, 2), np.float32)
    columns = np.empty((3, size), np.float32)  # log_prob, advantage, returns of every row
    every_row = np.arange(size)
    # One epoch's rows in shuffled order; torch reads numpy's memory.
    epoch_obs, epoch_action = np.empty((size, 4), np.float32), np.empty(size, np.int64)
    epoch_columns = np.empty((3, size), np.float32)
    torch_obs, torch_action = torch.from_numpy(epoch_obs), torch.from_numpy(epoch_action)
    torch_columns = torch.from_numpy(epoch_columns)
    # loss = value_weight / 2 * value_loss - surrogate - entropy_weight * entropy, as the weight of each term.
    loss_weights = tuple(torch.tensor(x) for x in (-1.0, 0.5 * VALUE_WEIGHT, 2 * ENTROPY_WEIGHT))
    flat_grad = nets.flat.grad
    assert flat_grad is not None
    grad = flat_grad.numpy()

    obs, action, reward = rollout.obs, rollout.action, rollout.reward
    obs[NUM_STEPS], _ = env.reset(seed=seed)
    episode_returns: list[float] = []
    env_steps = 0

    start = time.perf_counter()
    while env_steps < total_steps:
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * max(1.0 - env_steps / total_steps, 0.0)

        # Collect.  -log(exponential) is Gumbel noise; argmax of logits plus it is a softmax sample.
        generator.standard_exponential(dtype=np.float32, out=noise)
        np.log(noise, out=noise)
        obs[0] = obs[NUM_STEPS]
        rollout.ended[0] = rollout.ended[NUM_STEPS]
        for t in range(NUM_STEPS):
            np.subtract(act(obs[t], rollout.logits[t]), noise[t], out=scores)
            scores.argmax(1, out=action[t])
            obs[t + 1], reward[t], rollout.terminated[t], rollout.truncated[t], _ = env.step(action[t])
        np.logical_or(rollout.terminated, rollout.truncated, out=rollout.ended[1:])
        episode_returns += rollout.finished_returns()

        # Estimate.  The observation after a step is the true successor of its row, also where an episode
        # ends there (the reset comes one step later), so one pass over all observations values them all.
        all_obs = obs[:NUM_STEPS].reshape(size, 4)
        for low in range(0, size, JUDGED):
            judge(all_obs[low : low + JUDGED], values[low : low + JUDGED])
        judge_last(obs[NUM_STEPS], values[size:])
        value_table = values.reshape(NUM_STEPS + 1, NUM_ENVS)
        advantage = estimate(reward, value_table, rollout.terminated, rollout.ended[1:])
        logits = rollout.logits.reshape(size, 2)
        np.logaddexp(logits[:, :1], logits[:, 1:], out=log_probs[:, :1])
        np.subtract(logits, log_probs[:, :1], out=log_probs)
        columns[0] = log_probs[every_row, action.ravel()]
        columns[1] = advantage.ravel()
        np.add(columns[1], values[:size, 0], out=columns[2])

        # Learn.
        rows = rollout.valid_rows()
        count = len(rows)
        env_steps += count
        bounds = [count * k // MINIBATCHES for k in range(MINIBATCHES + 1)]
        minibatches = [
            (torch_obs[low:high], torch_action[low:high, None], *torch_columns[:, low:high].unbind())
            for low, high in pairwise(bounds)
        ]
        all_action = action.ravel()
        for _ in range(EPOCHS):
            generator.shuffle(rows)
            all_obs.take(rows, 0, out=epoch_obs[:count], mode="clip")
            all_action.take(rows, out=epoch_action[:count], mode="clip")
            columns.take(rows, 1, out=epoch_columns[:, :count], mode="clip")
            for batch_obs, batch_action, log_prob, weight, returns in minibatches:
                std, mean = torch.std_mean(weight)
                weight = (weight - mean) / (std + 1e-8)
                new = torch.log_softmax(nets.logits(batch_obs), 1)
                ratio = (new.gather(1, batch_action).view(-1) - log_prob).exp()
                surrogate = torch.minimum(weight * ratio, weight * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                value_loss = F.mse_loss(nets.value(batch_obs), returns)
                entropy_part = (new.exp() * new).mean()  # negative entropy over the number of actions
                grad.fill(0.0)
                torch.autograd.backward((surrogate, value_loss, entropy_part), loss_weights)
                squares = float(grad.dot(grad))
                if squares > MAX_GRAD_NORM**2:
                    np.multiply(grad, MAX_GRAD_NORM / squares**0.5, out=grad)
                optimizer.step()
    seconds = time.perf_counter() - start
    env.close()
    return env_steps / seconds, {"env_steps": env_steps, "episode_returns": episode_returns, "nets": nets}


def evaluate(nets: Nets, episodes: int = 20, seed: int = 1000) -> float:
    """Mean return of one greedy episode in each of `episodes` environments."""
    env = gym.make_vec("CartPole-v1", num_envs=episodes, vectorization_mode="vector_entry_point")
    obs, _ = env.reset(seed=seed)
    alive, total = np.ones(episodes, np.bool_), 0.0
    while alive.any():
        with torch.no_grad():
            action = nets.logits(torch.as_tensor(obs)).argmax(dim=1).numpy()
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward[alive].sum())
        alive &= ~(terminated | truncated)
    env.close()
    return total / episodes


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    speed, info = run(*numbers)
    print(f"{speed:.0f} steps/s over {info['env_steps']} steps; greedy return {evaluate(info['nets']):.1f}")
