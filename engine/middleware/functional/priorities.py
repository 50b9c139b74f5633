"""Keep a prioritised replay up to date with what collecting finds at first, and learning later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from engine.context import Middleware
from engine.data.prioritized import INDEX, TD_ERROR, PrioritizedReplay
from engine.ops.schedules import Schedule
from engine.tree import as_tree
from engine.types import Arrays


class FindsErrors(Protocol):
    """A policy that keeps the errors (B,) of the batch that it learned from last."""

    td_error: Any


class FindsFirstErrors(Protocol):
    """An actor that finds the errors of what it collected."""

    def td_error(self, rows: dict[str, Arrays]) -> Any:
        """Map rows (N, ...), where N may be 0, to their errors (N,)."""
        ...


def rows_with_errors(
    actor: FindsFirstErrors, make_rows: Callable[[dict[str, Arrays]], dict[str, Arrays]]
) -> Callable[[dict[str, Arrays]], dict[str, Arrays]]:
    """Return what `make_rows` makes of a trajectory, with a column ``td_error``: the first priorities.

    The actor finds them before the rows leave it, so that what is surprising is learned from first and the
    learner computes nothing for it (Horgan et al. 2018).
    """

    def rows_with_errors(trajectory: dict[str, Arrays]) -> dict[str, Arrays]:
        rows = make_rows(trajectory)
        return {**rows, TD_ERROR: actor.td_error(rows)}

    return rows_with_errors


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
