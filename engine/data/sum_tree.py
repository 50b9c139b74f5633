"""Draw indices in proportion to numbers that change: a tree of sums, wide and vectorised.

Each node sums 32 children, as numpy reads 32 neighbours about as quickly as one: a million leaves
take two levels below a top that is searched as a whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.data.columns import Array
from engine.errors import UsageError

_FAN = 32
_TOP = 1024


class SumTree:
    """`size` numbers >= 0, all 0 at first; setting or finding k of them costs O(k log size).

    Sums are computed anew from their children, never added to, so that no error gathers and the tree
    depends on the numbers alone.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise UsageError(f"SumTree: size is {size}, expected at least 1")
        self.size = size
        self._levels: list[Array] = []  # (nodes, 32) each, the leaves first
        while True:
            rows = -(-size // _FAN)
            self._levels.append(np.zeros((rows, _FAN)))
            if rows <= _TOP:
                break
            size = rows
        self._leaves = self._levels[0].reshape(-1)
        self._flat = [level.reshape(-1) for level in self._levels[1:]] + [np.zeros(rows)]

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        return float(np.add.accumulate(self._flat[-1])[-1])

    @property
    def values(self) -> Array:
        """The numbers (size,), to read."""
        return self._leaves[: self.size]

    def set(self, index: Array, values: Array | float) -> None:
        """Set the numbers at `index` (k,); where an index repeats, the last value stays."""
        self._leaves[index] = values
        node = index
        for level, above in zip(self._levels, self._flat, strict=True):
            node = node // _FAN
            above[node] = np.add.reduce(level.take(node, 0), 1)

    def find(self, shares: Array) -> Array:
        """Return the indices (k,) where the running sum passes `shares` (k,) of the total, in [0, 1).

        An index whose number is 0 is never found.  Raises `UsageError` when all of them are 0.
        """
        reached = np.add.accumulate(self._flat[-1])
        if not reached[-1] > 0:
            raise UsageError("all numbers of the tree are 0: nothing can be found")
        target = np.minimum(shares * reached[-1], np.nextafter(reached[-1], 0))
        # the first whose running sum exceeds the target: those of width 0 are stepped over
        node = np.searchsorted(reached, target, side="right")
        target = target - (reached - self._flat[-1])[node]
        places = np.arange(len(target))
        for level in reversed(self._levels):
            rows = level.take(node, 0)
            reached = np.add.accumulate(rows, 1)
            # Rounding may leave a target a little outside of its node.
            target = np.minimum(np.maximum(target, 0.0), np.nextafter(reached[:, -1], 0))
            child = (reached > target[:, None]).argmax(1)
            target = target - (reached[places, child] - rows[places, child])
            node = node * _FAN + child
        found: Array = node
        return found

    def load(self, values: Any) -> None:
        """Set the first numbers to `values`, the rest to 0."""
        self._leaves[:] = 0.0
        self._leaves[: len(values)] = values
        for level, above in zip(self._levels, self._flat, strict=True):
            above[: len(level)] = np.add.reduce(level, 1)
