"""How a policy's outputs become actions: one head per kind of action space.

A head works on the tuple of parameters that a model's `policy(obs)` gives, `(logits,)` or
`(mean, log_std)`, as numpy arrays while acting and as arrays of any library while learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from gymnasium import spaces

from engine.errors import EnvError
from engine.ops.arrays import namespace
from engine.ops.distributions import (
    PullBack,
    categorical,
    categorical_log_prob,
    gaussian,
    gaussian_log_prob,
)
from engine.policies.noise import Draw, gumbel, normal
from engine.policies.spaces import Space
from engine.types import Array

Parameters: TypeAlias = tuple[Array, ...]


class Head(Protocol):
    """Samples actions, and evaluates them under parameters."""

    outputs: int
    """How many numbers a model puts out for one observation."""

    @property
    def draw(self) -> Draw:
        """What draws the noise that `sample` takes, (B, outputs)."""
        ...

    def sample(self, parameters: Parameters, noise: Any) -> dict[str, Any]:
        """Return the columns to record: ``action``, and ``logits`` or ``log_prob``."""
        ...

    def mode(self, parameters: Parameters) -> Any:
        """Return the likeliest actions."""
        ...

    def recorded_log_prob(self, columns: Mapping[str, Any]) -> Array:
        """Return the log-probability that recorded actions had when they were drawn, exactly."""
        ...

    def evaluate(self, parameters: Parameters, action: Array) -> tuple[Array, Array, PullBack]:
        """Return log-probabilities (B,), entropies (B,), and the pull-back to the parameters."""
        ...


class Categorical:
    """Discrete actions, counted from 0.

    The logits are recorded while acting, and log-probabilities are taken from them once
    per batch: on 8 environments that spares a third of the time of a `sample`.
    """

    draw = staticmethod(gumbel)

    def __init__(self, size: int) -> None:
        self.outputs = size

    def sample(self, parameters: Parameters, noise: Any) -> dict[str, Any]:
        (logits,) = parameters
        return {"action": (logits + noise).argmax(-1), "logits": logits}

    def mode(self, parameters: Parameters) -> Any:
        return parameters[0].argmax(-1)

    def recorded_log_prob(self, columns: Mapping[str, Any]) -> Array:
        return categorical_log_prob(columns["logits"], columns["action"])

    def evaluate(self, parameters: Parameters, action: Array) -> tuple[Array, Array, PullBack]:
        return categorical(parameters[0], action)


class MultiCategorical:
    """MultiDiscrete and MultiBinary actions (B, K): independent choices, their logits side by side."""

    draw = staticmethod(gumbel)

    def __init__(self, sizes: list[int]) -> None:
        self.outputs = sum(sizes)
        ends = np.cumsum(sizes).tolist()
        self._parts = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def sample(self, parameters: Parameters, noise: Any) -> dict[str, Any]:
        (logits,) = parameters
        return {"action": self.mode((logits + noise,)), "logits": logits}

    def mode(self, parameters: Parameters) -> Any:
        return np.stack([parameters[0][:, part].argmax(-1) for part in self._parts], axis=-1)

    def recorded_log_prob(self, columns: Mapping[str, Any]) -> Array:
        logits, action = columns["logits"], columns["action"]
        parts = enumerate(self._parts)
        return sum(categorical_log_prob(logits[..., part], action[..., i]) for i, part in parts)

    def evaluate(self, parameters: Parameters, action: Array) -> tuple[Array, Array, PullBack]:
        (logits,) = parameters
        found = [categorical(logits[:, part], action[:, i]) for i, part in enumerate(self._parts)]

        def pull_back(d_log_prob: Array, d_entropy: Array | float) -> tuple[Array, ...]:
            gradients = [pull(d_log_prob, d_entropy)[0] for _, _, pull in found]
            return (namespace(logits).concat(gradients, axis=1),)

        return sum(f[0] for f in found), sum(f[1] for f in found), pull_back


class Gaussian:
    """Box actions (B, *shape): independent normals.  The raw draw is recorded; the env's side clips it."""

    draw = staticmethod(normal)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.outputs = int(np.prod(shape))
        self._flat = len(shape) == 1

    def _shaped(self, action: Any) -> Any:
        return action if self._flat else action.reshape(-1, *self.shape)

    def sample(self, parameters: Parameters, noise: Any) -> dict[str, Any]:
        mean, log_std = parameters
        action = mean + np.exp(log_std) * noise
        # from the rounded action, not from the noise: that is what learning will see
        return {"action": self._shaped(action), "log_prob": gaussian_log_prob(mean, log_std, action)}

    def mode(self, parameters: Parameters) -> Any:
        return self._shaped(parameters[0])

    def recorded_log_prob(self, columns: Mapping[str, Any]) -> Array:
        return columns["log_prob"]

    def evaluate(self, parameters: Parameters, action: Array) -> tuple[Array, Array, PullBack]:
        mean, log_std = parameters
        return gaussian(mean, log_std, action if self._flat else action.reshape(mean.shape))


def head_for(space: Space) -> Head:
    """Return the head for an action space; raises `EnvError` for kinds that no head covers."""
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
        return MultiCategorical([int(n) for n in space.nvec])
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return MultiCategorical([2] * space.shape[0])
    if isinstance(space, spaces.Box) and np.issubdtype(np.dtype(space.dtype), np.floating):
        return Gaussian(space.shape)
    raise EnvError(
        f"no policy here acts in {space}; expected Discrete, MultiDiscrete (K,), MultiBinary (K,) "
        "or Box of floats"
    )
