"""A program of collectors and a learner, by the real exchange, that counts every env step and can misbehave.

An env step carries its number at its collector.  The learner checks that the numbers of each collector
come without a gap and without a repetition.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import msgspec
import numpy as np

from engine.bus.bus import Bus
from engine.context import OnlineContext
from engine.errors import DeadlineExceeded, EngineError, Overloaded
from engine.middleware.functional.exchange import (
    follow_model,
    publish_model,
    receive_trajectories,
    send_trajectories,
)
from engine.recipes.roles import COLLECT_AND_LEARN, COLLECTOR, LEARNER
from engine.task import Task

ROLES = (COLLECTOR, LEARNER)
STEPS = 16


class Storm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to run, and what is to go wrong."""

    until: int = 1_000_000_000
    """Env steps."""
    pause: float = 0.01
    """Seconds that a collector takes for an item."""
    lockstep: bool = False
    patience: float = 60.0
    size: int = 1 << 17
    """Bytes that an item, and a model, has beside: enough for shared memory."""
    flood: str = ""
    """The seat that sends as much as it can of everything."""
    hang: str = ""
    """The seat whose task stands still after 20 iterations."""
    deaf: str = ""
    """The seat whose bus can be made to stand still: it serves ``<role>_stare``."""


class Mind:
    """Weights that are only counted."""

    def __init__(self, size: int) -> None:
        self.version = 0
        self._weights = np.zeros(size, np.uint8)

    def weights(self) -> dict[str, Any]:
        return {"all": self._weights}

    def take_weights(self, weights: dict[str, Any], version: int) -> None:
        self.version = version


def storm(
    config: Storm, *, watch: Any = None, roles: frozenset[str] = COLLECT_AND_LEARN, bus: Bus | None = None
) -> Task:
    """Return the task of one role."""
    task = Task(OnlineContext(), bus=bus)
    name = task.bus.peer
    mind: Any = Mind(config.size)
    task.bus.declare("collector_noise")
    if config.deaf and config.deaf in name:

        def stare() -> None:
            while True:
                time.sleep(1)

        task.bus.serve(f"{task.bus.role}_stare", stare, thread="inline")

    def hang(ctx: Any) -> None:
        if config.hang and config.hang in name and ctx.total_step == 20:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(0.1)

    if "collector" in roles:
        number = 0
        made = task.bus.meter.steps()

        def collect(ctx: Any) -> None:
            nonlocal number
            time.sleep(config.pause)
            steps = np.arange(number, number + STEPS)
            number += STEPS
            made[0] += STEPS
            no = np.zeros((STEPS, 1), bool)
            ctx.trajectory = {
                "number": steps[:, None],
                "who": np.full((STEPS, 1), int(name.rpartition("_")[2])),
                "valid": ~no,
                "terminated": no,
                "truncated": no,
                "ballast": np.zeros((STEPS, 1, config.size // STEPS), np.uint8),
            }

        flood = Flood(task.bus)
        if config.flood and config.flood in name:
            task.own(flood)
            task.use(flood)
        task.use(
            follow_model(mind, task.bus, lockstep=config.lockstep, timeout=config.patience),
            hang,
            collect,
            send_trajectories(mind, task.bus, timeout=config.patience),
        )
    if "learner" in roles:
        expected: dict[int, int] = {}
        noise = {"count": 0}

        def hear(number: int) -> None:
            noise["count"] += 1

        task.bus.on("collector_noise", hear)
        task.bus.serve("learner_echo", lambda value: value)

        def learn(ctx: Any) -> None:
            mind.version += 1
            ctx.train_iter += 1
            ctx.metrics["train/noise"] = float(noise["count"])
            columns = ctx.trajectory["who"][0].tolist(), ctx.trajectory["number"].T
            for who, column in zip(*columns, strict=True):
                first, last = int(column[0]), int(column[-1])
                if first not in (0, expected.get(who, 0)) or last != first + STEPS - 1:
                    raise AssertionError(
                        f"of collector_{who} came {first} ... {last} where {expected.get(who, 0)} was next"
                    )
                expected[who] = last + 1
            if ctx.env_step >= config.until:
                ctx.finish("the storm is over")

        task.use(
            receive_trajectories(mind, task.bus, lockstep=config.lockstep, timeout=config.patience),
            hang,
            learn,
            publish_model(mind, task.bus),
            *([] if watch is None else [watch(None)]),
        )
    return task


class Flood:
    """Sends events and calls as quickly as it can, from threads of its own, until the task is closed."""

    transient = True

    def __init__(self, bus: Bus) -> None:
        self._bus, self._over = bus, threading.Event()
        self._threads: list[threading.Thread] = []

    def __call__(self, ctx: Any) -> None:
        """Begin."""
        if not self._threads:
            work = [self._emit, *[self._call] * 8]
            self._threads = [threading.Thread(target=one, daemon=True) for one in work]
            for thread in self._threads:
                thread.start()

    def close(self) -> None:
        """End."""
        self._over.set()
        for thread in self._threads:
            thread.join(10)

    def _emit(self) -> None:
        number = 0
        while not self._over.is_set():
            self._bus.emit("collector_noise", number)
            number += 1

    def _call(self) -> None:
        while not self._over.is_set():
            try:
                self._bus.call("learner_echo", b"x" * 1000, timeout=1)
            except (DeadlineExceeded, Overloaded):
                continue
            except EngineError:
                return  # the run is over
