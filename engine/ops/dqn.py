"""The targets and the loss of DQN, and the loss's gradient in closed form.

Mnih et al. 2015; double: van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.ops.arrays import is_chosen, namespace
from engine.types import Array


class DQNGradient(NamedTuple):
    """The mean loss, its derivative by q (B, A), and the errors q[action] - target (B,)."""

    loss: Array
    q: Array
    td_error: Array


def dqn_target(reward: Array, discount: Array, target_q: Array, online_q: Array | None = None) -> Array:
    """Return reward + discount * Q_target(s', a'), shape (B,).

    `discount` (B,) is gamma (gamma^k over k steps), and 0 where the episode terminated; a truncated
    row keeps its discount and bootstraps from its true final observation.  `target_q` (B, A) is
    the target network at the next observation; a' is greedy by `online_q` (B, A) if given
    (double DQN), else by `target_q` itself.
    """
    xp = namespace(target_q)
    if online_q is None:
        best = xp.max(target_q, axis=-1)
    else:
        chosen = xp.argmax(online_q, axis=-1)
        best = xp.take_along_axis(target_q, chosen[:, None], axis=-1)[:, 0]
    return reward + discount * best


def dqn_loss(
    q: Array, action: Array, target: Array, *, huber: float | None = 1.0, weight: Array | None = None
) -> Array:
    """Return the mean loss of the errors d = q[action] - target; q (B, A), action and target (B,).

    With `huber` = k: d^2 / 2 up to |d| = k, and k (|d| - k / 2) beyond.  With None: d^2 / 2.
    `weight` (B,), the importance weights of prioritised replay, multiplies each row's loss.
    """
    xp = namespace(q)
    error = xp.take_along_axis(q, action[:, None], axis=-1)[:, 0] - target
    near = error if huber is None else xp.clip(error, -huber, huber)
    # with d beyond k, near = +-k: near (d - near / 2) is both branches at once
    loss = near * (error - 0.5 * near)
    return xp.mean(loss if weight is None else weight * loss)


def dqn_gradient(
    q: Array, action: Array, target: Array, *, huber: float | None = 1.0, weight: Array | None = None
) -> DQNGradient:
    """Return `dqn_loss` of the same arguments with its derivative by q.

    It is w clip(d, -k, k) / B at the action, w = 1 where there are no weights.
    """
    xp = namespace(q)
    ones, zeros = xp.ones_like(q[0, ...]), xp.zeros_like(q)
    chosen = is_chosen(action, ones)
    error = xp.where(chosen, q, zeros) @ ones - target
    near = error if huber is None else xp.clip(error, -huber, huber)
    losses = near * (error - 0.5 * near)
    if weight is not None:
        losses, near = weight * losses, weight * near
    loss = xp.mean(losses)
    return DQNGradient(loss, xp.where(chosen, (near * (1.0 / q.shape[0]))[:, None], zeros), error)
