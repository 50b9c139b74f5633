"""Notice that a policy has stopped trying other actions and got worse: it will hardly recover."""

from __future__ import annotations

import math
from collections.abc import Mapping

VANISHED = 0.01
"""An entropy of discrete actions below this, in nats: the likeliest is taken 998 times in 1,000, or more."""


class Collapse:
    """Looks at the rows of metrics of a policy with discrete actions."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._best = -math.inf
        self._told = False

    def look(self, row: Mapping[str, float]) -> str | None:
        """Return what to warn of, once in a run, else None.

        That is an entropy below `VANISHED` while of what the return had gained more than half is lost.
        Reads "train/entropy" and "collect/return_mean"; a row without one of them is passed over.
        """
        entropy, found = row.get("train/entropy"), row.get("collect/return_mean")
        if self._told or entropy is None or found is None:
            return None
        if self._first is None:
            self._first = found
        self._best = max(self._best, found)
        if entropy >= VANISHED or found >= self._best - 0.5 * (self._best - self._first):
            return None
        self._told = True
        return (
            f"the policy's entropy has vanished ({entropy:.2g} nats) while the return fell from "
            f"{self._best:.4g} to {found:.4g}: it tries nothing else any more and hardly learns; a smaller "
            "policy.learning_rate, or a larger policy.adam_epsilon or policy.entropy_coef, may prevent that"
        )
