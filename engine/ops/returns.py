"""Advantages and returns, time first: each is one linear recurrence with its own coefficients.

Shapes are (T, ...), mostly (T, B); every array argument of a function has the same one.  Row t of
`next_value` is the value of the true next observation of row t, so that an episode that ends inside
the batch needs no special row.  `terminated` removes the value behind it (nothing follows);
`terminated` or `truncated` ends the sum (what follows in the batch is another episode).  Where both
flags are set, terminated wins.  The last row continues into its `next_value`.

Rows that are no transitions (the dummy step of NEXT_STEP autoreset) come after a row that ended an
episode, which cuts the recurrence, so that nothing of them reaches a real row.  Their own result
means nothing and is dropped by the caller; `gae` can set it to zero.

Numpy, torch and other array-API arrays give the same numbers; nothing is changed in place, so
gradients flow where the library has them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from engine.errors import UsageError
from engine.ops.arrays import namespace
from engine.types import Array

# Where each way of summing is fastest, measured for numpy and torch on float32: a loop costs a few
# calls a row and touches every number once; doubling costs a few calls per power of two but touches
# every number each time; halving costs twice the calls of doubling and touches half as much each time.
_WIDE = 2048
_MANY = 16_384


def linear_recurrence(x: Array, a: Array, last: Array | None = None) -> Array:
    """Return y with y[t] = x[t] + a[t] * y[t+1], backward in time, where y[T] = `last` (default zero).

    `x` and `a` are (T, ...), `last` is (...).  Narrow rows take O(log T) calls instead of T.
    Reference: Blelloch, "Prefix sums and their applications", 1990 (section 1.4.1).
    """
    _check_shapes(x=x, a=a)
    xp = namespace(x)
    if last is not None and x.shape[0]:
        x = xp.concat([x[:-1, ...], x[-1:, ...] + a[-1:, ...] * last])
    return _solve(xp, x, a)


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    discount: Any,
    lambda_: Any,
    *,
    valid: Array | None = None,
) -> Array:
    """Return generalised advantages (T, ...).

    delta[t] = reward[t] + discount * next_value[t] * (not terminated[t]) - value[t]
    A[t] = delta[t] + discount * lambda_ * (not ended[t]) * A[t+1]

    lambda_=1 is Monte Carlo minus `value`, lambda_=0 the one-step temporal difference.  With `valid`,
    the advantage of rows where it is False is 0.
    Paper: Schulman et al., "High-dimensional continuous control using generalized advantage
    estimation", 2016 (https://arxiv.org/abs/1506.02438), equation 16.
    """
    _check_shapes(
        reward=reward,
        value=value,
        next_value=next_value,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
    )
    xp = namespace(value)
    delta = reward + discount * xp.where(terminated, 0.0, next_value) - value
    ended = xp.logical_or(terminated, truncated)
    if valid is not None:
        delta = xp.where(valid, delta, 0.0)
        ended = xp.logical_or(ended, xp.logical_not(valid))
    return _solve(xp, delta, _decay(xp, ended, discount * lambda_, delta))


def td_lambda(
    reward: Array, next_value: Array, terminated: Array, truncated: Array, discount: Any, lambda_: Any
) -> Array:
    """Return lambda-returns (T, ...).

    G[t] = reward[t] + discount * ((1 - lambda_) * next_value[t] + lambda_ * G[t+1])

    where a terminated row keeps its reward alone and a truncated row, like the last one, continues
    into its whole `next_value`.  lambda_=1 is `discounted_returns`; equals `gae` plus value when
    next_value[t] is value[t+1] inside an episode.
    Book: Sutton and Barto, "Reinforcement Learning", 2018, equation 12.18.
    """
    _check_shapes(reward=reward, next_value=next_value, terminated=terminated, truncated=truncated)
    xp = namespace(next_value)
    ended = xp.logical_or(terminated, truncated)
    bootstrap = xp.where(ended, next_value, (1.0 - lambda_) * next_value)
    x = reward + discount * xp.where(terminated, 0.0, bootstrap)
    return linear_recurrence(x, _decay(xp, ended, discount * lambda_, x), next_value[-1, ...])


def discounted_returns(
    reward: Array, terminated: Array, truncated: Array, discount: Any, next_value: Array | None = None
) -> Array:
    """Return discounted sums of rewards (T, ...) to the end of the episode or of the batch.

    G[t] = reward[t] + discount * G[t+1]

    where a terminated row keeps its reward alone and a truncated row, like the last one, continues
    into `next_value` (None: zero).
    Book: Sutton and Barto, "Reinforcement Learning", 2018, equation 3.9.
    """
    if next_value is None:
        next_value = namespace(reward).zeros_like(reward)
    return td_lambda(reward, next_value, terminated, truncated, discount, 1.0)


def n_step_returns(
    reward: Array, next_value: Array, terminated: Array, truncated: Array, discount: Any, n: int
) -> Array:
    """Return n-step returns (T, ...).

    G[t] = reward[t] + ... + discount^(k-1) * reward[t+k-1] + discount^k * next_value[t+k-1]

    where k is n, or fewer where the episode or the batch ends first, and the last term is left out
    where row t+k-1 terminated.  n=1 is the one-step target, n >= T is `discounted_returns`.
    Raises `UsageError` when n < 1.
    Book: Sutton and Barto, "Reinforcement Learning", 2018, equation 7.1.
    """
    if n < 1:
        raise UsageError(f"n_step_returns: n is {n}, expected at least 1")
    _check_shapes(reward=reward, next_value=next_value, terminated=terminated, truncated=truncated)
    if n >= reward.shape[0]:
        return discounted_returns(reward, terminated, truncated, discount, next_value)
    xp = namespace(next_value)
    one = reward + discount * xp.where(terminated, 0.0, next_value)
    ended = xp.logical_or(terminated, truncated)
    decay = _decay(xp, ended, discount, one)[:-1, ...]
    # One step more each time: a row that ended keeps the reward and bootstrap it has.
    kept = xp.where(ended, one, reward)
    out = one
    for _ in range(n - 1):
        out = xp.concat([kept[:-1, ...] + decay * out[1:, ...], one[-1:, ...]])
    return out


class VTrace(NamedTuple):
    """What V-trace teaches, each (T, ...)."""

    target: Array
    """v[t]: what the value of row t should be."""
    advantage: Array
    """rho[t] * (reward[t] + discount * v[t+1] - value[t]): the weight of row t's policy gradient."""
    rho: Array
    """min(rho_clip, ratio[t]): the clipped importance weights."""


