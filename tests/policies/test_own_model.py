"""A model of the user's own: what would spoil training without a word is told when the model is given."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from engine.errors import ConfigError
from engine.policies.dqn import DQN
from engine.policies.impala import IMPALA
from engine.policies.own_model import sample_observations
from engine.policies.ppo import PPO

BOX, TWO = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
NESTED = spaces.Dict(
    {"image": spaces.Box(0, 255, (4, 4, 1), np.uint8), "speed": BOX, "gear": spaces.Discrete(3)}
)


class Plain(nn.Module):
    """Actor and critic over a body that a test chooses."""

    def __init__(self, *body: nn.Module, critic: nn.Module | None = None, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.actor = nn.Linear(width, 2)
        self.critic = critic or nn.Linear(width, 1)

    def features(self, obs: Any) -> Any:
        return self.body(obs)

    def policy(self, obs: Any) -> Any:
        return self.actor(self.features(obs))

    def value(self, obs: Any) -> Any:
        return self.critic(self.features(obs)).squeeze(-1)

    def forward(self, obs: Any) -> Any:
        return self.policy(obs), self.value(obs)


class Scaling(Plain):
    """Works in place on one leaf of what it is given, in one way of being called."""

    def __init__(self, change: Any, *, training: bool = False) -> None:
        super().__init__(nn.Linear(3, 16), nn.Tanh())
        self.change, self.only_training = change, training

    def features(self, obs: Any) -> Any:
        if self.training or not self.only_training:
            self.change(obs)
        return self.body(obs["speed"] if isinstance(obs, dict) else obs)


class Remembering(Plain):
    """A recurrent model that holds its state itself, anew for every number of rows."""

    def __init__(self, *, detached: bool, last_layer: float = 1.0) -> None:
        super().__init__(nn.Linear(3, 16))
        self.memory, self.detached = nn.GRUCell(16, 16), detached
        self.state: Any = None
        nn.init.constant_(self.actor.weight, last_layer)
        nn.init.constant_(self.critic.weight, last_layer)

    def features(self, obs: Any) -> Any:
        if self.state is None or len(self.state) != len(obs):
            self.state = torch.zeros(len(obs), 16)
        self.state = self.memory(self.body(obs), self.state)
        if self.detached:
            self.state = self.state.detach()
        return self.state


class WithinOneObservation(Plain):
    """Reads the numbers of one observation one after the other, and forgets them: not recurrent in time."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.GRU(1, 16, batch_first=True)

    def features(self, obs: Any) -> Any:
        return self.reader(obs[..., None])[0][:, -1]


def numpy_shift(obs: Any) -> None:
    obs.numpy()[:] += 1


@pytest.mark.parametrize("algorithm", [PPO, IMPALA])
@pytest.mark.parametrize(
    "model",
    [
        Plain(nn.ReLU(inplace=True), nn.Linear(3, 16)),
        Plain(nn.Flatten(), nn.Dropout(0.2, inplace=True), nn.Linear(3, 16)),
        Scaling(lambda obs: obs.clamp_(-10, 10)),
        Scaling(lambda obs: obs.mul_(2.0), training=True),
        Scaling(numpy_shift),
    ],
    ids=["relu", "dropout", "clamp that changes no value here", "only in training", "numpy"],
)
def test_a_model_that_works_in_place_on_observations_is_refused(algorithm, model) -> None:
    with pytest.raises(ConfigError, match=r"(Plain|Scaling) changes the observations .* obs\.clone\(\)"):
        algorithm(BOX, TWO, model=model)


def test_work_in_place_is_found_in_a_leaf_and_in_a_q_net() -> None:
    with pytest.raises(ConfigError, match="Scaling changes the observations"):
        PPO(NESTED, TWO, model=Scaling(lambda obs: obs["image"].fill_(0)))
    with pytest.raises(ConfigError, match="Sequential changes the observations"):
        DQN(BOX, TWO, model=nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)))


def test_work_in_place_on_ones_own_results_is_fine(caplog) -> None:
    PPO(BOX, TWO, model=Plain(nn.Linear(3, 16), nn.ReLU(inplace=True)))
    PPO(NESTED, TWO, model=Scaling(lambda obs: obs["image"].float().div_(255)))
    assert not caplog.records


