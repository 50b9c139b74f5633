"""IMPALA's loss equals a naive loop over rows; its closed-form gradient equals autograd of the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.ops.impala import impala_gradient, impala_loss

NAMES = ("log_prob", "advantage", "value", "target", "entropy")
OPTIONS = {"value_coef": 0.7, "entropy_coef": 0.03}


def rows(count: int = 40, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=count) for name in NAMES}


def shares(count: int = 40) -> np.ndarray:
    weight = np.random.default_rng(1).random(count)
    weight[::3] = 0.0
    return weight / weight.sum()


def naive(data: dict[str, np.ndarray], weight: np.ndarray) -> list[float]:
    policy = value = entropy = 0.0
    for i, share in enumerate(weight):
        policy -= share * data["advantage"][i] * data["log_prob"][i]
        value += share * (data["value"][i] - data["target"][i]) ** 2
        entropy += share * data["entropy"][i]
    return [policy + 0.7 * value - 0.03 * entropy, policy, value, entropy]


@pytest.mark.parametrize("weight", [None, shares()], ids=["mean", "weighted"])
@pytest.mark.parametrize("function", [impala_loss, impala_gradient])
def test_loss_equals_a_naive_loop(function, convert, weight) -> None:
    data = rows()
    given = None if weight is None else convert(weight)
    out = function(**{name: convert(column) for name, column in data.items()}, weight=given, **OPTIONS)
    loss = out if function is impala_loss else out.loss
    expected = naive(data, np.full(40, 1 / 40) if weight is None else weight)
    np.testing.assert_allclose([float(x) for x in loss], expected, rtol=1e-10)


@pytest.mark.parametrize("weight", [None, shares()], ids=["mean", "weighted"])
def test_gradient_equals_autograd_of_the_loss(weight, convert) -> None:
    tensors = {name: torch.from_numpy(column).requires_grad_() for name, column in rows().items()}
    given = None if weight is None else torch.from_numpy(weight)
    impala_loss(**tensors, weight=given, **OPTIONS).total.backward()
    arrays = {name: convert(column) for name, column in rows().items()}
    found = impala_gradient(**arrays, weight=None if weight is None else convert(weight), **OPTIONS)
    for name in ("log_prob", "value", "entropy"):
        np.testing.assert_allclose(np.asarray(getattr(found, name)), tensors[name].grad, atol=1e-12)
