"""A rollout: what a vector of environments did in a fixed number of steps."""

from __future__ import annotations

from typing import Any

from engine.data.columns import Columns, map_leaves
from engine.errors import StateError, TreeError, UsageError
from engine.types import Arrays


class Rollout:
    """Collect `num_steps` time rows into columns (T, B, ...).

    The first row that is added, or added after `take`, decides the columns, their shapes and dtypes::

        rollout.add(obs=obs, action=action, reward=reward)  # (B, ...) each; obs may be a nested dict
        if rollout.full:
            trajectory = rollout.take()  # (T, B, ...) each
    """

    def __init__(self, num_steps: int) -> None:
        if num_steps < 1:
            raise UsageError(f"Rollout: num_steps is {num_steps}, expected at least 1")
        self.num_steps = num_steps
        self._columns: Columns | None = None
        """The rows held; before the first of them is added, arrays like those that were handed over."""
        self._length = 0

    def __len__(self) -> int:
        """How many time rows are held."""
        return self._length

    @property
    def full(self) -> bool:
        """Whether `num_steps` rows are held."""
        return self._length == self.num_steps

    def add(self, **columns: Arrays) -> None:
        """Copy one time row (B, ...) of every column.

        Raises `UsageError` when full and `TreeError` for a column that differs from the first row's.
        """
        if self._length == self.num_steps:
            raise UsageError(f"the rollout is full ({self.num_steps} steps): take() it before adding more")
        held = self._columns
        if held is not None:
            try:
                values = held.checked(columns)
            except TreeError:
                if self._length:
                    raise
                held = None
        if held is None:
            held = self._columns = Columns(columns, (self.num_steps,), batched=False)
            values = held.checked(columns)
        held.write(self._length, values)
        self._length += 1

    def take(self) -> dict[str, Arrays]:
        """Hand over the columns (T, B, ...), T = len(self), and start anew in fresh arrays.

        Raises `UsageError` when nothing was added.
        """
        if self._columns is None or not self._length:
            raise UsageError("the rollout is empty: add steps before take()")
        arrays, length = self._columns.arrays, self._length
        self._columns, self._length = self._columns.anew(), 0
        if length < self.num_steps:
            return map_leaves(lambda column: column[:length], arrays)
        return arrays

    def state_dict(self) -> dict[str, Any]:
        """Return the rows held, as copies."""
        if self._columns is None or not self._length:
            return {"length": 0, "columns": None}
        rows = map_leaves(lambda column: column[: self._length].copy(), self._columns.arrays)
        return {"length": self._length, "columns": rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Hold the rows of a `state_dict`; raises `StateError` when they are more than `num_steps`."""
        length, rows = state_dict["length"], state_dict["columns"]
        if length > self.num_steps:
            raise StateError(f"{length} saved steps do not fit a rollout of {self.num_steps}")
        self._columns, self._length = None, length
        if rows is not None:
            self._columns = Columns.restored(rows, (self.num_steps,), slice(length), batched=False)
