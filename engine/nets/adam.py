"""Adam over one vector of parameters.

torch's own (fused, one tensor) takes 9 us of arithmetic for a net of 9000 parameters and, between
a backward and the next forward, ten times that for its wrapping.  On CPU the update is
therefore written out in numpy, on the same memory; elsewhere torch's fused kernel runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.optim.adam import adam

from engine.nets.flat import FlatParameters

# Elements a pass works on at a time: few enough that all arrays stay in the second-level cache.
_CHUNK = 1 << 14


class Adam:
    """Adam (Kingma & Ba 2015) on `FlatParameters`, updating them in place.

    With g the gradient and t the number of steps, as torch.optim.Adam::

        m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
        p = p - learning_rate * m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon)

    `learning_rate` may be set at any time and is part of the state.
    """

    def __init__(
        self,
        weights: FlatParameters,
        *,
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self.learning_rate = learning_rate
        self._betas = betas
        self._epsilon = epsilon
        self._steps = 0
        self._weights = weights
        parameter = weights.parameter.detach()
        self._mean, self._square = torch.zeros_like(parameter), torch.zeros_like(parameter)
        self._chunks: list[tuple[Any, ...]] = []
        if parameter.device.type == "cpu" and parameter.dtype is torch.float32:
            vectors = [x.numpy() for x in (parameter, weights.gradient, self._mean, self._square)]
            scratch = np.empty((2, min(_CHUNK, len(parameter))), np.float32)
            for start in range(0, len(parameter), _CHUNK):
                parts = [vector[start : start + _CHUNK] for vector in vectors]
                self._chunks.append((*parts, *scratch[:, : len(parts[0])]))

    def step(self) -> None:
        """Move the parameters along the gradient that `weights` holds."""
        self._steps += 1
        if self._chunks:
            self._step_numpy()
        else:
            self._step_torch()

    def _step_numpy(self) -> None:
        first, second = self._betas
        # Both corrections are pulled out of the elementwise part: two passes fewer.
        correction = math.sqrt(1.0 - second**self._steps)
        size = self.learning_rate * correction / (1.0 - first**self._steps)
        epsilon = self._epsilon * correction
        multiply, add = np.multiply, np.add
        for parameter, gradient, mean, square, a, b in self._chunks:
            multiply(mean, first, mean)
            multiply(gradient, 1.0 - first, a)
            add(mean, a, mean)
            multiply(square, second, square)
            multiply(gradient, gradient, a)
            multiply(a, 1.0 - second, a)
            add(square, a, square)
            np.sqrt(square, b)
            add(b, epsilon, b)
            np.divide(mean, b, b)
            multiply(b, size, b)
            np.subtract(parameter, b, parameter)

    def _step_torch(self) -> None:
        vector = self._weights.parameter.detach()
        # the functional form counts up by itself
        steps = torch.full((), self._steps - 1, dtype=torch.float32, device=vector.device)
        adam(
            [vector],
            [self._weights.gradient],
            [self._mean],
            [self._square],
            [],
            [steps],
            fused=True,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=self._epsilon,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return copies of what the next steps depend on, on CPU."""
        return {
            "steps": self._steps,
            "learning_rate": self.learning_rate,
            "mean": self._mean.cpu().clone(),
            "square": self._square.cpu().clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps, self.learning_rate = int(state["steps"]), float(state["learning_rate"])
        self._mean.copy_(state["mean"])
        self._square.copy_(state["square"])
