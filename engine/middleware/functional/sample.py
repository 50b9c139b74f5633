"""Draw a batch to train on."""

from __future__ import annotations

from typing import Any

from engine.context import Middleware
from engine.tree import as_tree
from engine.types import Buffer


def sample(buffer: Buffer, *, batch_size: int) -> Middleware:
    """Draw `batch_size` transitions, uniformly with replacement.

    Writes: ctx.batch: a TreeTensor (batch_size, ...).
    """

    def sample(ctx: Any) -> None:
        ctx.batch = as_tree(buffer.sample(batch_size))

    return sample
