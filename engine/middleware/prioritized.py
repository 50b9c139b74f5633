"""The learner that draws by priority, and keeps the priorities true."""

from __future__ import annotations

from typing import Protocol

from engine.data.prioritized import PrioritizedReplay
from engine.middleware.functional.priorities import FindsErrors, update_priorities
from engine.middleware.functional.sample import sample
from engine.middleware.functional.staleness import measure_staleness
from engine.middleware.functional.train import train
from engine.middleware.learner import ReplayLearner
from engine.pipeline import serial
from engine.types import Policy


class ErrorPolicy(Policy, FindsErrors, Protocol):
    """A policy that keeps the errors of the batch that it learned from last."""


class PrioritizedLearner(ReplayLearner):
    """A `ReplayLearner` on a prioritised buffer: what was learned from gets the priority of its newest error.

    Reads: ctx.env_step, ctx.train_iter.  Writes: ctx.batch, ctx.train_iter, ctx.metrics["train/..."].
    """

    def __init__(
        self,
        policy: ErrorPolicy,
        buffer: PrioritizedReplay,
        *,
        batch_size: int,
        warm_up: int = 1_000,
        updates_per_step: float = 1.0,
    ) -> None:
        super().__init__(
            policy, buffer, batch_size=batch_size, warm_up=warm_up, updates_per_step=updates_per_step
        )
        self.pipeline = serial(
            sample(buffer, batch_size=batch_size),
            measure_staleness(policy),
            train(policy),
            update_priorities(policy, buffer),
        )
