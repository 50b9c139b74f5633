"""Generalised advantage estimation in bare numpy: a doubling scan and a loop over time.

Reference for speed; imports nothing from engine.  Both compute, for a rollout of shape (T, B),

    delta_t = r_t + discount * (1 - terminated_t) * V(next_obs_t) - V(obs_t)
    A_t     = delta_t + discount * lambda * (1 - terminated_t or truncated_t) * A_{t+1},   A_T = 0

(Schulman et al. 2016, https://arxiv.org/abs/1506.02438).  A truncated row still bootstraps from the
value of its true final observation; only the sum stops there.

The scan folds A_t = x_t + c_t * A_{t+1} in log2(T) passes: after pass k each row holds the sum over its
next 2**k rows, and c the product of their factors, so two neighbouring spans join into one twice as long
(Hillis and Steele 1986).
"""

from __future__ import annotations

import numpy as np


def gae_scan(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    discount: float,
    lambda_: float,
) -> np.ndarray:
    """Return advantages (T, B) as float32; quick for long and narrow rollouts."""
    total = np.multiply(next_value, discount, dtype=np.float32)
    total *= ~terminated
    total += reward
    total -= value
    factor = np.multiply(~(terminated | truncated), np.float32(discount * lambda_))
    scratch = np.empty_like(total)
    length, span = len(total), 1
    while span < length:
        # A pass reads rows that it also writes; going through scratch keeps it from reading its own results.
        rest = scratch[: length - span]
        np.multiply(factor[:-span], total[span:], out=rest)
        total[:-span] += rest
        np.multiply(factor[:-span], factor[span:], out=rest)
        factor[:-span] = rest
        factor[-span:] = 0.0  # nothing follows the last row
        span *= 2
    return total


def gae_loop(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    discount: float,
    lambda_: float,
) -> np.ndarray:
    """Return the same advantages by the obvious loop over time."""
    advantage = np.empty(reward.shape, np.float32)
    following = np.zeros(reward.shape[1], np.float32)
    for t in reversed(range(len(reward))):
        delta = reward[t] + discount * next_value[t] * ~terminated[t] - value[t]
        following = delta + discount * lambda_ * ~(terminated[t] | truncated[t]) * following
        advantage[t] = following
    return advantage
