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


class FastGradient:
    """Forward and backward passes of an `MLP` by hand, with the gradient written where torch would add it.

    At these sizes autograd costs more than the products it arranges: a pass forward and back of
    64 rows through 4-64-64-2 takes a third of the time.  Every parameter must have a gradient
    tensor of its own memory (`FlatParameters` gives it one), and what stood in it is replaced.
    Raises `ValueError` for a module that `can_be_fast` refuses.  Not safe for two threads at once.
    """

    def __init__(self, mlp: MLP) -> None:
        if not can_be_fast(mlp):
            raise ValueError("FastGradient needs an MLP of CPU float32 parameters with tanh or relu")
        self._activation = mlp.activation
        self._layers: list[tuple[torch.Tensor, ...]] = []
        for layer in mlp.layers:
            assert isinstance(layer, nn.Linear)
            weight, bias = layer.weight, layer.bias
            if weight.grad is None or bias.grad is None:
                raise ValueError("FastGradient needs parameters with gradient tensors")
            self._layers.append((weight.detach(), bias.detach(), weight.grad, bias.grad))
        self._largest = max(weight.numel() for weight, *_ in self._layers)
        self._buffers: dict[int, list[_Stage]] = {}
        self._stages: list[_Stage] = []
        self._x: Any = None

    def forward(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Map (B, inputs) to (B, outputs); the array is written anew by the next call."""
        rows = len(x)
        stages = self._buffers.get(rows)
        if stages is None:
            if len(self._buffers) > 8:
                self._buffers.clear()
            quick = rows * self._largest <= _NUMPY_WORK
            stages = self._buffers[rows] = [_Stage(rows, layer, quick) for layer in self._layers]
        self._x, self._stages = x, stages
        activate, last = _ACTIVATIONS[self._activation], stages[-1]
        for stage in stages:
            stage.product(x, stage.weight_t, stage.out)
            np.add(stage.out, stage.bias, stage.out)
            if stage is not last:
                activate(stage.out, stage.out)
            x = stage.out
        return x

    def backward(self, gradient: NDArray[np.float32]) -> None:
        """Write the gradient of every parameter, given the one (B, outputs) of the last forward's result."""
        stages = self._stages
        for position in range(len(stages) - 1, -1, -1):
            stage = stages[position]
            x = self._x if position == 0 else stages[position - 1].out
            stage.product(gradient.T, x, stage.weight_gradient)
            np.dot(stage.ones, gradient, stage.bias_gradient)
            if position:
                before = stages[position - 1]
                stage.product(gradient, stage.weight, before.gradient)
                gradient = before.gradient
                if self._activation == "tanh":  # 1 - tanh^2
                    np.multiply(x, x, before.scratch)
                    np.subtract(1.0, before.scratch, before.scratch)
                else:
                    np.greater(x, 0.0, before.scratch)
                np.multiply(gradient, before.scratch, gradient)


class _Stage:
    """The arrays of one layer for one number of rows."""

    def __init__(self, rows: int, layer: tuple[torch.Tensor, ...], quick: bool) -> None:
        weight, bias, weight_gradient, bias_gradient = (tensor.numpy() for tensor in layer)
        outputs = len(bias)
        self.weight, self.weight_t, self.bias = weight, weight.T, bias
        self.weight_gradient, self.bias_gradient = weight_gradient, bias_gradient
        self.out = np.empty((rows, outputs), np.float32)
        self.gradient = np.empty((rows, outputs), np.float32)
        self.scratch = np.empty((rows, outputs), np.float32)
        self.ones = np.ones(rows, np.float32)
        self.product: Callable[[Any, Any, Any], Any] = np.dot if quick else _torch_product


def _torch_product(a: Any, b: Any, out: Any) -> None:
    torch.mm(torch.from_numpy(a), torch.from_numpy(b), out=torch.from_numpy(out))
