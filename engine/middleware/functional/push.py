"""Store what was collected."""

from __future__ import annotations

from typing import Any

from engine.context import Middleware
from engine.data.n_step import NStep
from engine.data.trajectories import flatten
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
    # in one order always, unlike a set: equal runs must save equal bytes
    needed = dict.fromkeys((*columns, "reward", "next_obs", "terminated", "truncated", "valid"))

    def push_n_step(ctx: Any) -> None:
        trajectory: dict[str, Arrays] = ctx.trajectory
        for t in range(len(trajectory["reward"])):
            row = {name: _row(trajectory[name], t) for name in needed}
            ready = n_step.push(row)
            if len(ready["reward"]):
                buffer.push({name: ready[name] for name in (*columns, "discount")})

    return push_n_step


def _valid(trajectory: dict[str, Arrays]) -> Any:
    return trajectory.get("valid")


def _row(column: Arrays, t: int) -> Arrays:
    if isinstance(column, dict):
        return {name: _row(part, t) for name, part in column.items()}
    row: Arrays = column[t]
    return row
