"""Adam written out is torch's Adam."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine.nets import adam
from engine.nets.adam import Adam
from engine.nets.flat import FlatParameters


def trained(steps: int, *, dtype: torch.dtype = torch.float32, resume_at: int | None = None) -> torch.Tensor:
    flat = FlatParameters(nn.Linear(20, 7).to(dtype))
    with torch.no_grad():
        flat.parameter.copy_(torch.linspace(-1, 1, 147))
    optimizer = Adam(flat, learning_rate=0.05, betas=(0.8, 0.99), epsilon=1e-5)
    for step in range(steps):
        if step == resume_at:
            state = optimizer.state_dict()
            optimizer = Adam(flat, learning_rate=9.0, betas=(0.8, 0.99), epsilon=1e-5)
            optimizer.load_state_dict(state)
        flat.gradient.copy_(gradient(step))
        optimizer.step()
    return flat.parameter.detach()


def gradient(step: int) -> torch.Tensor:
    return torch.randn(147, generator=torch.Generator().manual_seed(step)) * 10.0 ** (step % 5 - 3)


def by_torch(steps: int) -> torch.Tensor:
    parameter = nn.Parameter(torch.linspace(-1, 1, 147).double())
    optimizer = torch.optim.Adam([parameter], lr=0.05, betas=(0.8, 0.99), eps=1e-5)
    for step in range(steps):
        parameter.grad = gradient(step).double()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("steps", [1, 2, 50])
def test_parameters_are_those_of_torchs_adam(steps) -> None:
    torch.testing.assert_close(trained(steps).double(), by_torch(steps), atol=1e-5, rtol=1e-5)


def test_the_kernel_for_other_devices_and_types_agrees() -> None:
    found = trained(50, dtype=torch.float64)
    torch.testing.assert_close(found, by_torch(50), atol=1e-6, rtol=1e-6)


def test_working_in_chunks_changes_nothing(monkeypatch) -> None:
    whole = trained(10)
    monkeypatch.setattr(adam, "_CHUNK", 40)
    assert torch.equal(trained(10), whole)


def test_a_resumed_run_goes_on_exactly() -> None:
    assert torch.equal(trained(10, resume_at=4), trained(10))


def test_a_state_is_a_snapshot() -> None:
    flat = FlatParameters(nn.Linear(2, 2))
    optimizer = Adam(flat, learning_rate=0.1)
    state = optimizer.state_dict()
    flat.gradient.fill_(1.0)
    optimizer.step()
    assert not state["mean"].any()
    assert optimizer.state_dict()["mean"].all()
