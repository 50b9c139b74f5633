"""Deep Q-learning: one gradient step a call, towards targets from a slower copy of the net.

Mnih et al. 2015; double targets van Hasselt et al. 2016; dueling heads Wang et al. 2016.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from engine.errors import ConfigError
from engine.nets.encoders import encoder
from engine.nets.q_network import QNetwork
from engine.ops.arrays import namespace
from engine.ops.dqn import dqn_gradient, dqn_target
from engine.policies.base import TorchPolicy, flatten, weights_of
from engine.policies.config import DQNConfig
from engine.policies.forward import q_forward
from engine.policies.noise import Noise, uniform
from engine.policies.own_model import try_model
from engine.policies.spaces import Space, discrete_actions
from engine.types import Arrays

_CPU = torch.device("cpu")


class DQN(TorchPolicy):
    """DQN for Discrete actions.

    `model` replaces the net: an `nn.Module` that maps observations to (B, A), see
    `nets.q_network.QModel`.  `act` without `deterministic=True` takes a random action with
    probability `epsilon`, an attribute to set.  Raises `EnvError` for other action spaces.
    """

    algorithm = "dqn"
    config_type = DQNConfig
    config: DQNConfig

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        config: DQNConfig | None = None,
        *,
        device: str = "cpu",
        seed: int = 0,
        model: nn.Module | None = None,
    ) -> None:
        config = config or DQNConfig()
        self.actions = discrete_actions(action_space)
        if model is not None:
            _check(model, observation_space, self.actions)

        def build() -> nn.Module:
            return QNetwork(
                encoder(observation_space),
                self.actions,
                hidden=config.hidden,
                activation=config.activation,
                dueling=config.dueling,
            )

        super().__init__(
            observation_space, action_space, config, build=build, model=model, device=device, seed=seed
        )
        self.epsilon = 0.05
        self.td_error: Any = None
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self._target_weights = flatten(self.target)
        self._forward = q_forward(self.model, self.device)
        self._target_forward = q_forward(self.target, self.device)

    def _choose(self, obs: Arrays, deterministic: bool) -> Any:
        action = self._forward(obs)[0].argmax(-1)
        if deterministic:
            return action
        return _explore(action, uniform(self._act_generator, (len(action), 2)), self.epsilon, self.actions)

    def actor(self, generator: np.random.Generator) -> DQNActor:
        """Return a copy on CPU that collects, drawing from `generator`, which is its own from now on."""
        return DQNActor(self, generator)

    def learn(self, batch: Any) -> dict[str, float]:
        """Take one gradient step on a batch; update the target net when it is due; return metrics.

        Columns (B, ...): obs, action, reward, next_obs, and `discount` (gamma^k, 0 where terminated) or,
        for one-step transitions, `terminated`.  A truncated row bootstraps like any other.  A column
        ``weight`` multiplies each row's loss.  Afterwards `td_error` (B,) holds the errors
        q[action] - target before the step, for prioritised replay.
        """
        config, columns = self.config, self._columns(batch)
        target = self._targets(columns)
        if self.custom_model:
            self.model.train()
        (q,) = self._trainer.forward(columns["obs"])
        if self.custom_model:
            self.model.eval()
        loss, d_q, error = dqn_gradient(
            q, columns["action"], target, huber=config.huber, weight=columns.get("weight")
        )
        norm = self._descend([d_q])
        self.td_error = error
        self.version += 1
        if self.version % config.target_update == 0:
            self._update_target()
        if self._on_cpu:
            found = [loss, _mean(q), _mean(np.abs(error)), norm]
        else:
            waiting = (loss, q.mean(), abs(error).mean(), torch.as_tensor(norm))
            found = torch.stack(waiting).tolist()  # waits for the device once
        return {
            "train/loss_q": float(found[0]),
            "train/q_mean": float(found[1]),
            "train/td_error": float(found[2]),
            "train/grad_norm": float(found[3]),
            "train/learning_rate": self.learning_rate,
        }

    def _targets(self, columns: dict[str, Any]) -> Any:
        double = self.config.double
        discount = _discounts(columns, self.config)
        if self._on_cpu:
            (target_q,) = self._target_forward(columns["next_obs"])
            online_q = self._forward(columns["next_obs"])[0] if double else None
        else:
            with torch.no_grad():
                target_q = self.target(columns["next_obs"])
                online_q = self.model(columns["next_obs"]) if double else None
        return dqn_target(columns["reward"], discount, target_q, online_q)

    def _update_target(self) -> None:
        if self.config.tau == 1.0:
            self._target_weights.copy_from(self._weights)
        else:
            self._target_weights.move_towards(self._weights, self.config.tau)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "target": weights_of(self.target), "epsilon": self.epsilon}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.target.load_state_dict(state["target"])
        self.epsilon = float(state["epsilon"])

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy named tensors into the model and into the target net."""
        super().load_weights(weights)
        self._target_weights.copy_from(self._weights)


