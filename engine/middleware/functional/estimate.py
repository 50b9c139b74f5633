"""Turn a trajectory into a batch that a policy-gradient method learns from."""

from __future__ import annotations

from typing import Any, Protocol

from engine.context import Middleware
from engine.data.trajectories import flatten
from engine.ops.returns import gae
from engine.tree import as_tree
from engine.types import Arrays


class Critic(Protocol):
    """A policy that can tell the values of what was collected."""

    def evaluate(self, trajectory: dict[str, Arrays]) -> dict[str, Any]:
        """Return the columns (T, B) ``value``, ``next_value`` (of the true next_obs) and ``log_prob``."""
        ...


def estimate_advantage(policy: Critic, *, discount: float, gae_lambda: float) -> Middleware:
    """Estimate advantages with GAE (Schulman et al. 2016) and make the batch of valid rows.

    Reads: ctx.trajectory (T, B, ...).  Writes: ctx.batch: a TreeTensor (N, ...) of obs, action,
    log_prob, value, advantage, returns, and version where the trajectory has it.
    """

    def estimate_advantage(ctx: Any) -> None:
        trajectory = ctx.trajectory
        columns = policy.evaluate(trajectory)
        valid = trajectory["valid"]
        advantage = gae(
            trajectory["reward"],
            columns["value"],
            columns["next_value"],
            trajectory["terminated"],
            trajectory["truncated"],
            discount,
            gae_lambda,
            valid=valid,
        )
        rows = {
            "obs": trajectory["obs"],
            "action": trajectory["action"],
            "log_prob": columns["log_prob"],
            "value": columns["value"],
            "advantage": advantage,
            "returns": advantage + columns["value"],
        }
        if "version" in trajectory:
            rows["version"] = trajectory["version"]
        ctx.batch = as_tree(flatten(rows, valid))

    return estimate_advantage
