"""How old the weights are that made what is learned from."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.context import Middleware
from engine.types import Policy


def measure_staleness(policy: Policy) -> Middleware:
    """Count the updates between the weights that acted and those that are about to learn from it.

    Stands between what makes the batch and what trains on it.  Of several batches in one iteration
    the first is measured; a batch without rows, or without the column ``version``, is not.

    Reads: ctx.batch.version.  Writes: ctx.metrics["train/staleness_mean"] and
    ["train/staleness_max"], in updates of the policy.
    """

    def measure_staleness(ctx: Any) -> None:
        metrics, batch = ctx.metrics, ctx.batch
        if "train/staleness_mean" in metrics or "version" not in batch:
            return
        versions = batch["version"].numpy(force=True).reshape(-1)
        if versions.size:
            # Half the price of mean() and min(): learners that take small steps pay it with every one.
            metrics["train/staleness_mean"] = policy.version - float(np.add.reduce(versions)) / versions.size
            metrics["train/staleness_max"] = float(policy.version - versions[versions.argmin()])

    return measure_staleness
