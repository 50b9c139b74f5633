"""Where tensors live, and the way there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from engine.errors import ConfigError
from engine.types import Arrays


def choose_device(name: str) -> torch.device:
    """Return the device that "auto", "cpu" or "cuda" (or "cuda:1") means here.

    "auto" takes CUDA where torch finds it.  Raises `ConfigError` when CUDA is asked for and absent.
    """
    kind, _, index = name.partition(":")
    if name not in ("auto", "cpu") and (kind != "cuda" or (index and not index.isdigit())):
        raise ConfigError(f"unknown device {name!r}; expected 'auto', 'cpu' or 'cuda'")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise ConfigError(
            f"device {name!r} was asked for, and torch {torch.__version__} finds {found} CUDA devices; "
            "install a CUDA build of torch, or use device='auto' or 'cpu'"
        )
    return torch.device(name)


def to_tensors(obs: Arrays | Any, device: torch.device) -> Any:
    """Return arrays, or nested dicts of them, as tensors on `device`; on CPU they share memory."""
    if isinstance(obs, dict):
        return {name: to_tensors(leaf, device) for name, leaf in obs.items()}
    tensor = obs if isinstance(obs, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(obs))
    return tensor if device.type == "cpu" and tensor.device.type == "cpu" else tensor.to(device)


def leaf_map(function: Any, obs: Any) -> Any:
    """Apply `function` to a leaf or to every leaf of nested dicts."""
    if isinstance(obs, dict):
        return {name: leaf_map(function, leaf) for name, leaf in obs.items()}
    return function(obs)