def vtrace(
    log_ratio: Array,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    discount: Any,
    lambda_: Any = 1.0,
    *,
    rho_clip: float | None = 1.0,
    c_clip: float | None = 1.0,
    valid: Array | None = None,
) -> VTrace:
    """Return what actions of an older policy teach a newer one (T, ...); None clips nothing.

    `log_ratio` is log pi(a|s) - log mu(a|s), mu the policy that chose the actions; `value` and
    `next_value` are the newer one's.  With ratio = exp(log_ratio), rho = min(rho_clip, ratio) and
    c = lambda_ * min(c_clip, ratio):

    delta[t] = rho[t] * (reward[t] + discount * next_value[t] * (not terminated[t]) - value[t])
    v[t] - value[t] = delta[t] + discount * c[t] * (not ended[t]) * (v[t+1] - value[t+1])

    v[t+1] is next_value[t], or 0 where terminated, behind a row that ended an episode and behind
    the last.  Where all ratios are 1 and nothing is clipped below 1, v is `td_lambda`; with `valid`,
    rows where it is False get advantage 0.
    Paper: Espeholt et al., "IMPALA: Scalable distributed deep-RL with importance weighted
    actor-learner architectures", 2018 (https://arxiv.org/abs/1802.01561), section 4 and remark 2.
    Raises `UsageError` when a clip is not above 0.
    """
    _check_shapes(
        log_ratio=log_ratio,
        reward=reward,
        value=value,
        next_value=next_value,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
    )
    xp = namespace(value)
    rho = _clipped_ratio(xp, log_ratio, rho_clip, "rho_clip")
    c = rho if c_clip == rho_clip else _clipped_ratio(xp, log_ratio, c_clip, "c_clip")
    ended = xp.logical_or(terminated, truncated)
    if valid is not None:
        rho = xp.where(valid, rho, 0.0)
        ended = xp.logical_or(ended, xp.logical_not(valid))
    bootstrap = xp.where(terminated, 0.0, next_value)
    delta = rho * (reward + discount * bootstrap - value)
    target = value + _solve(xp, delta, _decay(xp, ended, discount * lambda_, delta) * c)
    inner = xp.where(ended[:-1, ...], bootstrap[:-1, ...], target[1:, ...])
    following = xp.concat([inner, bootstrap[-1:, ...]])
    return VTrace(target, rho * (reward + discount * following - value), rho)


