"""Proximal policy optimization: collects with its own policy, and learns from each batch a few times.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347; details as Andrychowicz et al. 2021 and
Huang et al. 2022 found them to matter.  One iteration, whoever drives it::

    trajectory = {obs, reward, terminated, truncated, next_obs, and what actor.sample(obs) gave}
    value, next_value, log_prob = policy.evaluate(trajectory)
    advantage = gae(reward, value, next_value, terminated, truncated, discount, gae_lambda)
    policy.learn({obs, action, log_prob, value, advantage, returns: advantage + value})
    actor.load(policy)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from engine.ops.ppo import PPOLoss, normalize, ppo_gradient
from engine.policies.actor_critic import (
    ActorCriticPolicy,
    explained_variance,
    mean_rows,
    rows_to_value,
    value_and_next,
)
from engine.policies.config import PPOConfig
from engine.policies.device import leaf_map


class PPO(ActorCriticPolicy):
    """PPO for Discrete, MultiDiscrete, MultiBinary and Box actions; see `ActorCriticPolicy`."""

    algorithm = "ppo"
    config_type = PPOConfig
    config: PPOConfig

    def evaluate(self, trajectory: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns that advantages need, (T, B): value, next_value and log_prob.

        `value` is V(obs).  `next_value` is V(next_obs), of the true final observation where an episode
        was truncated, and 0 where it terminated; elsewhere next_obs is the next row's obs, whose
        value is taken.  `log_prob` is that of the recorded actions under the weights that
        chose them (from the recorded `logits` for discrete actions).
        """
        wanted, cut = rows_to_value(trajectory)
        value, next_value = value_and_next(self.values(wanted), trajectory["terminated"], cut)
        log_prob = self.head.recorded_log_prob(trajectory)
        return {"value": value, "next_value": next_value, "log_prob": log_prob}

    def learn(self, batch: Any) -> dict[str, float]:
        """Take `epochs` passes of `minibatches` gradient steps over a batch; return metrics.

        Columns, (N, ...) or (T, B, ...): obs, action, advantage, returns, and log_prob (or the
        recorded logits); value as stored at collection, needed by `value_clip` and for the
        explained variance; rows where `valid` is False are left out.  With `target_kl`, the
        first minibatch that finds the policy further than that from the one which collected ends
        the update before its own step is taken.
        """
        columns = self._rows(batch)
        rows = len(columns["advantage"])
        if rows == 0:
            raise ValueError("a batch without a single valid row cannot be learned from")
        config = self.config
        count = min(config.minibatches, rows)
        bounds = [rows * i // count for i in range(count + 1)]
        losses: list[PPOLoss] = []
        norms: list[Any] = []
        if self.custom_model:
            self.model.train()
        for _ in range(config.epochs):
            order: Any = self._shuffle_generator.permutation(rows)
            if not self._on_cpu:
                order = torch.from_numpy(order).to(self.device)
            for start, end in itertools.pairwise(bounds):
                loss, norm = self._step(columns, order[start:end])
                losses.append(loss)
                if norm is None:
                    break
                norms.append(norm)
            else:
                continue
            break
        if self.custom_model:
            self.model.eval()
        self.version += 1
        return self._metrics(columns, losses, norms)

    def _step(self, columns: dict[str, Any], rows: Any) -> tuple[PPOLoss, Any]:
        """Take one gradient step on some rows; return the loss before it and the gradient's norm.

        The norm is None where no step was taken because the policy has moved too far already.
        """
        config = self.config
        picked = {name: leaf_map(lambda leaf: leaf[rows], column) for name, column in columns.items()}
        *parameters, values = self._trainer.forward(picked["obs"])
        log_prob, entropy, pull_back = self.head.evaluate(tuple(parameters), picked["action"])
        advantage = picked["advantage"]
        loss, d_log_prob, d_value, d_entropy = ppo_gradient(
            log_prob,
            picked["log_prob"],
            normalize(advantage) if config.normalize_advantage else advantage,
            values,
            picked["returns"],
            entropy,
            clip=config.clip,
            value_coef=config.value_coef,
            entropy_coef=config.entropy_coef,
            value_clip=config.value_clip,
            old_value=picked.get("value"),
        )
        if config.target_kl is not None and float(loss.kl) > config.target_kl:
            return loss, None
        return loss, self._descend([*pull_back(d_log_prob, d_entropy), d_value])

    def _rows(self, batch: Any) -> dict[str, Any]:
        """Return the columns that learning reads, one row a transition, without dummy rows."""
        columns = self._columns(batch)
        lead = columns["advantage"].ndim
        if "log_prob" not in columns:
            columns["log_prob"] = self.head.recorded_log_prob(columns)
        names = ["obs", "action", "advantage", "returns", "log_prob"]
        if "value" in columns:
            names.append("value")
        elif self.config.value_clip is not None:
            raise ValueError("value_clip needs the column 'value', as it was when the data was collected")
        valid = columns["valid"].reshape(-1) if "valid" in columns else None

        def flat(leaf: Any) -> Any:
            leaf = leaf.reshape(-1, *leaf.shape[lead:]) if lead > 1 else leaf
            return leaf if valid is None else leaf[valid]

        return {name: leaf_map(flat, columns[name]) for name in names}

    def _metrics(self, columns: dict[str, Any], losses: list[PPOLoss], norms: list[Any]) -> dict[str, float]:
        means = mean_rows(losses)
        metrics = {
            "train/loss_policy": means[1],
            "train/loss_value": means[2],
            "train/entropy": means[3],
            "train/kl": means[4],
            "train/clip_fraction": means[5],
            "train/learning_rate": self.learning_rate,
            "train/minibatches": float(len(norms)),
        }
        if norms:
            metrics["train/grad_norm"] = mean_rows([(norm,) for norm in norms])[0]
        if "value" in columns:
            metrics["train/explained_variance"] = explained_variance(columns["returns"], columns["value"])
        return metrics
