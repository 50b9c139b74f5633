"""Measure how long things take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from engine.context import Middleware
from engine.types import Clock


def time_iteration(*, clock: Clock = time.perf_counter) -> Middleware:
    """Record the duration of everything placed after this middleware.

    Writes: ctx.metrics["time/iteration_seconds"], also when an inner middleware fails.
    """

    def time_iteration(ctx: Any) -> Iterator[None]:
        start = clock()
        try:
            yield
        finally:
            ctx.metrics["time/iteration_seconds"] = clock() - start

    return time_iteration
