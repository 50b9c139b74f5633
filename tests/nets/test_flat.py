"""Parameters as one vector behave like the parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine.nets.flat import FlatParameters
from engine.nets.mlp import MLP


def twins() -> tuple[MLP, MLP]:
    torch.manual_seed(0)
    a, b = MLP(4, (8,), 2), MLP(4, (8,), 2)
    b.load_state_dict(a.state_dict())
    return a, b


def test_training_the_vector_is_training_the_parameters() -> None:
    flat_model, plain_model = twins()
    flat = FlatParameters(flat_model)
    one = torch.optim.Adam([flat.parameter], lr=0.01, fused=True)
    many = torch.optim.Adam(plain_model.parameters(), lr=0.01, fused=True)
    for step in range(5):
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
        flat.zero_grad()
        flat_model(x).pow(2).sum().backward()
        many.zero_grad()
        plain_model(x).pow(2).sum().backward()
        norm = flat.clip(0.5)
        expected = nn.utils.clip_grad_norm_(plain_model.parameters(), 0.5)
        assert norm == pytest.approx(float(expected), rel=1e-5)
        one.step()
        many.step()
    for mine, theirs in zip(flat_model.parameters(), plain_model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_small_gradient_is_not_scaled() -> None:
    model, _ = twins()
    flat = FlatParameters(model)
    flat.parameter.grad.fill_(1e-4)
    flat.clip(10.0)
    assert (flat.parameter.grad == 1e-4).all()


def test_gradients_survive_a_foreign_zero_grad() -> None:
    model, _ = twins()
    flat = FlatParameters(model)
    model.zero_grad(set_to_none=True)
    flat.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    assert flat.parameter.grad.abs().sum() > 0


def test_loading_weights_is_seen_by_the_vector() -> None:
    model, other = twins()
    flat = FlatParameters(model)
    nn.init.constant_(other.layers[0].weight, 3.0)
    model.load_state_dict(other.state_dict())
    assert (flat.parameter[:32] == 3.0).all()


def test_copies_take_buffers_along_and_share_no_memory() -> None:
    a, b = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    a(torch.randn(8, 3) + 5)
    nn.init.constant_(a.weight, 2.0)
    flat_a, flat_b = FlatParameters(a), FlatParameters(b)
    flat_b.copy_from(flat_a)
    assert torch.equal(b.running_mean, a.running_mean)
    assert torch.equal(b.weight, a.weight)
    with torch.no_grad():
        a.weight.add_(1.0)
    assert (b.weight == 2.0).all()


def test_a_soft_update_moves_by_its_share() -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    for model, value in ((a, 0.0), (b, 10.0)):
        for parameter in model.parameters():
            nn.init.constant_(parameter, value)
    FlatParameters(a).move_towards(FlatParameters(b), 0.1)
    assert all((p == 1.0).all() for p in a.parameters())


def test_parameters_of_two_kinds_are_refused() -> None:
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match=r"float32 on cpu.*float64 on cpu"):
        FlatParameters(mixed)
    with pytest.raises(ValueError, match="none at all"):
        FlatParameters(nn.Identity())


def test_arrays_show_the_parameters_and_load_copies_them_into_another_module() -> None:
    one, other = (
        FlatParameters(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))) for _ in range(2)
    )
    arrays = one.arrays()
    with torch.no_grad():
        one.parameter += 1.0
    other.load(arrays)
    assert torch.equal(other.parameter, one.parameter)
    assert set(arrays) == {"parameters", "buffer_0", "buffer_1", "buffer_2"}


def test_weights_of_another_module_are_refused_and_change_nothing() -> None:
    one, other = FlatParameters(torch.nn.Linear(3, 2)), FlatParameters(torch.nn.Linear(3, 3))
    before = other.parameter.detach().clone()
    with pytest.raises(ValueError, match="weights of another module"):
        other.load(one.arrays())
    assert torch.equal(other.parameter, before)
