"""Prioritised experience replay: what was predicted badly is drawn more often.

Schaul et al., "Prioritized experience replay", 2016 (https://arxiv.org/abs/1511.05952), the
proportional variant of section 3.3 with the importance weights of section 3.4.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.data.columns import Array, map_leaves
from engine.data.replay import ReplayBuffer, too_large
from engine.data.sum_tree import SumTree
from engine.errors import StateError, UsageError
from engine.types import Arrays

INDEX, WEIGHT = "replay_index", "weight"
"""The columns that a sample has beside those that were pushed."""

TD_ERROR = "td_error"
"""The column that is pushed to say with which priorities transitions begin; it is not stored."""


class PrioritizedReplay(ReplayBuffer):
    """A `ReplayBuffer` that draws transition i with probability P(i) = p_i^alpha / sum_k p_k^alpha.

    p_i = |td_error| + epsilon as `update` was last told.  A new transition begins with the p of its column
    ``td_error``; without one it gets the largest p so far, so that each is likely drawn once.  A sample
    has two more columns: ``weight``, the importance weights (N P(i))^-beta over the largest of the batch,
    which undo the bias fully at beta = 1, and ``replay_index``, to be given to `update`.  `beta` is an
    attribute for a schedule to set.
    """

    def __init__(
        self,
        capacity: int,
        *,
        generator: np.random.Generator,
        alpha: float = 0.6,
        beta: float = 0.4,
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__(capacity, generator=generator)
        if not (0.0 <= alpha <= 1.0 and 0.0 <= beta <= 1.0 and epsilon > 0.0):
            raise UsageError(
                f"PrioritizedReplay: alpha and beta are 0 to 1 and epsilon is above 0, not {alpha}, {beta}, "
                f"{epsilon}"
            )
        self.alpha = alpha
        self.beta = beta
        self.epsilon = epsilon
        try:
            self._tree = SumTree(capacity)
        except MemoryError as error:
            raise too_large(capacity, error) from error
        self._largest = 1.0  # p^alpha of a new transition
        self._pushed = 0

    def push(self, transitions: dict[str, Arrays]) -> None:
        """Copy transitions (N, ...) in, over the oldest ones when full.

        A column ``td_error`` (N,) says with which priorities, as in `update`, and is not stored; without
        it each gets the largest priority so far.
        Raises `TreeError` naming a column that differs from the first push, and `UsageError` for errors
        of another number or that are not finite; nothing is stored then.
        """
        start, count = self._position, _rows(transitions)
        first: Any = None
        if TD_ERROR in transitions:
            first = self._priority("push", transitions[TD_ERROR])
            if first.shape != (count,):
                raise UsageError(f"push: td_error {first.shape} is to be ({count},) like the transitions")
            transitions = {name: column for name, column in transitions.items() if name != TD_ERROR}
        super().push(transitions)
        self._pushed += count
        kept = min(count, self.capacity)
        slots = np.arange(start + count - kept, start + count) % self.capacity
        if first is None:
            self._tree.set(slots, self._largest)
        elif kept:
            self._set(slots, first[count - kept :])

    def sample(self, batch_size: int) -> dict[str, Arrays]:
        """Return (batch_size, ...) transitions in fresh arrays, drawn by priority with replacement.

        One is drawn from each of `batch_size` parts of equal probability (the paper's appendix B.2.1),
        which makes batches more alike and changes no transition's expected share.
        Raises `UsageError` when the buffer is empty.
        """
        if not self._size or self._columns is None:
            raise UsageError("the replay buffer is empty: push transitions before sampling")
        if batch_size < 1:
            raise UsageError(f"sample: batch_size is {batch_size}, expected at least 1")
        shares = (self.generator.random(batch_size) + np.arange(batch_size)) / batch_size
        slots = self._tree.find(shares)
        batch = map_leaves(lambda column: column.take(slots, 0), self._columns.arrays)
        priority = self._tree.values.take(slots)
        # N and the total cancel out against the largest weight.
        weight = (priority / priority.min()) ** -self.beta
        batch[WEIGHT] = weight.astype(np.float32)
        # How many were pushed before it: what overwrites it later has another number.
        batch[INDEX] = self._pushed - 1 - (self._position - 1 - slots) % self.capacity
        return batch

    def update(self, index: Any, td_error: Any) -> None:
        """Set the priorities of sampled transitions by their newest errors (B,).

        `index` is the column ``replay_index`` of the sample.  Transitions that were overwritten since
        are left out; where one occurs twice, the last error counts.
        Raises `UsageError` for an error that is not finite, which would spoil every later draw.
        """
        number = np.asarray(index)
        shape = np.shape(td_error)
        if number.shape != shape or number.ndim != 1:
            raise UsageError(f"update: index {number.shape} and td_error {shape} are to be (B,) both")
        priority = self._priority("update", td_error)
        held = number >= self._pushed - self._size
        if not held.all():
            number, priority = number[held], priority[held]
        if not number.size:
            return
        # Number n lies where position and count lead back to.
        self._set((number - self._pushed + self._position) % self.capacity, priority)

    def _priority(self, verb: str, td_error: Any) -> Array:
        """Return p^alpha of errors."""
        priority: Array = (np.abs(np.asarray(td_error, np.float64)) + self.epsilon) ** self.alpha
        if not math.isfinite(float(np.add.reduce(priority, None))):
            raise UsageError(f"{verb}: td_error has a value that is not finite")
        return priority

    def _set(self, slots: Array, priority: Array) -> None:
        self._tree.set(slots, priority)
        self._largest = max(self._largest, float(priority.max()))

    def priorities(self) -> Array:
        """Return p^alpha of the transitions held, by place in the ring, as a copy."""
        return self._tree.values[: self._size].copy()

    def state_dict(self) -> dict[str, Any]:
        """Return contents, priorities, position and the generator's state; arrays are copies."""
        return {
            **super().state_dict(),
            "priorities": self.priorities(),
            "largest": self._largest,
            "pushed": self._pushed,
            "beta": self.beta,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Become what `state_dict` describes; later samples are those the saved buffer would draw.

        Raises `StateError` when the capacities differ, and for the state of a buffer without priorities.
        """
        if "priorities" not in state_dict:
            raise StateError("the state of a uniform replay buffer has no priorities to continue with")
        super().load_state_dict(state_dict)
        self._tree.load(state_dict["priorities"])
        self._largest, self._pushed = float(state_dict["largest"]), int(state_dict["pushed"])
        self.beta = float(state_dict["beta"])


def _rows(transitions: dict[str, Any]) -> int:
    """How many transitions there are: the length of the first leaf."""
    leaf: Any = transitions
    while isinstance(leaf, dict):
        leaf = next(iter(leaf.values()))
    return len(leaf)
