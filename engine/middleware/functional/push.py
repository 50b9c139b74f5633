"""Store what was collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from engine.context import Middleware
from engine.data.n_step import NStep
from engine.data.trajectories import flatten, joined
from engine.types import Arrays, Buffer

REPLAYED = ("obs", "action", "reward", "terminated", "next_obs", "version")
"""The columns that learning from replay needs."""


def push(buffer: Buffer, *, columns: tuple[str, ...] = REPLAYED) -> Middleware:
    """Store the valid transitions of this iteration; of their columns, those named in `columns`.

    Reads: ctx.trajectory (T, B, ...).
    """

    def push(ctx: Any) -> None:
        trajectory: dict[str, Arrays] = ctx.trajectory
        buffer.push(flatten({name: trajectory[name] for name in columns}, _valid(trajectory)))

    return push


def push_n_step(buffer: Buffer, n_step: NStep, *, columns: tuple[str, ...] = REPLAYED) -> Middleware:
    """Join steps to n-step transitions and store those that are complete, with a ``discount`` column.

    Reads: ctx.trajectory (T, B, ...).
    """

    def push_n_step(ctx: Any) -> None:
        for ready in _complete(n_step, ctx.trajectory, columns):
            buffer.push(ready)

    return push_n_step


def rows_to_push(
    n_step: NStep | None, *, columns: tuple[str, ...] = REPLAYED
) -> Callable[[dict[str, Arrays]], dict[str, Arrays]]:
    """Return what makes of a trajectory (T, B, ...) the rows (N, ...) that `push` or `push_n_step` stores."""

    def steps(trajectory: dict[str, Arrays]) -> dict[str, Arrays]:
        return flatten({name: trajectory[name] for name in columns}, _valid(trajectory))

    def joined_steps(trajectory: dict[str, Arrays]) -> dict[str, Arrays]:
        assert n_step is not None
        return joined([*_complete(n_step, trajectory, columns, empty=True)], axis=0)

    return steps if n_step is None else joined_steps


def prepare_rows(make_rows: Callable[[dict[str, Arrays]], dict[str, Arrays]]) -> Middleware:
    """Make the rows that `push_rows` stores where the trajectory was collected, as `rows_to_push` does.

    Reads: ctx.trajectory (T, B, ...).  Writes: ctx.rows (N, ...), where N may be 0.
    """

    def prepare_rows(ctx: Any) -> None:
        ctx.rows = make_rows(ctx.trajectory)

    return prepare_rows


def push_rows(buffer: Buffer) -> Middleware:
    """Store rows that came as they are to be stored.

    Reads: ctx.rows (N, ...).
    """

    def push_rows(ctx: Any) -> None:
        rows: dict[str, Arrays] = ctx.rows
        if len(rows["reward"]):
            buffer.push(rows)

    return push_rows


def _complete(
    n_step: NStep, trajectory: dict[str, Arrays], columns: tuple[str, ...], *, empty: bool = False
) -> Iterator[dict[str, Arrays]]:
    """Give the transitions that each time step completes; with `empty` also those of which there are none."""
    # in one order always, unlike a set: equal runs must save equal bytes
    needed = dict.fromkeys((*columns, "reward", "next_obs", "terminated", "truncated", "valid"))
    for t in range(len(trajectory["reward"])):
        ready = n_step.push({name: _row(trajectory[name], t) for name in needed})
        if empty or len(ready["reward"]):
            yield {name: ready[name] for name in (*columns, "discount")}


def _valid(trajectory: dict[str, Arrays]) -> Any:
    return trajectory.get("valid")


def _row(column: Arrays, t: int) -> Arrays:
    if isinstance(column, dict):
        return {name: _row(part, t) for name, part in column.items()}
    row: Arrays = column[t]
    return row