class DQNActor:
    """Acts for collecting, with a copy of the policy's weights on CPU.

    `sample` gives the column ``action``: random with probability `epsilon` in each row, greedy
    otherwise.  `epsilon` is an attribute for a schedule to set: a number, or one for each row (B,).
    """

    def __init__(self, policy: DQN, generator: np.random.Generator) -> None:
        self.version = policy.version
        self.epsilon: Any = policy.epsilon
        self._config = policy.config
        self._actions = policy.actions
        self._model = copy.deepcopy(policy.model).to(_CPU).eval()
        self._weights = flatten(self._model)
        self._forward = q_forward(self._model, _CPU)
        self._noise = Noise(generator, uniform, 2)

    def sample(self, obs: Arrays) -> dict[str, Arrays]:
        """Choose actions for observations (B, ...); return the columns to record."""
        action = self._forward(obs)[0].argmax(-1)
        return {"action": _explore(action, self._noise(len(action)), self.epsilon, self._actions)}

    def act(self, obs: Arrays) -> Arrays:
        """Return greedy actions (B,); draws no numbers."""
        actions: Arrays = self._forward(obs)[0].argmax(-1)
        return actions

    def td_error(self, rows: dict[str, Any]) -> Any:
        """Return the errors q[action] - target (N,) of rows as `DQN.learn` takes them; N may be 0.

        Both are of this copy's weights: it has no target net, so its own net stands in for that, and with
        and without `double` the target is reward + discount * max Q(next_obs).  That is what `learn` finds
        of the same weights where the target net equals them.
        """
        action = rows["action"]
        if not len(action):
            return np.zeros(0, np.float32)
        (next_q,) = self._forward(rows["next_obs"])
        target = dqn_target(rows["reward"], _discounts(rows, self._config), next_q)
        return self._forward(rows["obs"])[0][np.arange(len(action)), action] - target

    def take_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Copy what `weights` of the policy returned, in this process or another."""
        self._weights.load(weights)
        self.version = version

    def load(self, policy: DQN) -> None:
        """Copy the policy's weights and version."""
        self._weights.copy_from(policy._weights)
        self.version = policy.version

    def state_dict(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "epsilon": np.asarray(self.epsilon).tolist(),
            "model": weights_of(self._model),
            "noise": self._noise.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.version, epsilon = int(state["version"]), state["epsilon"]
        self.epsilon = np.asarray(epsilon) if isinstance(epsilon, list) else float(epsilon)
        self._model.load_state_dict(state["model"])
        self._noise.load_state_dict(state["noise"])


def _discounts(columns: dict[str, Any], config: DQNConfig) -> Any:
    """Return what the value of next_obs counts in the target of each row: 0 where the episode terminated."""
    if "discount" in columns:
        return columns["discount"]
    if config.n_step > 1:
        raise ValueError("n-step transitions need the column 'discount', gamma^k and 0 where terminated")
    terminated = columns["terminated"]
    xp = namespace(terminated)
    return config.discount * xp.astype(~terminated, xp.float32)


def _explore(greedy: Any, numbers: Any, epsilon: Any, actions: int) -> Any:
    """Return greedy actions, replaced by uniform ones where the first of a row's two numbers is < epsilon."""
    explores = numbers[:, 0] < epsilon
    if not explores.any():
        return greedy
    return np.where(explores, (numbers[:, 1] * actions).astype(greedy.dtype), greedy)


def _mean(x: Any) -> float:
    return float(np.add.reduce(x, None) / x.size)  # x.mean() takes three times as long on small arrays


def _check(model: nn.Module, observation_space: Space, actions: int) -> None:
    """Raise `ConfigError` unless a model of the user's own answers as the algorithm expects."""
    (out,) = try_model(model, observation_space, [lambda m, obs: m(obs)])
    if tuple(getattr(out, "shape", ())) != (2, actions):
        found = getattr(out, "shape", out)
        raise ConfigError(f"for 2 observations {type(model).__name__} gave {found}; expected (2, {actions})")
