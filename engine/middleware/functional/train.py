"""Improve a policy on a batch."""

from __future__ import annotations

from math import isfinite
from typing import Any

from engine.context import Middleware
from engine.errors import EngineError
from engine.types import Policy


def train(policy: Policy) -> Middleware:
    """Let the policy learn from the batch, once.

    Raises `EngineError` naming the first metric that is not finite: weights that are NaN once stay so.

    Reads: ctx.batch.  Writes: ctx.train_iter, ctx.metrics["train/..."].
    """

    def train(ctx: Any) -> None:
        metrics = policy.learn(ctx.batch)
        if not all(map(isfinite, metrics.values())):
            name, value = next(item for item in metrics.items() if not isfinite(item[1]))
            raise EngineError(
                f"{name} is {value} in update {ctx.train_iter + 1}, so the weights are spoilt; "
                "a smaller learning rate, or smaller rewards and observations, may help "
                "(policies saved before are kept)"
            )
        ctx.metrics.update(metrics)
        ctx.train_iter += 1

    return train
