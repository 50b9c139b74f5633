"""The loss of IMPALA's learner, readable as a sum of terms, and its gradient in closed form.

Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, section 4.2.  With the targets v and the
advantages of V-trace (`engine.ops.returns.vtrace`), both taken as constants::

    L = -mean(A log pi(a|s)) + c_v mean((V - v)^2) - c_e mean(H)
"""

from __future__ import annotations

from typing import NamedTuple

from engine.ops.arrays import namespace
from engine.types import Array


class ImpalaLoss(NamedTuple):
    """The terms of the loss, each a mean over the batch; `total` is what is minimised."""

    total: Array
    policy: Array
    value: Array
    entropy: Array


class ImpalaGradient(NamedTuple):
    """The loss, and its derivatives by log_prob, by value and by the entropy of each row, all (B,)."""

    loss: ImpalaLoss
    log_prob: Array
    value: Array
    entropy: Array


def impala_loss(
    log_prob: Array,
    advantage: Array,
    value: Array,
    target: Array,
    entropy: Array,
    *,
    value_coef: float,
    entropy_coef: float,
    weight: Array | None = None,
) -> ImpalaLoss:
    """Return the terms of the loss on a batch of rows (B,); all of them are differentiable.

    `weight` (B,) gives each row's share of the means, 1 / B where it is None.
    """
    xp = namespace(log_prob)
    if weight is None:
        weight = xp.ones_like(log_prob) / log_prob.shape[0]
    policy = -xp.sum(weight * advantage * log_prob)
    error = xp.sum(weight * (value - target) ** 2)
    spread = xp.sum(weight * entropy)
    return ImpalaLoss(policy + value_coef * error - entropy_coef * spread, policy, error, spread)


def impala_gradient(
    log_prob: Array,
    advantage: Array,
    value: Array,
    target: Array,
    entropy: Array,
    *,
    value_coef: float,
    entropy_coef: float,
    weight: Array | None = None,
) -> ImpalaGradient:
    """Return `impala_loss` of the same arguments with its derivatives, computed together.

    With w the weight of a row: -w A by log_prob, 2 c_v w (V - v) by value, -c_e w by the entropy.
    """
    xp = namespace(log_prob)
    if weight is None:
        weight = xp.zeros_like(log_prob) + 1.0 / log_prob.shape[0]
    d_log_prob = -(weight * advantage)
    distance = value - target
    weighted = weight * distance
    policy, error, spread = d_log_prob @ log_prob, weighted @ distance, weight @ entropy
    total = policy + value_coef * error - entropy_coef * spread
    loss = ImpalaLoss(total, policy, error, spread)
    return ImpalaGradient(loss, d_log_prob, weighted * (2.0 * value_coef), weight * -entropy_coef)
