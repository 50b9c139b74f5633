"""From observations to a model's outputs and, given the gradient of a loss by them, back to the parameters.

Losses here know their gradients by the outputs (`engine.ops`), so a trainer is all that is left:
by hand for the nets of our own on CPU, by autograd for everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from engine.nets.actor_critic import ActorCritic
from engine.nets.fast import FastGradient
from engine.nets.flat import FlatParameters
from engine.nets.q_network import QNetwork
from engine.policies.device import to_tensors
from engine.policies.forward import as_rows, is_quick
from engine.types import Array, Arrays


class Trainer(Protocol):
    """Runs a model forward, then backward; `backward` belongs to the `forward` before it."""

    def forward(self, obs: Any) -> tuple[Array, ...]:
        """Return the model's outputs (B, ...): numpy arrays on CPU, tensors elsewhere."""
        ...

    def backward(self, gradients: Sequence[Array]) -> None:
        """Write the gradient of every parameter, given the gradient by each output."""
        ...


def trainer_of(model: nn.Module, weights: FlatParameters, device: torch.device) -> Trainer:
    """Return the quickest trainer there is for `model`, whose parameters `weights` holds."""
    if type(model) is QNetwork and model.trunk is None and is_quick(model.encoder, model.head):
        return QTrainer(model)
    if type(model) is ActorCritic and model.trunk is None:
        nets = (model.actor, model.critic)
        if all(is_quick(model.encoder, net) for net in nets):
            return ActorCriticTrainer(model)
    return AutogradTrainer(model, weights, device)


class QTrainer:
    """Of a `QNetwork` without a dueling head, by hand.  Output: the values (B, A)."""

    def __init__(self, model: QNetwork) -> None:
        self._net = FastGradient(model.head)

    def forward(self, obs: Arrays) -> tuple[Array, ...]:
        return (self._net.forward(as_rows(obs)),)

    def backward(self, gradients: Sequence[Array]) -> None:
        self._net.backward(gradients[0])


class ActorCriticTrainer:
    """Of an `ActorCritic` with separate nets, by hand.

    Outputs: logits (B, A), or mean and log_std (B, D); then the value (B,).
    """

    def __init__(self, model: ActorCritic) -> None:
        self._actor, self._critic = FastGradient(model.actor), FastGradient(model.critic)
        self._log_std: Any = None
        if model.log_std is not None:
            assert model.log_std.grad is not None
            self._log_std = model.log_std.detach().numpy()
            self._log_std_gradient = model.log_std.grad.numpy()

    def forward(self, obs: Arrays) -> tuple[Array, ...]:
        rows = as_rows(obs)
        out, value = self._actor.forward(rows), self._critic.forward(rows)[:, 0]
        if self._log_std is None:
            return out, value
        return out, np.broadcast_to(self._log_std, out.shape), value

    def backward(self, gradients: Sequence[Array]) -> None:
        self._actor.backward(gradients[0])
        if self._log_std is not None:
            np.add.reduce(gradients[1], 0, out=self._log_std_gradient)
        self._critic.backward(gradients[-1][:, None])


class AutogradTrainer:
    """Of any module, by autograd, on any device."""

    def __init__(self, model: nn.Module, weights: FlatParameters, device: torch.device) -> None:
        self._model = model
        self._weights = weights
        self._device = device
        self._on_cpu = device.type == "cpu"
        self._outputs: list[torch.Tensor] = []

    def forward(self, obs: Any) -> tuple[Array, ...]:
        out = self._model(to_tensors(obs, self._device))
        flat: list[torch.Tensor] = []
        for part in out if isinstance(out, tuple) else (out,):
            flat.extend(part if isinstance(part, tuple) else (part,))
        self._outputs = flat
        return tuple(part.detach().numpy() if self._on_cpu else part.detach() for part in flat)

    def backward(self, gradients: Sequence[Array]) -> None:
        self._weights.zero_grad()
        # A model of the user's own may hold an output constant, such as a fixed log_std.
        pairs = [
            (output, (torch.from_numpy(gradient) if self._on_cpu else gradient).to(output.dtype))
            for output, gradient in zip(self._outputs, gradients, strict=True)
            if output.requires_grad
        ]
        torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
