"""Make a batch of what was collected, as it is."""

from __future__ import annotations

from typing import Any

from engine.context import Middleware
from engine.tree import as_tree


def batch_trajectory() -> Middleware:
    """Make the batch of the trajectory itself: time first, for policies that learn from whole stretches.

    Reads: ctx.trajectory (T, B, ...).  Writes: ctx.batch: a TreeTensor (T, B, ...) of its columns.
    """

    def batch_trajectory(ctx: Any) -> None:
        ctx.batch = as_tree(ctx.trajectory)

    return batch_trajectory
