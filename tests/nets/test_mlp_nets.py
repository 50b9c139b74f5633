"""Torch modules: MLPs, actor-critics and Q-networks."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from engine.errors import EnvError
from engine.nets.actor_critic import ActorCritic
from engine.nets.encoders import encoder
from engine.nets.mlp import MLP, tanh
from engine.nets.q_network import QNetwork


def test_tanh_and_its_gradient_are_torchs() -> None:
    x = torch.linspace(-12, 12, 4001, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    tanh(x).pow(3).sum().backward()
    torch.tanh(y).pow(3).sum().backward()
    torch.testing.assert_close(tanh(x), torch.tanh(y), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.grad, y.grad, atol=1e-6, rtol=1e-4)


def test_tanh_of_doubles_keeps_their_precision() -> None:
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)
    assert torch.equal(tanh(x), torch.tanh(x))


def test_an_mlp_is_linear_layers_with_activations_between() -> None:
    mlp = MLP(3, (5, 4), 2, activation="relu")
    first, second, last = mlp.layers
    x = torch.randn(7, 3)
    assert torch.allclose(mlp(x), last(torch.relu(second(torch.relu(first(x))))))


def test_a_trunk_ends_with_its_activation() -> None:
    trunk = MLP(3, (5,), None, activation="relu")
    assert trunk.outputs == 5
    assert trunk(torch.randn(50, 3)).detach().min() == 0.0


def test_orthogonal_layers_have_the_asked_gain_and_no_bias() -> None:
    mlp = MLP(8, (8,), 3, output_gain=0.01)
    inner, last = (layer.weight.double() for layer in mlp.layers)
    torch.testing.assert_close(inner @ inner.T, 2 * torch.eye(8).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(3).double(), atol=1e-7, rtol=0)
    assert not any(layer.bias.any() for layer in mlp.layers)


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-1, 1, shape)


@pytest.mark.parametrize("shared", [False, True])
def test_forward_gives_policy_and_value_of_their_own_methods(shared) -> None:
    model, obs = ActorCritic(encoder(box(4)), 3, shared=shared), torch.randn(5, 4)
    logits, value = model(obs)
    assert (logits.shape, value.shape) == ((5, 3), (5,))
    assert torch.equal(logits, model.policy(obs))
    assert torch.equal(value, model.value(obs))


def test_separate_nets_share_no_parameter_and_shared_ones_do() -> None:
    def touched(shared: bool) -> set[str]:
        model = ActorCritic(encoder(box(4)), 3, shared=shared)
        model.value(torch.randn(5, 4)).sum().backward()
        return {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}

    assert touched(False) == {"critic"}
    assert touched(True) == {"trunk", "critic"}


def test_a_gaussian_policy_has_one_deviation_for_all_observations() -> None:
    model = ActorCritic(encoder(box(4)), 2, log_std=-0.5)
    mean, log_std = model.policy(torch.randn(6, 4))
    assert mean.shape == log_std.shape == (6, 2)
    assert (log_std == -0.5).all()


def test_a_dueling_head_adds_value_and_centred_advantages() -> None:
    net, obs = QNetwork(encoder(box(4)), 3, dueling=True), torch.randn(5, 4)
    assert net(obs).shape == (5, 3)
    torch.testing.assert_close(net(obs).mean(1), net.state_value(net.trunk(obs))[:, 0])


NESTED = spaces.Dict(
    {
        "b": spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary(2)]),
        "a": spaces.Box(-1, 1, (2, 2)),
        "c": spaces.MultiDiscrete([2, 3]),
    }
)


def test_nested_observations_are_encoded_side_by_side_in_order_of_names() -> None:
    obs = {
        "c": torch.tensor([[1, 2]]),
        "a": torch.tensor([[[0.1, 0.2], [0.3, 0.4]]]),
        "b": {"item_0": torch.tensor([3]), "item_1": torch.tensor([[1, 0]], dtype=torch.int8)},
    }
    net = encoder(NESTED)
    expected = [0.1, 0.2, 0.3, 0.4, 0, 0, 1, 1, 0, 0, 1, 0, 0, 1]
    torch.testing.assert_close(net(obs), torch.tensor([expected]))
    assert net.outputs == 14


def test_a_tree_is_read_like_a_dict() -> None:
    from engine.tree import as_tree

    obs = {
        "a": torch.ones(2, 2, 2),
        "c": torch.zeros(2, 2),
        "b": {"item_0": torch.ones(2), "item_1": torch.ones(2, 2)},
    }
    assert torch.equal(encoder(NESTED)(as_tree(obs)), encoder(NESTED)(obs))


def test_bytes_are_scaled_to_0_1() -> None:
    space = spaces.Box(0, 255, (3,), np.uint8)
    assert encoder(space)(torch.tensor([[0, 51, 255]], dtype=torch.uint8)).tolist() == [
        [0, pytest.approx(0.2), 1]
    ]


@pytest.mark.parametrize(("shape", "outputs"), [((84, 84, 4), 512), ((4, 84, 84), 512), ((10, 10, 3), 128)])
def test_images_go_through_convolutions_whichever_way_they_lie(shape, outputs) -> None:
    net = encoder(spaces.Box(0, 255, shape, np.uint8))
    assert net(torch.zeros(2, *shape, dtype=torch.uint8)).shape == (2, outputs)
    assert any(isinstance(m, torch.nn.Conv2d) for m in net.modules())


def test_an_image_and_its_transpose_have_the_same_features() -> None:
    torch.manual_seed(0)
    last = encoder(spaces.Box(0, 255, (10, 9, 3), np.uint8))
    first = encoder(spaces.Box(0, 255, (3, 10, 9), np.uint8))
    first.load_state_dict(last.state_dict())
    image = torch.randint(0, 256, (2, 10, 9, 3), dtype=torch.uint8)
    torch.testing.assert_close(last(image), first(image.permute(0, 3, 1, 2)))


def test_a_space_that_no_net_reads_is_named_with_its_place() -> None:
    space = spaces.Dict({"text": spaces.Dict({"mission": spaces.Text(5)})})
    with pytest.raises(EnvError, match=r"observation\.text\.mission has the space Text"):
        encoder(space)


def test_one_hot_of_gymnasiums_samples_sums_to_the_number_of_parts() -> None:
    space: gymnasium.Space = spaces.MultiDiscrete([3, 4], start=[1, -1])
    space.seed(0)
    obs = torch.from_numpy(np.stack([space.sample() for _ in range(20)]))
    assert (encoder(space)(obs).sum(1) == 2).all()


def test_gains_follow_the_paper() -> None:
    model = ActorCritic(encoder(box(64)), 2, hidden=(64,))
    hidden, out = model.actor.layers
    assert float(torch.linalg.matrix_norm(hidden.weight.detach(), 2)) == pytest.approx(math.sqrt(2), rel=1e-4)
    assert float(torch.linalg.matrix_norm(out.weight.detach(), 2)) == pytest.approx(0.01, rel=1e-4)
