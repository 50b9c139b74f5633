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

import copy
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from engine.errors import ConfigError
from engine.nets.actor_critic import ActorCritic
from engine.nets.encoders import encoder
from engine.ops.ppo import PPOLoss, normalize, ppo_gradient
from engine.policies.base import TorchPolicy, flatten, weights_of, zero_observations
from engine.policies.config import PPOConfig
from engine.policies.device import leaf_map
from engine.policies.forward import policy_forward, value_forward
from engine.policies.heads import Gaussian, head_for
from engine.policies.noise import Noise
from engine.policies.spaces import Space
from engine.types import Arrays

_CPU = torch.device("cpu")


class PPO(TorchPolicy):
    """PPO for Discrete, MultiDiscrete, MultiBinary and Box actions.

    `model` replaces the net: an `nn.Module` with the methods of `nets.actor_critic.ActorCriticModel`.
    Raises `EnvError` for spaces without a net or head, `ConfigError` for a model whose outputs
    have other shapes or for a device that is absent.
    """

    algorithm = "ppo"
    config_type = PPOConfig
    config: PPOConfig

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        config: PPOConfig | None = None,
        *,
        device: str = "cpu",
        seed: int = 0,
        model: nn.Module | None = None,
    ) -> None:
        config = config or PPOConfig()
        head = head_for(action_space)
        if model is not None:
            _check(model, observation_space, head.outputs, isinstance(head, Gaussian))

        def build() -> nn.Module:
            return ActorCritic(
                encoder(observation_space),
                head.outputs,
                hidden=config.hidden,
                activation=config.activation,
                shared=config.shared,
                log_std=config.log_std_init if isinstance(head, Gaussian) else None,
            )

        super().__init__(
            observation_space, action_space, config, build=build, model=model, device=device, seed=seed
        )
        self.head = head
        self._forward = policy_forward(self.model, self.device)
        self._value = value_forward(self.model, self.device)

    def _choose(self, obs: Arrays, deterministic: bool) -> Any:
        parameters = self._forward(obs)
        if deterministic:
            return self.head.mode(parameters)
        noise = self.head.draw(self._act_generator, (len(parameters[0]), self.head.outputs))
        return self.head.sample(parameters, noise)["action"]

    def actor(self, generator: np.random.Generator) -> PPOActor:
        """Return a copy on CPU that collects, drawing from `generator`, which is its own from now on."""
        return PPOActor(self, generator)

    def values(self, obs: Arrays) -> Any:
        """Return V(obs) (B,) float32 for numpy observations (B, ...)."""
        return self._value(obs)[0]

    def evaluate(self, trajectory: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns that advantages need, (T, B): value, next_value and log_prob.

        `value` is V(obs).  `next_value` is V(next_obs), of the true final observation where an episode
        was truncated, and 0 where it terminated; elsewhere next_obs is the next row's obs, whose
        value is taken.  `log_prob` is that of the recorded actions under the weights that
        chose them (from the recorded `logits` for discrete actions).
        """
        terminated, truncated = trajectory["terminated"], trajectory["truncated"]
        steps, num_envs = terminated.shape
        cut = truncated & ~terminated
        cut[-1] = ~terminated[-1]

        def wanted(obs: Any, next_obs: Any) -> Any:
            if isinstance(obs, dict):
                return {name: wanted(obs[name], next_obs[name]) for name in obs}
            return np.concatenate([obs.reshape(steps * num_envs, *obs.shape[2:]), next_obs[cut]])

        found = self.values(wanted(trajectory["obs"], trajectory["next_obs"]))
        value = found[: steps * num_envs].reshape(steps, num_envs)
        next_value = np.zeros_like(value)
        next_value[:-1] = value[1:]
        next_value[terminated] = 0.0
        next_value[cut] = found[steps * num_envs :]
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
        means = _mean_rows(losses)
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
            metrics["train/grad_norm"] = _mean_rows([(norm,) for norm in norms])[0]
        if "value" in columns:
            variance = float(columns["returns"].var())
            left = float((columns["returns"] - columns["value"]).var())
            # of returns that are all alike there is nothing to explain
            metrics["train/explained_variance"] = 1.0 - left / variance if variance > 0 else 0.0
        return metrics


class PPOActor:
    """Acts for collecting, with a copy of the policy's weights on CPU.

    `sample` gives the columns ``action`` and ``logits`` (discrete actions; `PPO.evaluate` turns
    them into log-probabilities once per trajectory) or ``log_prob`` (Box).  Box actions are
    raw: whoever steps the environment clips them.
    """

    def __init__(self, policy: PPO, generator: np.random.Generator) -> None:
        self.version = policy.version
        self._head = policy.head
        self._model = copy.deepcopy(policy.model).to(_CPU).eval()
        self._weights = flatten(self._model)
        self._forward = policy_forward(self._model, _CPU)
        self._noise = Noise(generator, policy.head.draw, policy.head.outputs)

    def sample(self, obs: Arrays) -> dict[str, Arrays]:
        """Draw actions for observations (B, ...); return the columns to record."""
        parameters = self._forward(obs)
        return self._head.sample(parameters, self._noise(len(parameters[0])))

    def act(self, obs: Arrays) -> Arrays:
        """Return the likeliest actions (B, ...); draws no numbers."""
        actions: Arrays = self._head.mode(self._forward(obs))
        return actions

    def load(self, policy: PPO) -> None:
        """Copy the policy's weights and version."""
        self._weights.copy_from(policy._weights)
        self.version = policy.version

    def state_dict(self) -> dict[str, Any]:
        return {"version": self.version, "model": weights_of(self._model), "noise": self._noise.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.version = int(state["version"])
        self._model.load_state_dict(state["model"])
        self._noise.load_state_dict(state["noise"])


def _mean_rows(rows: list[Any]) -> list[float]:
    """Return column means as floats; a device is waited for once."""
    if isinstance(rows[0][0], torch.Tensor):
        means: list[float] = torch.stack([torch.stack(tuple(row)) for row in rows]).mean(0).tolist()
        return means
    return [float(mean) for mean in np.array(rows, np.float64).mean(0)]


def _check(model: nn.Module, observation_space: Space, outputs: int, gaussian: bool) -> None:
    """Raise `ConfigError` unless a model of the user's own answers as the algorithm expects."""
    place = next(iter(model.parameters()), torch.zeros(())).device
    obs = leaf_map(lambda leaf: leaf.to(place), zero_observations(observation_space, 2))
    name = type(model).__name__
    for method in ("policy", "value"):
        if not callable(getattr(model, method, None)):
            raise ConfigError(
                f"{name} has no method {method}(obs); see engine.nets.actor_critic.ActorCriticModel"
            )
    with torch.no_grad():
        out, value = model.eval()(obs)
    found = [tuple(o.shape) for o in (out if isinstance(out, tuple) else (out,))]
    expected = [(2, outputs)] * (2 if gaussian else 1)
    if found != expected or tuple(value.shape) != (2,):
        raise ConfigError(
            f"for 2 observations {name} gave policy outputs of shapes {found} and values of "
            f"{tuple(value.shape)}; expected {expected} and (2,)"
        )
