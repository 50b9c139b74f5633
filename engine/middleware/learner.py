"""The learners: they keep training in step with collecting."""

from __future__ import annotations

from engine.context import OnlineContext
from engine.errors import UsageError
from engine.middleware.functional.sample import sample
from engine.middleware.functional.staleness import measure_staleness
from engine.middleware.functional.train import train
from engine.pipeline import serial
from engine.types import Buffer, Policy


class ReplayLearner:
    """Train on batches from a buffer: `updates_per_step` updates for each env step after `warm_up`.

    The ratio holds exactly over the run, whatever number of environments steps at once: it is
    computed from the counters, so nothing is owed or lost between iterations.

    Reads: ctx.env_step, ctx.train_iter.  Writes: ctx.batch, ctx.train_iter, ctx.metrics["train/..."].
    """

    def __init__(
        self,
        policy: Policy,
        buffer: Buffer,
        *,
        batch_size: int,
        warm_up: int = 1_000,
        updates_per_step: float = 1.0,
    ) -> None:
        if warm_up < 0 or not updates_per_step > 0:
            raise UsageError(
                f"warm_up is at least 0 and updates_per_step above 0, not {warm_up} and {updates_per_step}"
            )
        self.warm_up = warm_up
        self.updates_per_step = updates_per_step
        self._buffer = buffer
        self.pipeline = serial(
            sample(buffer, batch_size=batch_size), measure_staleness(policy), train(policy)
        )

    def __call__(self, ctx: OnlineContext) -> None:
        if not len(self._buffer):
            return  # n-step transitions may still wait for their rest
        goal = (ctx.env_step - self.warm_up) * self.updates_per_step
        while ctx.train_iter < goal:
            self.pipeline(ctx)
