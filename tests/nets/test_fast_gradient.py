"""Passes by hand against autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.nets.fast import FastGradient
from engine.nets.flat import FlatParameters
from engine.nets.mlp import MLP


@given(
    rows=st.sampled_from([1, 2, 7, 64, 300]),
    inputs=st.integers(1, 5),
    hidden=st.lists(st.sampled_from([1, 3, 64]), max_size=3),
    outputs=st.integers(1, 4),
    activation=st.sampled_from(["tanh", "relu"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_gradients_by_hand_are_those_of_autograd(
    rows: int, inputs: int, hidden: list[int], outputs: int, activation: str, seed: int
) -> None:
    torch.manual_seed(seed)
    mlp = MLP(inputs, hidden, outputs, activation=activation)  # type: ignore[arg-type]
    weights = FlatParameters(mlp)
    quick = FastGradient(mlp)
    x, gradient = torch.randn(rows, inputs), torch.randn(rows, outputs)
    y = quick.forward(x.numpy()).copy()
    quick.backward(gradient.numpy())
    by_hand = weights.gradient.clone()
    weights.zero_grad()
    expected = mlp(x)
    expected.backward(gradient)
    np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    scale = float(weights.gradient.abs().max()) + 1.0
    torch.testing.assert_close(by_hand, weights.gradient, rtol=1e-4, atol=2e-5 * scale)


def test_a_backward_replaces_what_stood_in_the_gradient() -> None:
    mlp = MLP(2, (3,), 1)
    weights = FlatParameters(mlp)
    quick = FastGradient(mlp)
    x, gradient = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)
    quick.forward(x)
    quick.backward(gradient)
    once = weights.gradient.clone()
    quick.forward(x)
    quick.backward(gradient)
    assert torch.equal(once, weights.gradient)


def test_what_cannot_be_done_by_hand_is_refused() -> None:
    with pytest.raises(ValueError, match="gradient tensors"):
        FastGradient(MLP(2, (3,), 1))
    with pytest.raises(ValueError, match="tanh or relu"):
        FastGradient(MLP(2, (3,), 1, activation="gelu"))
