"""Forward passes of small MLPs in numpy, on the memory of the torch parameters.

For 8 observations of CartPole through 64-64 units this takes about 13 us, where torch under
`inference_mode` takes 76: at these sizes nearly all of a torch forward is dispatch.  The arrays
share memory with the parameters, so updates in place (optimizers, `load_state_dict`) are seen at
once.  What gives a parameter new memory (`module.to(device)`, `load_state_dict(assign=True)`)
is not: make a new `FastMLP` after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from engine.nets.mlp import MLP

# OpenBLAS starts threads of its own above these numbers of multiplications (for one row, for more),
# and torch's thread setting does not reach them; what is larger is therefore multiplied in torch.
_NUMPY_ROW, _NUMPY_WORK = 9216, 4 * 65536


def _relu(x: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    np.maximum(x, 0.0, out=out)


_ACTIVATIONS: dict[str, Callable[[NDArray[np.float32], NDArray[np.float32]], Any]] = {
    "tanh": np.tanh,
    "relu": _relu,
}


def can_be_fast(module: nn.Module) -> bool:
    """Whether `FastMLP` computes what this module computes: an `MLP` of CPU float32, tanh or relu."""
    return (
        type(module) is MLP
        and module.activation in _ACTIVATIONS
        and not module.ends_active
        and not (module._forward_hooks or module._forward_pre_hooks)
        and all(p.device.type == "cpu" and p.dtype is torch.float32 for p in module.parameters())
    )


class FastMLP:
    """The forward of an `MLP`: (B, inputs) numpy -> (B, outputs) float32, in an array of its own each call.

    Raises `ValueError` for a module that `can_be_fast` refuses.  Not safe for two threads at
    once: the hidden layers are written into buffers that calls share.
    """

    def __init__(self, mlp: MLP) -> None:
        if not can_be_fast(mlp):
            raise ValueError("FastMLP needs an MLP of CPU float32 parameters with tanh or relu")
        layers = [(layer.weight.detach(), layer.bias.detach()) for layer in mlp.layers]  # type: ignore[operator]
        self._activate = _ACTIVATIONS[mlp.activation]
        self._tensors = [(weight.t(), bias) for weight, bias in layers]
        arrays = [(weight.numpy().T, bias.numpy()) for weight, bias in layers]
        self._hidden = arrays[:-1]
        self._weight, self._bias = arrays[-1]
        largest = max(weight.numel() for weight, _ in layers)
        self._rows = 0 if largest > _NUMPY_WORK else _NUMPY_WORK // largest
        self._one_row = largest <= _NUMPY_ROW
        self._buffers: dict[int, list[tuple[Any, Any, Any]]] = {}

    def _stages(self, rows: int) -> list[tuple[Any, Any, Any]]:
        """Weights, biases and output buffers of the hidden layers, for a number of rows."""
        if len(self._buffers) > 8:  # callers with ever new sizes must not fill the memory
            self._buffers.clear()
        stages = [(w, b, np.empty((rows, len(b)), np.float32)) for w, b in self._hidden]
        self._buffers[rows] = stages
        return stages

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = len(x)
        if rows > self._rows or (rows == 1 and not self._one_row):
            return self._large(x)
        stages = self._buffers.get(rows)
        if stages is None:
            stages = self._stages(rows)
        activate, dot, add = self._activate, np.dot, np.add
        for weight, bias, out in stages:
            dot(x, weight, out)
            add(out, bias, out)
            activate(out, out)
            x = out
        y: NDArray[np.float32] = dot(x, self._weight)
        add(y, self._bias, y)
        return y

    def _large(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Products by torch, activations by numpy on the same memory."""
        y = torch.from_numpy(np.ascontiguousarray(x))
        last = len(self._tensors) - 1
        with torch.no_grad():
            for position, (weight, bias) in enumerate(self._tensors):
                y = torch.addmm(bias, y, weight)
                if position != last:
                    array = y.numpy()
                    self._activate(array, array)
        out: NDArray[np.float32] = y.numpy()
        return out
