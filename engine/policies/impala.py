"""IMPALA: learns from what older copies of the policy did, with importance weights for how it has changed.

Espeholt et al. 2018, https://arxiv.org/abs/1802.01561.  One iteration, whoever drives it::

    trajectory = {obs, reward, terminated, truncated, next_obs, and what actor.sample(obs) gave}
    policy.learn(trajectory)     # targets and advantages by V-trace, under the weights of now
    actor.load(policy)           # now and then: the trajectories may be of any age
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.ops.arrays import namespace
from engine.ops.impala import ImpalaLoss, impala_gradient
from engine.ops.returns import VTrace, vtrace
from engine.policies.actor_critic import (
    ActorCriticPolicy,
    explained_variance,
    mean_rows,
    rows_to_value,
    value_and_next,
)
from engine.policies.config import IMPALAConfig
from engine.policies.device import leaf_map


class IMPALA(ActorCriticPolicy):
    """IMPALA for Discrete, MultiDiscrete, MultiBinary and Box actions; see `ActorCriticPolicy`."""

    algorithm = "impala"
    config_type = IMPALAConfig
    config: IMPALAConfig

    def learn(self, batch: Any) -> dict[str, float]:
        """Take one gradient step on trajectories (T, B, ...); return metrics.

        Columns: obs, action, reward, terminated, truncated, next_obs, and log_prob under the weights
        that acted (or the recorded logits); `next_obs` is the true next observation.  Rows where
        `valid` is False are left out.  Environments may come from actors of different versions.
        """
        config = self.config
        columns = self._columns(batch)
        terminated, truncated = columns["terminated"], columns["truncated"]
        steps, num_envs = terminated.shape
        rows = steps * num_envs
        valid, weight = _shares(columns)
        behaviour = self._behaviour(columns)
        obs, cut = rows_to_value(columns)
        if self.custom_model:
            self.model.train()
        *outputs, values = self._trainer.forward(obs)
        if self.custom_model:
            self.model.eval()

        action = leaf_map(lambda leaf: leaf.reshape(rows, *leaf.shape[2:]), columns["action"])
        log_prob, entropy, pull_back = self.head.evaluate(tuple(out[:rows] for out in outputs), action)
        value, next_value = value_and_next(values, terminated, cut)
        log_ratio = log_prob.reshape(steps, num_envs) - behaviour
        trace = vtrace(
            log_ratio,
            columns["reward"],
            value,
            next_value,
            terminated,
            truncated,
            config.discount,
            config.vtrace_lambda,
            rho_clip=config.rho_clip,
            c_clip=config.c_clip,
            valid=valid,
        )
        loss, d_log_prob, d_value, d_entropy = impala_gradient(
            log_prob,
            trace.advantage.reshape(rows),
            value.reshape(rows),
            trace.target.reshape(rows),
            entropy,
            value_coef=config.value_coef,
            entropy_coef=config.entropy_coef,
            weight=weight,
        )
        # Of the observations behind the rows only the values were needed, as constants.
        gradients = [*pull_back(d_log_prob, d_entropy), d_value]
        pairs = zip(gradients, [*outputs, values], strict=True)
        norm = self._descend([_padded(gradient, output) for gradient, output in pairs])
        self.version += 1
        means = self._means(loss, weight, log_ratio.reshape(rows), trace.rho.reshape(rows), norm)
        if valid is not None:
            trace, value = VTrace(*(column[valid] for column in trace)), value[valid]
        return {
            "train/loss_policy": means[0],
            "train/loss_value": means[1],
            "train/entropy": means[2],
            "train/kl": means[3],
            "train/rho_mean": means[4],
            "train/grad_norm": means[5],
            "train/explained_variance": explained_variance(trace.target, value),
            "train/learning_rate": self.learning_rate,
        }

    def _means(self, loss: ImpalaLoss, weight: Any, log_ratio: Any, rho: Any, norm: Any) -> list[float]:
        """Return what is told about the update as floats; a device is waited for once."""
        xp = namespace(weight)
        # k3 of `engine.ops.ppo`; the weights that acted may be so old that exp() overflows
        near = xp.clip(log_ratio, None, 20.0)
        kl, rho_mean = weight @ (xp.expm1(near) - near), weight @ rho
        found = [loss.policy, loss.value, loss.entropy, kl, rho_mean]
        return mean_rows([[*found, norm]])

    def _behaviour(self, columns: Mapping[str, Any]) -> Any:
        """Return log mu(a|s) (T, B) of the weights that acted."""
        if "log_prob" in columns:
            return columns["log_prob"]
        if "logits" in columns:
            return self.head.recorded_log_prob(columns)
        raise ValueError(
            "importance weights need the column 'log_prob' or 'logits' of the weights that chose the actions"
        )


def _shares(columns: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return which rows are transitions (T, B), None for all, and each row's share of a mean (T * B,)."""
    reward, valid = columns["reward"], columns.get("valid")
    xp = namespace(reward)
    if valid is None or bool(valid.all()):
        ones = xp.ones_like(reward).reshape(-1)
        return None, ones / ones.shape[0]
    count = int(valid.sum())
    if count == 0:
        raise ValueError("a batch without a single valid row cannot be learned from")
    return valid, xp.astype(valid, reward.dtype).reshape(-1) / count


def _padded(gradient: Any, output: Any) -> Any:
    """Return a gradient by the first rows of an output as one by all of them."""
    xp = namespace(gradient)
    return xp.concat([gradient, xp.zeros_like(output[len(gradient) :])])