@pytest.mark.parametrize("algorithm", [PPO, IMPALA])
@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("last_layer", [1.0, 0.0])
def test_a_recurrent_model_is_refused_by_name(algorithm, detached, last_layer) -> None:
    with pytest.raises(
        ConfigError, match=r"Remembering .*recurrent models \(GRUCell 'memory'\).*not supported"
    ):
        algorithm(BOX, TWO, model=Remembering(detached=detached, last_layer=last_layer))


def test_a_recurrent_q_net_and_one_that_was_used_before_are_refused() -> None:
    class Counting(nn.Linear):
        calls = 0

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(obs) * self.calls

    with pytest.raises(ConfigError, match=r"Counting gives other answers .* recurrent"):
        DQN(BOX, TWO, model=Counting(3, 2))
    used = Remembering(detached=False)
    used(torch.zeros(2, 3))
    with pytest.raises(ConfigError, match=r"Remembering .*recurrent"):
        PPO(BOX, TWO, model=used)


def test_a_recurrent_layer_within_one_observation_is_fine() -> None:
    policy = PPO(BOX, TWO, model=WithinOneObservation())
    obs = np.zeros((8, 3), np.float32)
    columns = policy.actor(np.random.default_rng(0)).sample(obs)
    numbers = dict.fromkeys(("advantage", "returns", "value"), np.ones(8, np.float32))
    policy.learn({"obs": obs, **columns, **numbers})
    policy.learn({"obs": obs, **columns, **numbers})


@pytest.mark.parametrize("algorithm", [PPO, IMPALA])
@pytest.mark.parametrize(
    ("layer", "named"),
    [(nn.Dropout(0.01), "Dropout 'body.1'"), (nn.BatchNorm1d(16), "BatchNorm1d 'body.1'")],
    ids=["dropout", "batch normalisation"],
)
def test_dropout_and_batch_normalisation_are_warned_of_once(algorithm, layer, named, caplog) -> None:
    policy = algorithm(BOX, TWO, model=Plain(nn.Linear(3, 16), layer))
    policy.actor(np.random.default_rng(0))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"Plain computes something else while it learns than while it acts ({named})" in record.message


@pytest.mark.parametrize(
    "model",
    [
        Plain(nn.Linear(3, 16), nn.Dropout(0.0), nn.LayerNorm(16)),
        Plain(nn.Linear(3, 16), critic=nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 1))),
    ],
    ids=["without effect", "in the critic alone"],
)
def test_no_warning_where_the_ratio_starts_at_1(model, caplog) -> None:
    PPO(BOX, TWO, model=model)
    assert not caplog.records


def test_dropout_in_a_q_net_is_nobodys_concern(caplog) -> None:
    DQN(BOX, TWO, model=nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.5), nn.Linear(16, 2)))
    assert not caplog.records


def test_trying_a_model_leaves_it_and_torchs_generator_as_they_were() -> None:
    model = Plain(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Dropout(0.5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    policy = PPO(BOX, TWO, model=model)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.model.state_dict().items())


def test_a_lazy_layer_finds_its_size() -> None:
    policy = PPO(BOX, TWO, model=Plain(nn.LazyLinear(16), nn.Tanh()))
    assert policy.model.body[0].weight.shape == (16, 3)


@pytest.mark.parametrize(
    "space", [BOX, NESTED, spaces.Box(-np.inf, np.inf, (2,)), spaces.MultiBinary(3)], ids=str
)
def test_sampled_observations_are_in_their_space_and_leave_it_alone(space) -> None:
    space.seed(1)
    expected = space.sample()
    space.seed(1)
    found = sample_observations(space, 5, torch.device("cpu"))
    drawn = space.sample()
    for row in range(5):
        values = (
            {name: leaf[row].numpy() for name, leaf in found.items()}
            if isinstance(found, dict)
            else found[row].numpy()
        )
        if isinstance(values, dict):
            values["gear"] = int(values["gear"])
        assert space.contains(values)
    assert str(drawn) == str(expected)
