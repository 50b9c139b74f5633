"""Improve a policy on a batch."""

from __future__ import annotations

from typing import Any

from engine.context import Middleware
from engine.types import Policy


def train(policy: Policy) -> Middleware:
    """Let the policy learn from the batch, once.

    Reads: ctx.batch.  Writes: ctx.train_iter, ctx.metrics["train/..."].
    """

    def train(ctx: Any) -> None:
        ctx.metrics.update(policy.learn(ctx.batch))
        ctx.train_iter += 1

    return train
