"""The numpy forward is the torch forward on the same memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.nets.fast import FastMLP, can_be_fast
from engine.nets.flat import FlatParameters
from engine.nets.mlp import MLP


def observations(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)


def by_torch(mlp: MLP, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return mlp(torch.from_numpy(x)).numpy()


@pytest.mark.parametrize("rows", [1, 8, 300])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(), (64, 64), (200, 300)])
def test_outputs_are_those_of_torch(rows, activation, hidden) -> None:
    mlp, x = MLP(4, hidden, 3, activation=activation), observations(rows)
    np.testing.assert_allclose(FastMLP(mlp)(x), by_torch(mlp, x), atol=1e-6)


@pytest.mark.parametrize("rows", [8, 300])
def test_updates_in_place_are_seen(rows) -> None:
    mlp, x = MLP(4, (64, 64), 2), observations(rows)
    flat = FlatParameters(mlp)
    fast = FastMLP(mlp)
    optimizer = torch.optim.Adam([flat.parameter], lr=0.1, fused=True)
    mlp(torch.from_numpy(x)).sum().backward()
    before = fast(x)
    optimizer.step()
    assert np.abs(fast(x) - before).max() > 0.1
    np.testing.assert_allclose(fast(x), by_torch(mlp, x), atol=1e-5)
    mlp.load_state_dict(MLP(4, (64, 64), 2).state_dict())
    np.testing.assert_allclose(fast(x), by_torch(mlp, x), atol=1e-5)


@pytest.mark.parametrize("rows", [8, 300])
def test_outputs_handed_out_are_not_overwritten(rows) -> None:
    fast = FastMLP(MLP(4, (64,), 2))
    first = fast(observations(rows, 1))
    kept = first.copy()
    fast(observations(rows, 2))
    np.testing.assert_array_equal(first, kept)


def test_observations_are_left_alone() -> None:
    fast, x = FastMLP(MLP(4, (64,), 2)), observations(8)
    kept = x.copy()
    fast(x)
    np.testing.assert_array_equal(x, kept)


def test_the_memory_held_for_many_batch_sizes_is_bounded() -> None:
    fast = FastMLP(MLP(4, (16,), 2))
    for rows in range(1, 60):
        fast(observations(rows))
    assert len(fast._buffers) <= 9


def test_what_numpy_cannot_do_is_refused() -> None:
    assert not can_be_fast(MLP(4, (8,), 2, activation="gelu"))
    assert not can_be_fast(MLP(4, (8,), None))
    assert not can_be_fast(torch.nn.Linear(4, 2))
    assert not can_be_fast(MLP(4, (8,), 2).double())
    with pytest.raises(ValueError, match="tanh or relu"):
        FastMLP(MLP(4, (8,), 2, activation="elu"))


def test_a_subclass_is_not_taken_for_an_mlp() -> None:
    class Own(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1

    assert not can_be_fast(Own(4, (8,), 2))