def _clipped_ratio(xp: Any, log_ratio: Array, clip: float | None, name: str) -> Array:
    """min(clip, exp(log_ratio)), clipped before the exponential, which then cannot overflow."""
    if clip is None:
        return xp.exp(log_ratio)
    if not clip > 0:
        raise UsageError(f"vtrace: {name} is {clip}, expected above 0, or None for no clipping")
    return xp.exp(xp.clip(log_ratio, None, math.log(clip)))


def _decay(xp: Any, ended: Array, factor: Any, like: Array) -> Array:
    """`factor` where the episode goes on and 0 where it ended, in the dtype of `like`."""
    return xp.astype(xp.logical_not(ended), like.dtype) * factor


def _solve(xp: Any, x: Array, a: Array) -> Array:
    """The recurrence from y[T] = 0, in the way that suits the shape."""
    width = math.prod(x.shape[1:])
    if width >= _WIDE or x.shape[0] <= 2:
        return _loop(xp, x, a)
    if width * x.shape[0] <= _MANY:
        return _doubling(xp, x, a)
    return _halving(xp, x, a)


def _loop(xp: Any, x: Array, a: Array) -> Array:
    if not x.shape[0]:
        return x
    y = x[-1, ...]
    rows = [y]
    for t in range(x.shape[0] - 2, -1, -1):
        y = x[t, ...] + a[t, ...] * y
        rows.append(y)
    rows.reverse()
    return xp.stack(rows)


def _doubling(xp: Any, x: Array, a: Array) -> Array:
    """After the pass with `reach`, row t sums the rows from t to t + 2 * reach - 1.

    The coefficient of row t carries it over `reach` rows; rows that look past the end need none,
    so there are T - reach of them.
    """
    steps = x.shape[0]
    reach = 1
    a = a[:-1, ...]
    while True:
        x = xp.concat([x[:-reach, ...] + a * x[reach:, ...], x[-reach:, ...]])
        if 2 * reach >= steps:
            return x
        a = a[:-reach, ...] * a[reach:, ...]
        reach *= 2


def _halving(xp: Any, x: Array, a: Array) -> Array:
    """Join rows in pairs, solve half as many, and fill in the second row of each pair."""
    if x.shape[0] % 2:
        longer = (xp.concat([array[:1, ...], array]) for array in (x, a))
        return _halving(xp, *longer)[1:, ...]
    x_odd, a_even, a_odd = x[1::2, ...], a[::2, ...], a[1::2, ...]
    even = _solve(xp, x[::2, ...] + a_even * x_odd, a_even * a_odd)
    odd = xp.concat([x_odd[:-1, ...] + a_odd[:-1, ...] * even[1:, ...], x_odd[-1:, ...]])
    return xp.reshape(xp.stack([even, odd], axis=1), x.shape)


def _check_shapes(**arrays: Array | None) -> None:
    """Refuse shapes that differ: broadcasting (T, B) against (T, B, 1) would give wrong numbers."""
    shapes = {name: tuple(array.shape) for name, array in arrays.items() if array is not None}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise UsageError(f"arrays of one shape (T, ...) are needed, got {listed}")
