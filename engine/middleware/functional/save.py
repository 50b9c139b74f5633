"""Save policies while they learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.context import Middleware
from engine.middleware.functional.evaluate import standing
from engine.middleware.functional.rhythm import Every
from engine.policies.files import save_policy as write_policy


def save_policy(policy: Any, folder: str | Path, *, every: int) -> Middleware:
    """Save the policy into `folder`, over the one before, once for every `every` env steps.

    Reads: ctx.env_step.
    """
    due = Every(every)

    def save_policy(ctx: Any) -> None:
        if due(ctx.env_step):
            write_policy(policy, Path(folder))

    return save_policy


def save_best_policy(policy: Any, folder: str | Path, *, metric: str = "eval/return_mean") -> Middleware:
    """Save the policy into `folder` whenever `metric` is at least as good as ever before.

    Of equals the later one is kept: it has seen more.  A policy with cut episodes is compared only to
    others that have as many, and one with fewer is better (see `standing`).

    Reads: ctx.metrics[metric] and ["eval/cut"], where they are written.
    """
    best: tuple[float, float] | None = None

    def save_best_policy(ctx: Any) -> None:
        nonlocal best
        found = standing(ctx.metrics, metric)
        if found is not None and (best is None or found >= best):
            best = found
            write_policy(policy, Path(folder))

    return save_best_policy
