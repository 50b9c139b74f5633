"""What policies of a net with an actor and a critic have in common: their net, acting, values, metrics."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from engine.errors import ConfigError
from engine.nets.actor_critic import ActorCritic
from engine.nets.encoders import encoder
from engine.ops.arrays import namespace
from engine.policies.base import TorchPolicy, flatten, weights_of
from engine.policies.config import ActorCriticConfig
from engine.policies.forward import policy_forward, value_forward
from engine.policies.heads import Gaussian, head_for
from engine.policies.noise import Noise
from engine.policies.own_model import try_model, warn_of_ratios
from engine.policies.spaces import Space
from engine.types import Arrays

_CPU = torch.device("cpu")


class ActorCriticPolicy(TorchPolicy):
    """A stochastic policy with a value for Discrete, MultiDiscrete, MultiBinary and Box actions.

    `model` replaces the net: an `nn.Module` with the methods of `nets.actor_critic.ActorCriticModel`.
    Raises `EnvError` for spaces without a net or head, `ConfigError` for a model whose outputs
    have other shapes or for a device that is absent.  A subclass says how it learns.
    """

    config_type: ClassVar[type[ActorCriticConfig]]
    config: ActorCriticConfig

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        config: ActorCriticConfig | None = None,
        *,
        device: str = "cpu",
        seed: int = 0,
        model: nn.Module | None = None,
    ) -> None:
        settings = config or self.config_type()
        head = head_for(action_space)
        if model is not None:
            _check(model, observation_space, head.outputs, isinstance(head, Gaussian))

        def build() -> nn.Module:
            return ActorCritic(
                encoder(observation_space),
                head.outputs,
                hidden=settings.hidden,
                activation=settings.activation,
                shared=settings.shared,
                log_std=settings.log_std_init if isinstance(head, Gaussian) else None,
            )

        super().__init__(
            observation_space, action_space, settings, build=build, model=model, device=device, seed=seed
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

    def actor(self, generator: np.random.Generator) -> ActorCriticActor:
        """Return a copy on CPU that collects, drawing from `generator`, which is its own from now on."""
        return ActorCriticActor(self, generator)

    def values(self, obs: Arrays) -> Any:
        """Return V(obs) (B,) float32 for numpy observations (B, ...)."""
        return self._value(obs)[0]


class ActorCriticActor:
    """Acts for collecting, with a copy of the policy's weights on CPU.

    `sample` gives the columns ``action`` and ``logits`` (discrete actions; the head turns them into
    log-probabilities once per trajectory) or ``log_prob`` (Box).  Box actions are raw: whoever
    steps the environment clips them.
    """

    def __init__(self, policy: ActorCriticPolicy, generator: np.random.Generator) -> None:
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

    def take_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Copy what `weights` of the policy returned, in this process or another."""
        self._weights.load(weights)
        self.version = version

    def load(self, policy: ActorCriticPolicy) -> None:
        """Copy the policy's weights and version."""
        self._weights.copy_from(policy._weights)
        self.version = policy.version

    def state_dict(self) -> dict[str, Any]:
        return {"version": self.version, "model": weights_of(self._model), "noise": self._noise.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.version = int(state["version"])
        self._model.load_state_dict(state["model"])
        self._noise.load_state_dict(state["noise"])


def rows_to_value(trajectory: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the observations whose values a trajectory (T, B) needs, and where it was cut, (T, B) bool.

    They are its T * B rows and, behind them, the true next observations of the rows where the sum goes
    on elsewhere: those that were truncated, and the last ones; not where it terminated.
    """
    terminated, truncated = trajectory["terminated"], trajectory["truncated"]
    steps, num_envs = terminated.shape
    cut = truncated & ~terminated
    cut[-1] = ~terminated[-1]

    def wanted(obs: Any, next_obs: Any) -> Any:
        if isinstance(obs, dict):
            return {name: wanted(obs[name], next_obs[name]) for name in obs}
        rows = obs.reshape(steps * num_envs, *obs.shape[2:])
        return namespace(obs).concat([rows, next_obs[cut]])

    return wanted(trajectory["obs"], trajectory["next_obs"]), cut


def value_and_next(found: Any, terminated: Any, cut: Any) -> tuple[Any, Any]:
    """Return V(obs) and V(next_obs), both (T, B), from the values of `rows_to_value`.

    The second is that of the true final observation where an episode was truncated, and 0 where it
    terminated; elsewhere next_obs is the next row's obs, whose value is taken.
    """
    steps, num_envs = cut.shape
    value = found[: steps * num_envs].reshape(steps, num_envs)
    next_value = namespace(value).zeros_like(value)
    next_value[:-1] = value[1:]
    next_value[terminated] = 0.0
    next_value[cut] = found[steps * num_envs :]
    return value, next_value


def explained_variance(returns: Any, value: Any) -> float:
    """Return which share of the returns' variance the values explain: 1 all of it, below 0 less than none."""
    variance = float(returns.var())
    left = float((returns - value).var())
    # of returns that are all alike there is nothing to explain
    return 1.0 - left / variance if variance > 0 else 0.0


def mean_rows(rows: Sequence[Any]) -> list[float]:
    """Return column means as floats; a device is waited for once."""
    if isinstance(rows[0][0], torch.Tensor):
        means: list[float] = torch.stack([torch.stack(tuple(row)) for row in rows]).mean(0).tolist()
        return means
    return [float(mean) for mean in np.array(rows, np.float64).mean(0)]


def _check(model: nn.Module, observation_space: Space, outputs: int, gaussian: bool) -> None:
    """Raise `ConfigError` unless a model of the user's own answers as the algorithm expects."""
    name = type(model).__name__
    for method in ("policy", "value"):
        if not callable(getattr(model, method, None)):
            raise ConfigError(
                f"{name} has no method {method}(obs); see engine.nets.actor_critic.ActorCriticModel"
            )
    calls = (lambda m, obs: m.policy(obs), lambda m, obs: m.value(obs), lambda m, obs: m(obs))
    *_, (out, value) = try_model(model, observation_space, calls)
    found = [tuple(o.shape) for o in (out if isinstance(out, tuple) else (out,))]
    expected = [(2, outputs)] * (2 if gaussian else 1)
    if found != expected or tuple(value.shape) != (2,):
        raise ConfigError(
            f"for 2 observations {name} gave policy outputs of shapes {found} and values of "
            f"{tuple(value.shape)}; expected {expected} and (2,)"
        )
    warn_of_ratios(model, observation_space, lambda m, obs: m(obs)[0])
