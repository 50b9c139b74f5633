"""Programs of two roles that the tests launch: collectors push numbers, a learner sums them up."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec

from engine.bus.bus import Bus
from engine.context import OnlineContext
from engine.errors import UsageError
from engine.recipes.roles import COLLECT_AND_LEARN, COLLECTOR, LEARNER
from engine.task import Task

ROLES = (COLLECTOR, LEARNER)


class Sum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far to sum, and what is to go wrong."""

    until: int = 200
    pause: float = 0.0
    """Seconds that a collector takes for a number."""
    fail: str = ""
    """The seat that raises an error."""
    mistake: str = ""
    """The seat that finds something wrong with the configuration."""
    kill: str = ""
    """The seat that is killed, once: the next to sit there lives."""
    at: int = 5
    """The number at which that happens."""
    hang: str = ""
    """The seat that hangs and does not listen to anybody."""
    said: str = ""
    """Words that somebody must have said before the learner ends."""
    mark: str = ""
    """A file by which a killed seat knows that it was killed before."""


def add(
    config: Sum,
    *,
    watch: Any = None,
    roles: frozenset[str] = COLLECT_AND_LEARN,
    bus: Bus | None = None,
) -> Task:
    """Return the task of one role of the program."""
    task = Task(OnlineContext(), bus=bus)
    bus = task.bus
    name = getattr(bus, "peer", "")
    bus.declare("collector_numbers", kind="stream", capacity=4)

    def misbehave(number: int) -> None:
        if number < config.at:
            return
        if config.fail and config.fail in name:
            raise ValueError(f"{name} does not like {number}")
        if config.mistake and config.mistake in name:
            raise UsageError(f"{name} has not what it takes")
        if config.kill and config.kill in name and not os.path.exists(config.mark):
            with open(config.mark, "w"):
                os.kill(os.getpid(), signal.SIGKILL)
        if config.hang and config.hang in name:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print(f"{name} hangs", flush=True)
            while True:
                time.sleep(0.1)

    def said() -> str:
        return "".join(path.read_text() for path in Path("run/logs").glob("*.jsonl"))

    def push(ctx: OnlineContext) -> None:
        misbehave(ctx.total_step)
        if config.pause:
            time.sleep(config.pause)
        try:
            bus.push("collector_numbers", 1, timeout=0.5)
        except TimeoutError:
            return  # nobody takes it, perhaps because the run is over
        ctx.env_step += 1

    def total(ctx: OnlineContext) -> None:
        misbehave(ctx.total_step)
        ctx.env_step += bus.take("collector_numbers", timeout=20).value
        ctx.train_iter += 1
        ctx.metrics["train/total"] = float(ctx.env_step)
        if ctx.env_step >= config.until and config.said in said():
            ctx.finish("the sum is reached")

    if "collector" in roles:
        again = " again" if config.mark and os.path.exists(config.mark) else ""
        print(f"hello{again} from {name}", flush=True)
        task.use(push)
    if "learner" in roles:
        bus.consume("collector_numbers", capacity=4)
        task.use(total, *([] if watch is None else [watch(None)]))
    return task


def alone(config: Sum) -> Task:
    """A recipe without roles."""
    return Task().use(lambda ctx: ctx.finish("done"))
