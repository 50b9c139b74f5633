"""The module that PPO trains, and what a module of your own must offer in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import nn

from engine.nets.encoders import Encoder
from engine.nets.mlp import MLP, Activation

Parameters: TypeAlias = "torch.Tensor | tuple[torch.Tensor, torch.Tensor]"
"""What a policy puts out: logits (B, A) for discrete actions; (mean, log_std), both (B, D), for Box."""


class ActorCriticModel(Protocol):
    """What PPO asks of a model: any `nn.Module` with these three.

    `obs` is a tensor (B, ...) or nested dicts of them (Dict and Tuple spaces), as the environment
    gives it: integers and uint8 included.  For MultiDiscrete actions the logits of all
    components stand side by side: (B, sum of sizes); a logit of -inf rules an action out.

    `obs` must be left as it is, and nothing kept from one call to the next: models that work in place
    on it, and recurrent ones, are refused.  Dropout and batch normalisation are warned of: with them
    probability ratios do not start at 1.
    """

    def policy(self, obs: Any) -> Parameters:
        """Return the parameters of the action distribution."""
        ...

    def value(self, obs: Any) -> torch.Tensor:
        """Return V(obs), shape (B,)."""
        ...

    def __call__(self, obs: Any) -> tuple[Parameters, torch.Tensor]:
        """Return `(policy(obs), value(obs))`; what both need may be computed once."""
        ...


class ActorCritic(nn.Module):
    """An `ActorCriticModel` of MLPs over encoded observations.

    Separate nets for policy and value by default; `shared=True` gives them one trunk.  An encoder
    with parameters (images) is shared either way.  `log_std` not None makes a Gaussian policy
    whose standard deviation depends on nothing but a learned vector, starting at exp(log_std).
    Initialised orthogonally: gain sqrt(2), 0.01 for the policy's output, 1 for the value's
    (Andrychowicz et al. 2021).
    """

    log_std: nn.Parameter | None

    def __init__(
        self,
        encoder: Encoder,
        outputs: int,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        shared: bool = False,
        log_std: float | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.trunk: MLP | None = None
        inputs, sizes = encoder.outputs, tuple(hidden)
        if shared:
            self.trunk = MLP(inputs, sizes, None, activation=activation, output_gain=1.0)
            inputs, sizes = self.trunk.outputs, ()
        self.actor = MLP(inputs, sizes, outputs, activation=activation, output_gain=0.01)
        self.critic = MLP(inputs, sizes, 1, activation=activation, output_gain=1.0)
        self.log_std = None if log_std is None else nn.Parameter(torch.full((outputs,), float(log_std)))

    def _features(self, obs: Any) -> torch.Tensor:
        features: torch.Tensor = self.encoder(obs)
        return features if self.trunk is None else self.trunk(features)

    def _parameters_of(self, features: torch.Tensor) -> Parameters:
        out: torch.Tensor = self.actor(features)
        return out if self.log_std is None else (out, self.log_std.expand_as(out))

    def policy(self, obs: Any) -> Parameters:
        """Return logits (B, A), or mean and log standard deviation (B, D)."""
        return self._parameters_of(self._features(obs))

    def value(self, obs: Any) -> torch.Tensor:
        """Return V(obs), shape (B,)."""
        value: torch.Tensor = self.critic(self._features(obs))
        return value.squeeze(-1)

    def forward(self, obs: Any) -> tuple[Parameters, torch.Tensor]:
        features = self._features(obs)
        value: torch.Tensor = self.critic(features)
        return self._parameters_of(features), value.squeeze(-1)
