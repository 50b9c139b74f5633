"""From an observation space to features: one module per kind of space.

Observations arrive as named leaves: one tensor (B, ...), or dicts (or TreeTensors) of them
nested for Dict and Tuple spaces, a Tuple's parts being named item_0, item_1, ...
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from engine.errors import EnvError
from engine.nets.mlp import orthogonal


class Encoder(nn.Module):
    """Maps the leaves of one space to features (B, `outputs`)."""

    outputs: int

    def forward(self, obs: Any) -> torch.Tensor:
        raise NotImplementedError


class Flat(Encoder):
    """Numbers as they are, flattened to float32; uint8 is scaled from 0..255 to 0..1."""

    def __init__(self, space: spaces.Box | spaces.MultiBinary) -> None:
        super().__init__()
        self.outputs = math.prod(space.shape)
        self.scale = 1 / 255 if space.dtype == np.uint8 and isinstance(space, spaces.Box) else None

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        x = obs if obs.dtype is torch.float32 else obs.float()
        if x.ndim != 2:
            x = x.reshape(x.shape[0], -1)
        return x if self.scale is None else x * self.scale


class OneHot(Encoder):
    """Each integer of a Discrete or MultiDiscrete space as a block of zeros with one 1."""

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        super().__init__()
        sizes = [space.n] if isinstance(space, spaces.Discrete) else np.ravel(space.nvec)
        self.sizes = [int(n) for n in sizes]
        self.starts = [int(s) for s in np.ravel(space.start)]
        self.outputs = sum(self.sizes)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        columns = obs.long().reshape(obs.shape[0], -1)
        blocks = [
            functional.one_hot(columns[:, i] - start, size)
            for i, (size, start) in enumerate(zip(self.sizes, self.starts, strict=True))
        ]
        return torch.cat(blocks, dim=1).float()


class Image(Encoder):
    """A convolutional net over uint8 images, scaled to 0..1: features (B, 512), or (B, 128) for small ones.

    The three layers of Mnih et al. 2015 from 36 pixels a side on; smaller images get two 3x3
    layers.  The shorter of the first and last dimension holds the channels.
    """

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        first, _, last = space.shape
        self.channels_last = last < first
        channels = min(first, last)
        height, width = space.shape[:2] if self.channels_last else space.shape[1:]
        if min(height, width) >= 36:
            sizes = [(channels, 32, 8, 4, 0), (32, 64, 4, 2, 0), (64, 64, 3, 1, 0)]
            self.outputs = 512
        else:
            sizes = [(channels, 16, 3, 1, 1), (16, 32, 3, 2, 1)]
            self.outputs = 128
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, k, s, p) for a, b, k, s, p in sizes)
        with torch.no_grad():
            flat = self._convolve(torch.zeros(1, channels, height, width)).shape[1]
        self.linear = nn.Linear(flat, self.outputs)
        for layer in [*self.convolutions, self.linear]:
            assert isinstance(layer, nn.Conv2d | nn.Linear)
            orthogonal(layer)

    def _convolve(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.convolutions:
            x = torch.relu(layer(x))
        return x.flatten(1)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        x = obs.permute(0, 3, 1, 2) if self.channels_last else obs
        return torch.relu(self.linear(self._convolve(x.float() / 255)))


class Named(Encoder):
    """The features of a dict's leaves side by side, in the order of their sorted names."""

    def __init__(self, parts: dict[str, Encoder]) -> None:
        super().__init__()
        self.names = sorted(parts)
        # by position: a leaf may bear a name that modules cannot
        self.parts = nn.ModuleList(parts[name] for name in self.names)
        self.outputs = sum(part.outputs for part in parts.values())

    def forward(self, obs: Any) -> torch.Tensor:
        features = [part(obs[name]) for name, part in zip(self.names, self.parts, strict=True)]
        return torch.cat(features, dim=1)


def is_image(space: gymnasium.Space[Any]) -> bool:
    """Whether a space is read by convolutions: three dimensions of uint8."""
    return isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8


def encoder(space: gymnasium.Space[Any], name: str = "observation") -> Encoder:
    """Return an encoder for observations of `space`.

    Raises `EnvError`, naming the part, for spaces that no net here reads (Text, Graph, Sequence, ...).
    """
    if isinstance(space, spaces.Box):
        return Image(space) if is_image(space) else Flat(space)
    if isinstance(space, spaces.MultiBinary):
        return Flat(space)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return OneHot(space)
    if isinstance(space, spaces.Dict):
        return Named({key: encoder(part, f"{name}.{key}") for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        parts = {f"item_{i}": part for i, part in enumerate(space.spaces)}
        return Named({key: encoder(part, f"{name}.{key}") for key, part in parts.items()})
    raise EnvError(
        f"{name} has the space {space}, which no net here reads; give a model of your own (model=...) "
        "or wrap the environment so that it has Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    )
