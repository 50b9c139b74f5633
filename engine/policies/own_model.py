"""A model of the user's own, tried when it is given: what cannot be trained rightly is refused by name.

The model itself is called once, which lets lazy layers find their sizes; all else is tried on copies.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from engine.errors import ConfigError
from engine.policies.base import own_torch_stream
from engine.policies.spaces import Space, parts_of

log = logging.getLogger(__name__)

_ROWS = 2
_TRIES = 8
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_NOISY = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)

Call = Callable[[nn.Module, Any], Any]
"""Calls a model, or a method of it, with observations."""


def try_model(model: nn.Module, space: Space, calls: Sequence[Call]) -> list[Any]:
    """Return what `calls` gave for two observations of `space`, in evaluation mode.

    Raises `ConfigError` for a model that changes the observations that it is given (they are
    recorded) or that keeps something from one call to the next (a recurrent one).
    """
    obs = sample_observations(space, _ROWS, _device_of(model))
    with torch.no_grad():
        found = [call(model.eval(), obs) for call in calls]
    with own_torch_stream(0):
        for training in (False, True):
            _refuse_changes(_copy(model).train(training), obs, calls)
        _refuse_memory(model, obs, calls)
    return found


def warn_of_ratios(model: nn.Module, space: Space, policy: Call) -> None:
    """Warn if the model's `policy` computes something else while training than while acting.

    Then the probability ratios of the first update are not 1, though the weights have not changed.
    """
    with own_torch_stream(0), torch.no_grad():
        obs = sample_observations(space, 16, _device_of(model))
        trial = _perturbed(model)
        acted = _leaves(policy(trial.eval(), obs))
        noisy = [
            f"{type(module).__name__} {name!r}"
            for name, module in model.named_modules()
            if isinstance(module, _NOISY)
        ]
        for _ in range(_TRIES if noisy else 1):  # dropout may leave a whole batch alone
            if not _alike(acted, _leaves(policy(trial.train(), obs))):
                break
        else:
            return
    log.warning(
        "%s computes something else while it learns than while it acts (%s), so probability ratios do not "
        "start at 1, as if the policy had changed already; prefer a model without that",
        type(model).__name__,
        ", ".join(noisy) or "it looks at self.training, or draws at random",
    )


def sample_observations(space: Space, rows: int, device: torch.device) -> Any:
    """Return a batch of random observations of `space` as tensors, hardly any of them 0."""
    parts = parts_of(space)
    if parts is not None:
        return {name: sample_observations(part, rows, device) for name, part in parts.items()}
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        # drawn near 0: a bound may be the largest float there is
        numbers = np.random.default_rng(0).normal(size=(rows, *space.shape))
        found = np.clip(numbers, space.low, space.high).astype(space.dtype)
    else:
        drawn = copy.deepcopy(space)  # drawing changes a space
        drawn.seed(0)
        found = np.stack([np.asarray(drawn.sample(), space.dtype) for _ in range(rows)])
    return torch.as_tensor(found).to(device)


def _refuse_changes(trial: nn.Module, obs: Any, calls: Iterable[Call]) -> None:
    leaves = _leaves(obs)
    for call in calls:
        # The version tells of changes that happen to leave the values as they were.
        before = [(leaf.clone(), leaf._version) for leaf in leaves]
        with torch.no_grad():
            call(trial, obs)
        for leaf, (values, version) in zip(leaves, before, strict=True):
            if leaf._version != version or not _alike([leaf], [values]):
                raise ConfigError(
                    f"{type(trial).__name__} changes the observations that it is given in place, and so the "
                    "data that it learns from; use obs.clone(), or inplace=False in its first layers"
                )


def _refuse_memory(model: nn.Module, obs: Any, calls: Sequence[Call]) -> None:
    """Raise if the same observations get another answer, or cannot be learned from, a second time."""
    trial = _perturbed(model).eval()
    answers = []
    for _ in range(2):
        torch.manual_seed(0)
        with torch.no_grad():
            answers.append([leaf for call in calls for leaf in _leaves(call(trial, obs))])
    if not _alike(*answers):
        raise ConfigError(_memory(model, "gives other answers when it sees the same observations again"))
    trial.train()
    for _ in range(2):
        outputs = [leaf for call in calls for leaf in _leaves(call(trial, obs))]
        losses = [leaf.float().sum() for leaf in outputs if leaf.requires_grad]
        if not losses:
            return
        try:
            torch.autograd.backward(torch.stack(losses).sum())
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise ConfigError(_memory(model, "holds on to what it computed in an earlier call")) from None


def _memory(model: nn.Module, symptom: str) -> str:
    named = [f"{type(m).__name__} {name!r}" for name, m in model.named_modules() if isinstance(m, _RECURRENT)]
    found = f" ({', '.join(named)})" if named else ""
    return (
        f"{type(model).__name__} {symptom}: recurrent models{found}, which keep a state from one call to the "
        "next, are not supported yet; stack observations instead (gymnasium's FrameStackObservation)"
    )


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:  # torch copies no tensors that autograd made
        raise ConfigError(f"{_memory(model, 'cannot be copied')} ({error})") from None


def _perturbed(model: nn.Module) -> nn.Module:
    """Return a copy with other weights: a last layer of zeros would hide whatever is in front of it."""
    trial = _copy(model)
    with torch.no_grad():
        for parameter in trial.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return trial


def _alike(one: Sequence[torch.Tensor], two: Sequence[torch.Tensor]) -> bool:
    pairs = zip(one, two, strict=True)
    return all(torch.allclose(a.double(), b.double(), 1e-5, 1e-6, equal_nan=True) for a, b in pairs)


def _leaves(tree: Any) -> list[torch.Tensor]:
    def walk(node: Any) -> Iterator[torch.Tensor]:
        if isinstance(node, torch.Tensor):
            yield node
        elif isinstance(node, dict | tuple | list):
            for part in node.values() if isinstance(node, dict) else node:
                yield from walk(part)

    return list(walk(tree))


def _device_of(model: nn.Module) -> torch.device:
    return next(iter(model.parameters()), torch.zeros(())).device
