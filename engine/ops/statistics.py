"""Statistics of batches, each over all entries of an array."""

from __future__ import annotations

import math

from engine.ops.arrays import namespace
from engine.types import Array


def explained_variance(prediction: Array, target: Array) -> Array:
    """Return the share of the variance of `target` that `prediction` explains, as a 0-d array.

    1 - Var(target - prediction) / Var(target): 1 is perfect, 0 no better than a constant, below 0
    worse.  A target without variance has nothing to explain: 0, never NaN.
    """
    xp = namespace(target)
    variance = xp.var(target)
    unexplained = xp.var(target - prediction)
    varies = variance > 0
    return xp.where(varies, 1.0 - unexplained / xp.where(varies, variance, 1.0), 0.0)


def normalise(x: Array, *, epsilon: float = 1e-8) -> Array:
    """Return `x` with mean 0 and standard deviation 1: (x - mean) / (std + epsilon).

    The deviation divides by n.  A single entry comes back unchanged: it has no spread, and
    normalising would turn the advantage of a minibatch of one row into 0, or into NaN.
    """
    if math.prod(x.shape) <= 1:
        return x
    xp = namespace(x)
    return (x - xp.mean(x)) / (xp.std(x) + epsilon)
