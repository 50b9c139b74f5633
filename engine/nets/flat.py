"""All parameters of a module, and their gradients, as one vector each.

Optimizing, clipping and copying then cost one call instead of one per layer: for a small net
that is most of their time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn


class FlatParameters:
    """Views a module's parameters as one vector `parameter`, with its `gradient` beside it.

    Each parameter keeps its shape and becomes a view of the vector; updates of either are
    seen by both.  Backward adds into `gradient` (also `parameter.grad`); call `zero_grad` before
    it.  The module must stay where it is: move it to its device first, and load weights in place.
    Raises `ValueError` for parameters of several dtypes or devices, or of none.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters = list(module.parameters())
        self._buffers = list(module.buffers())
        if len({(p.dtype, p.device) for p in self._parameters}) != 1:
            kinds = sorted({f"{p.dtype} on {p.device}" for p in self._parameters})
            raise ValueError(
                f"parameters of one dtype on one device are needed, not {kinds or 'none at all'}"
            )
        vector = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        gradient = torch.zeros_like(vector)
        self._gradients: list[torch.Tensor] = []
        start = 0
        for parameter in self._parameters:
            end = start + parameter.numel()
            parameter.data = vector[start:end].view(parameter.shape)
            self._gradients.append(gradient[start:end].view(parameter.shape))
            start = end
        self._vector = vector  # the same memory without a gradient: written to without asking torch for leave
        self.parameter = nn.Parameter(vector)
        self.parameter.grad = gradient
        self.gradient = gradient
        self._array: Any = gradient.numpy() if gradient.device.type == "cpu" else None
        self.zero_grad()

    def zero_grad(self) -> None:
        """Set every gradient to zero, keeping its memory."""
        self.gradient.zero_()
        self.parameter.grad = self.gradient
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            # someone's own zero_grad() may have dropped the view
            if parameter.grad is not gradient:
                parameter.grad = gradient

    def clip(self, max_norm: float) -> Any:
        """Scale the gradient down to at most `max_norm` (Euclidean); return the norm it had.

        The norm is a float on CPU and a tensor elsewhere, so that no device waits for it.
        """
        if self._array is not None and self._array.dtype == "float32":
            norm = math.sqrt(self._array.dot(self._array))
            if norm > max_norm:
                self._array *= max_norm / (norm + 1e-6)
            return norm
        size = torch.linalg.vector_norm(self.gradient)
        self.gradient.mul_((max_norm / (size + 1e-6)).clamp(max=1.0))
        return size

    def arrays(self) -> dict[str, Any]:
        """Return parameters and buffers as numpy arrays: views where they lie on the CPU, else copies."""
        arrays = {"parameters": self._vector.numpy(force=True)}
        for index, buffer in enumerate(self._buffers):
            arrays[f"buffer_{index}"] = buffer.numpy(force=True)
        return arrays

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Copy what `arrays` of a module of the same kind returned into this one's memory.

        Raises `ValueError`, and changes nothing, where names, shapes or dtypes differ.
        """
        mine = self.arrays()
        wanted = {name: (array.shape, array.dtype) for name, array in mine.items()}
        found = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        if wanted != found:
            raise ValueError(f"weights of another module: {found} where {wanted} are expected")
        if self._vector.device.type == "cpu":
            for name, array in arrays.items():
                mine[name][...] = array
            return
        for target, name in zip([self._vector, *self._buffers], mine, strict=True):
            target.copy_(torch.from_numpy(np.array(arrays[name])))

    def copy_from(self, other: FlatParameters) -> None:
        """Copy the parameters and buffers of a module of the same kind into this one's memory."""
        self._vector.copy_(other._vector)
        self._copy_buffers(other)

    def move_towards(self, other: FlatParameters, share: float) -> None:
        """Move every parameter by `share` of the way to another module's (a soft update); copy buffers."""
        self._vector.lerp_(other._vector, share)
        self._copy_buffers(other)

    def _copy_buffers(self, other: FlatParameters) -> None:
        for mine, theirs in zip(self._buffers, other._buffers, strict=True):
            mine.copy_(theirs)
