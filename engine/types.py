"""What users bring, described by what it can do rather than by a base class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

Array: TypeAlias = Any
"""A numpy, torch or JAX array."""

Arrays: TypeAlias = "np.ndarray[Any, Any] | dict[str, Arrays]"
"""One numpy array, or a dict of them nested to any depth (Dict and Tuple observations)."""

Clock: TypeAlias = Callable[[], float]
"""Seconds from an arbitrary start that never goes backwards, like `time.perf_counter`."""


@runtime_checkable
class Stateful(Protocol):
    """Has state that can be saved and put back (torch's protocol)."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Actor(Protocol):
    """Chooses actions while collecting: a copy of the policy's weights that only acts."""

    version: int
    """How many updates made the weights it acts with."""

    def sample(self, obs: Arrays) -> dict[str, Arrays]:
        """Map observations (B, ...) to columns (B, ...): ``action`` and what else to record."""
        ...

    def act(self, obs: Arrays) -> Arrays:
        """Map observations (B, ...) to deterministic actions (B, ...), without drawing numbers."""
        ...

    def load(self, policy: Any) -> None:
        """Copy the weights and the version of the policy that made this actor."""
        ...

    def take_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Copy what `Policy.weights` returned, in this process or another."""
        ...


class Policy(Protocol):
    """Acts and learns."""

    version: int
    """How many calls of `learn` made the weights."""

    def act(self, obs: Any, *, deterministic: bool = False) -> Any:
        """Map one observation, or a batch of them, to an action or a batch of actions."""
        ...

    def learn(self, batch: Any) -> dict[str, float]:
        """Improve on a batch; return metrics of the update."""
        ...

    def actor(self, generator: np.random.Generator) -> Actor:
        """Return a copy that collects, drawing from `generator`."""
        ...

    def weights(self) -> Mapping[str, Any]:
        """Return what its actors act with, as numpy arrays that are good until the next `learn`."""
        ...

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Buffer(Protocol):
    """Keeps transitions and gives random batches of them."""

    def push(self, transitions: dict[str, Arrays]) -> None:
        """Store transitions (N, ...), column by column."""
        ...

    def sample(self, batch_size: int) -> dict[str, Arrays]:
        """Return (batch_size, ...) transitions drawn uniformly with replacement."""
        ...

    def __len__(self) -> int: ...
