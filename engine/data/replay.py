"""Uniform experience replay: a ring of transitions in preallocated columns.

Lin, "Self-improving reactive agents based on reinforcement learning, planning and teaching", 1992.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.data.columns import Array, Columns, map_leaves
from engine.errors import EngineError, StateError, UsageError
from engine.types import Arrays


def too_large(capacity: int, error: MemoryError) -> EngineError:
    """Return what to raise where the system refuses the memory of a buffer."""
    return EngineError(
        f"a replay buffer of {capacity:,} transitions does not fit into this machine's memory ({error}); "
        "make it smaller (train.buffer_size)"
    )


class ReplayBuffer:
    """Keep the last `capacity` transitions and draw uniform batches of them.

    The first push decides the columns, their row shapes and dtypes.  Memory grows as rows arrive,
    up to `capacity` of them.  `generator` draws the samples, is advanced by nothing else and belongs
    to the buffer's state.
    """

    def __init__(self, capacity: int, *, generator: np.random.Generator) -> None:
        if capacity < 1:
            raise UsageError(f"ReplayBuffer: capacity is {capacity}, expected at least 1")
        self.capacity = capacity
        self.generator = generator
        self._columns: Columns | None = None
        self._position = 0
        self._size = 0

    def __len__(self) -> int:
        """How many transitions are held."""
        return self._size

    def push(self, transitions: dict[str, Arrays]) -> None:
        """Copy transitions (N, ...) in, over the oldest ones when full; the cost is O(N).

        Raises `TreeError` naming a column that differs from the first push; nothing is stored then.
        """
        columns = self._columns or self._allocated(transitions)
        values = columns.checked(transitions)
        start = self._position
        stop = start + len(values[0])
        if stop < self.capacity:
            columns.write(slice(start, stop), values)
            self._position = stop
        else:
            self._wrap(columns, values)
        if self._size != self.capacity:
            self._columns = columns
            self._size = min(self._size + len(values[0]), self.capacity)

    def sample(self, batch_size: int) -> dict[str, Arrays]:
        """Return (batch_size, ...) transitions in fresh arrays, drawn uniformly with replacement.

        Raises `UsageError` when the buffer is empty.
        """
        if not self._size or self._columns is None:
            raise UsageError("the replay buffer is empty: push transitions before sampling")
        if batch_size < 1:
            raise UsageError(f"sample: batch_size is {batch_size}, expected at least 1")
        rows = self.generator.integers(self._size, size=batch_size)
        # take() along the first dimension is several times faster than indexing for rows of few numbers.
        return map_leaves(lambda column: column.take(rows, 0), self._columns.arrays)

    def _allocated(self, transitions: dict[str, Arrays]) -> Columns:
        try:
            return Columns(transitions, (self.capacity,), batched=True)
        except MemoryError as error:
            raise too_large(self.capacity, error) from error

    def _wrap(self, columns: Columns, values: Sequence[Array]) -> None:
        """Write rows that reach the end of the ring and go on at its start."""
        count = len(values[0])
        stop = self._position + count
        # Of more rows than fit, the last ones stay, where pushing one by one would leave them.
        kept = min(count, self.capacity)
        first = (stop - kept) % self.capacity
        until_end = min(kept, self.capacity - first)
        values = [value[count - kept :] for value in values]
        columns.write(slice(first, first + until_end), [value[:until_end] for value in values])
        columns.write(slice(kept - until_end), [value[until_end:] for value in values])
        self._position = stop % self.capacity

    def state_dict(self) -> dict[str, Any]:
        """Return contents, position and the generator's state; arrays are copies."""
        rows = None
        if self._columns is not None:
            rows = map_leaves(lambda column: column[: self._size].copy(), self._columns.arrays)
        return {
            "capacity": self.capacity,
            "position": self._position,
            "size": self._size,
            "columns": rows,
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Become what `state_dict` describes; later samples are those the saved buffer would draw.

        Raises `StateError` when the capacities differ: the ring would continue elsewhere.
        """
        if state_dict["capacity"] != self.capacity:
            raise StateError(
                f"a replay buffer of capacity {self.capacity} cannot continue one of {state_dict['capacity']}"
            )
        rows, size = state_dict["columns"], state_dict["size"]
        columns = None
        if rows is not None:
            columns = Columns.restored(rows, (self.capacity,), slice(size), batched=True)
        self.generator.bit_generator.state = state_dict["generator"]
        self._columns, self._position, self._size = columns, state_dict["position"], size
