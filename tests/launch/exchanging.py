"""A program of the real exchange without torch, which counts its env steps, and can lose some on purpose."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from engine.bus.bus import Bus
from engine.context import OnlineContext
from engine.middleware.functional.exchange import (
    TRAJECTORIES,
    follow_model,
    publish_model,
    receive_trajectories,
    send_trajectories,
)
from engine.recipes.roles import COLLECT_AND_LEARN, COLLECTOR, LEARNER
from engine.task import Task

ROLES = (COLLECTOR, LEARNER)
STEPS = 16


class Exchanged(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far to go, and what is lost on the way."""

    until: int = 800
    lose: str = ""
    """"collector": a trajectory between environment and sending; "learner": an item that came."""
    fail: bool = False
    """Whether the learner fails before its first iteration has ended."""


class Mind:
    version = 0

    def weights(self) -> dict[str, Any]:
        return {}

    def take_weights(self, weights: dict[str, Any], version: int) -> None:
        self.version = version


def exchange(
    config: Exchanged, *, watch: Any = None, roles: frozenset[str] = COLLECT_AND_LEARN, bus: Bus | None = None
) -> Task:
    """Return the task of one role."""
    task = Task(OnlineContext(), bus=bus)
    mind: Any = Mind()
    if "collector" in roles:
        made = task.bus.meter.steps()

        def collect(ctx: Any) -> None:
            for _ in range(2 if config.lose == "collector" and ctx.total_step == 3 else 1):
                made[0] += STEPS
                no = np.zeros((STEPS, 1), bool)
                ctx.trajectory = {"valid": ~no, "terminated": no, "truncated": no}

        task.use(follow_model(mind, task.bus), collect, send_trajectories(mind, task.bus, timeout=20))
    if "learner" in roles:
        receive = receive_trajectories(mind, task.bus, timeout=20)

        def lose(ctx: Any) -> None:
            if config.lose == "learner" and ctx.total_step == 3:
                task.bus.take(TRAJECTORIES, timeout=20)
            if config.fail:
                receive(ctx)
                raise ValueError("the learner failed at once")

        def end(ctx: Any) -> None:
            ctx.train_iter += 1
            if ctx.env_step >= config.until:
                ctx.finish("it is enough")

        task.use(lose, receive, end, publish_model(mind, task.bus), *([] if watch is None else [watch(None)]))
    return task
