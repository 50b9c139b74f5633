"""The loss of PPO, readable as a sum of terms, and its gradient in closed form.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.  With the ratio r = pi(a|s) / pi_old(a|s)::

    L = -mean(min(r A, clip(r, 1 - eps, 1 + eps) A)) + c_v mean((V - R)^2) - c_e mean(H)

Optionally the value's error is the larger of two, the second measured after clipping V to within
`value_clip` of the value *stored when the data was collected*.  The policy's change is
measured by the estimate k3 = r - 1 - log r of KL(pi_old || pi), which is never negative and
has little variance (http://joschu.net/blog/kl-approx.html).
"""

from __future__ import annotations

from typing import NamedTuple

from engine.ops.arrays import namespace
from engine.types import Array


class PPOLoss(NamedTuple):
    """The terms of the loss, each a mean over the batch; `total` is what is minimised."""

    total: Array
    policy: Array
    value: Array
    entropy: Array
    kl: Array
    clip_fraction: Array


class PPOGradient(NamedTuple):
    """The loss, and its derivatives by log_prob (B,), by value (B,), and by the entropy of one row."""

    loss: PPOLoss
    log_prob: Array
    value: Array
    entropy: float


_SHARE = 1 / 20
"""So much of a spread must change the mean that it is added to; the mean of equal numbers was measured to
be off by up to 5 roundings, for a million of them."""


def normalize(advantage: Array, *, epsilon: float = 1e-8) -> Array:
    """Return the advantages less their mean, over their standard deviation, which divides by n.

    A spread below the rounding of the mean is none: all are 0 then.  A single row comes back unchanged: it
    has no spread, and as 0 it would teach nothing.
    """
    if advantage.shape[0] == 1:
        return advantage
    xp = namespace(advantage)
    mean = xp.mean(advantage)
    centred = advantage - mean
    spread = xp.mean(centred * centred) ** 0.5
    real = mean + _SHARE * spread != mean
    return centred / (spread + epsilon) * xp.astype(real, centred.dtype)


def ppo_loss(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    value: Array,
    returns: Array,
    entropy: Array,
    *,
    clip: float,
    value_coef: float,
    entropy_coef: float,
    value_clip: float | None = None,
    old_value: Array | None = None,
) -> PPOLoss:
    """Return the terms of PPO's loss on a batch of rows (B,); all of them are differentiable.

    `old_value` is the value stored at collection; needed when `value_clip` is not None.
    """
    xp = namespace(log_prob)
    log_ratio = log_prob - old_log_prob
    ratio = xp.exp(log_ratio)
    clipped = xp.clip(ratio, 1.0 - clip, 1.0 + clip)
    policy = -xp.mean(xp.minimum(ratio * advantage, clipped * advantage))
    error = (value - returns) ** 2
    if value_clip is not None:
        near = _stored(old_value) + xp.clip(value - old_value, -value_clip, value_clip)
        error = xp.maximum(error, (near - returns) ** 2)
    value_error, spread = xp.mean(error), xp.mean(entropy)
    kl = xp.mean(ratio - 1.0 - log_ratio)
    outside = xp.mean(xp.astype(xp.abs(ratio - 1.0) > clip, ratio.dtype))
    total = policy + value_coef * value_error - entropy_coef * spread
    return PPOLoss(total, policy, value_error, spread, kl, outside)


def ppo_gradient(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    value: Array,
    returns: Array,
    entropy: Array,
    *,
    clip: float,
    value_coef: float,
    entropy_coef: float,
    value_clip: float | None = None,
    old_value: Array | None = None,
) -> PPOGradient:
    """Return `ppo_loss` of the same arguments with its derivatives, computed together.

    By log_prob: -r A / B where the unclipped term is the smaller one, else 0.  By value:
    2 c_v (V - R) / B, or 0 where the clipped error is the larger one and V lies outside the
    clip range.  By a row's entropy: -c_e / B.
    """
    xp = namespace(log_prob)
    share = 1.0 / log_prob.shape[0]
    log_ratio = log_prob - old_log_prob
    ratio = xp.exp(log_ratio)
    gain = ratio * advantage
    clipped = xp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage
    zeros = xp.zeros_like(gain)
    d_log_prob = xp.where(gain <= clipped, gain, zeros) * -share

    distance = value - returns
    error = distance * distance
    d_value = distance * (2.0 * value_coef * share)
    if value_clip is not None:
        moved = value - _stored(old_value)
        kept = xp.clip(moved, -value_clip, value_clip)
        other = (old_value + kept - returns) ** 2
        d_value = xp.where((other > error) & (moved != kept), zeros, d_value)
        error = xp.maximum(error, other)

    # Sums as products with a column of ones: one call each, several times faster in numpy.
    ones = zeros + share
    policy, value_error, spread = -(xp.minimum(gain, clipped) @ ones), error @ ones, entropy @ ones
    kl = (ratio - 1.0 - log_ratio) @ ones
    outside = xp.sum(xp.where(xp.abs(ratio - 1.0) > clip, ones, zeros))
    total = policy + value_coef * value_error - entropy_coef * spread
    loss = PPOLoss(total, policy, value_error, spread, kl, outside)
    return PPOGradient(loss, d_log_prob, d_value, -entropy_coef * share)


def _stored(old_value: Array | None) -> Array:
    if old_value is None:
        raise ValueError("value_clip needs old_value, the value stored when the data was collected")
    return old_value
