"""From recorded observations to a model's outputs as numpy arrays: the quick way where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from engine.nets.actor_critic import ActorCritic
from engine.nets.encoders import Encoder, Flat
from engine.nets.fast import FastMLP, can_be_fast
from engine.nets.mlp import MLP
from engine.nets.q_network import QNetwork
from engine.policies.device import to_tensors
from engine.types import Arrays

Forward: TypeAlias = Callable[[Arrays], tuple[Any, ...]]
"""Maps observations (B, ...) to arrays (B, ...) that nobody else writes to."""

_FLOAT32 = np.dtype(np.float32)


def policy_forward(model: nn.Module, device: torch.device) -> Forward:
    """Return obs -> the parameters of the action distribution: (logits,) or (mean, log_std)."""
    if type(model) is ActorCritic and model.trunk is None and is_quick(model.encoder, model.actor):
        log_std = None if model.log_std is None else model.log_std.detach().numpy()
        return _quick(model.actor, () if log_std is None else (log_std,))
    return _through_torch(model.policy, device)  # type: ignore[arg-type]


def value_forward(model: nn.Module, device: torch.device) -> Forward:
    """Return obs -> (V(obs),), of shape (B,)."""
    if type(model) is ActorCritic and model.trunk is None and is_quick(model.encoder, model.critic):
        critic = _quick(model.critic, ())
        return lambda obs: (critic(obs)[0][:, 0],)
    return _through_torch(model.value, device)  # type: ignore[arg-type]


def q_forward(model: nn.Module, device: torch.device) -> Forward:
    """Return obs -> (Q(obs, .),), of shape (B, A)."""
    if type(model) is QNetwork and model.trunk is None and is_quick(model.encoder, model.head):
        return _quick(model.head, ())
    return _through_torch(model, device)


def is_quick(encoder: Encoder, net: MLP) -> bool:
    """Whether numpy computes what `net` over `encoder` does: an MLP of CPU float32 over flat observations."""
    return type(encoder) is Flat and encoder.scale is None and can_be_fast(net)


def _quick(net: MLP, constants: tuple[Any, ...]) -> Forward:
    run = FastMLP(net)

    def forward(obs: Any) -> tuple[Any, ...]:
        return run(as_rows(obs)), *constants

    return forward


def as_rows(obs: Any) -> Any:
    """Return observations (B, ...) as float32 rows (B, N)."""
    if obs.ndim != 2 or obs.dtype != _FLOAT32:
        return obs.reshape(len(obs), -1).astype(np.float32)
    return obs


def _through_torch(function: Callable[[Any], Any], device: torch.device) -> Forward:
    def forward(obs: Arrays) -> tuple[Any, ...]:
        with torch.inference_mode():
            out = function(to_tensors(obs, device))
            outputs = out if isinstance(out, tuple) else (out,)
            return tuple(output.cpu().numpy() for output in outputs)

    return forward
