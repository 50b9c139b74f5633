"""The module that DQN trains, and what a module of your own must offer in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from engine.nets.encoders import Encoder
from engine.nets.mlp import MLP, Activation


class QModel(Protocol):
    """What DQN asks of a model: any `nn.Module` that maps observations to values of actions.

    `obs` is a tensor (B, ...) or nested dicts of them (Dict and Tuple spaces), as the environment
    gives it: integers and uint8 included.  It must be left as it is, and nothing kept from one call
    to the next: models that work in place on it, and recurrent ones, are refused.
    """

    def __call__(self, obs: Any) -> torch.Tensor:
        """Return Q(obs, a) for every action: (B, A)."""
        ...


class QNetwork(nn.Module):
    """A `QModel`: an MLP over encoded observations, with an optional dueling head.

    Dueling (Wang et al. 2016): Q(s, a) = V(s) + A(s, a) - mean over a' of A(s, a'), both from one trunk.
    """

    def __init__(
        self,
        encoder: Encoder,
        actions: int,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "relu",
        dueling: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.trunk: MLP | None = None
        self.state_value: nn.Linear | None = None
        if dueling:
            self.trunk = MLP(encoder.outputs, hidden, None, activation=activation)
            self.state_value = nn.Linear(self.trunk.outputs, 1)
            self.head = MLP(self.trunk.outputs, (), actions, activation=activation)
        else:
            self.head = MLP(encoder.outputs, hidden, actions, activation=activation)

    def forward(self, obs: Any) -> torch.Tensor:
        features: torch.Tensor = self.encoder(obs)
        if self.trunk is None or self.state_value is None:
            values: torch.Tensor = self.head(features)
            return values
        features = self.trunk(features)
        advantage: torch.Tensor = self.head(features)
        value: torch.Tensor = self.state_value(features)
        return value + advantage - advantage.mean(dim=1, keepdim=True)
