"""Keep a prioritised replay up to date with what learning finds."""

from __future__ import annotations

from typing import Any, Protocol

from engine.context import Middleware
from engine.data.prioritized import INDEX, PrioritizedReplay
from engine.ops.schedules import Schedule
from engine.tree import as_tree


class FindsErrors(Protocol):
    """A policy that keeps the errors (B,) of the batch that it learned from last."""

    td_error: Any


def anneal_importance(buffer: PrioritizedReplay, beta: Schedule) -> Middleware:
    """Set how far the importance weights undo the bias of drawing by priority; `beta` maps progress, 0 to 1.

    Stands before what learns.  Reads: ctx.progress.
    """

    def anneal_importance(ctx: Any) -> None:
        buffer.beta = beta(ctx.progress)

    return anneal_importance


def update_priorities(policy: FindsErrors, buffer: PrioritizedReplay) -> Middleware:
    """Tell the buffer the newest errors of the batch that was just learned from.

    Stands behind `train`.  Reads: ctx.batch.replay_index, the errors that the policy keeps.
    """

    def update_priorities(ctx: Any) -> None:
        # of numpy or of a device: as a tensor both are asked alike
        errors = as_tree(policy.td_error).numpy(force=True)
        buffer.update(ctx.batch[INDEX].numpy(force=True), errors)

    return update_priorities
