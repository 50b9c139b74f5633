"""DQN: its targets bootstrap from the right states, and it finds the values of small problems."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from engine.errors import ConfigError, EnvError, StateError
from engine.policies.config import DQNConfig
from engine.policies.dqn import DQN
from engine.tree import as_tree

BOX, THREE = spaces.Box(-1, 1, (3,)), spaces.Discrete(3)
NESTED = spaces.Dict({"x": BOX, "pair": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])})


def observations(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)


def nested(rows: int) -> dict[str, Any]:
    pair = {"item_0": np.arange(rows) % 3, "item_1": np.ones((rows, 2), np.int8)}
    return {"x": observations(rows), "pair": pair}


def batch(rows: int = 32, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "obs": observations(rows, seed),
        "action": random.integers(0, 3, rows),
        "reward": random.normal(size=rows).astype(np.float32),
        "next_obs": observations(rows, seed + 1000),
        "terminated": random.random(rows) < 0.3,
        "truncated": random.random(rows) < 0.3,
    }


def weights(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def values(model: nn.Module, obs: np.ndarray) -> np.ndarray:
    return model(torch.from_numpy(obs)).detach().numpy()


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_targets_bootstrap_unless_terminated(double, dueling) -> None:
    policy = DQN(
        BOX, THREE, DQNConfig(double=double, dueling=dueling, discount=0.9, target_update=1000), seed=1
    )
    policy.learn(batch(seed=5))  # now target and online nets differ
    data = batch()
    found = policy._targets(policy._columns(as_tree(data)))
    for i in range(32):
        online, target = (
            values(net, data["next_obs"][i : i + 1])[0] for net in (policy.model, policy.target)
        )
        best = int(np.argmax(online if double else target))
        expected = data["reward"][i] + (0.0 if data["terminated"][i] else 0.9 * target[best])
        assert found[i] == pytest.approx(expected, abs=1e-5)
    assert (data["terminated"] & data["truncated"]).any()
    assert (data["truncated"] & ~data["terminated"]).any()


def test_the_discount_column_replaces_the_configured_discount() -> None:
    policy, data = DQN(BOX, THREE, DQNConfig(n_step=3), seed=1), batch(4)
    columns = data | {"discount": np.array([0.0, 0.5, 0.7, 1.0], np.float32)}
    found = policy._targets(policy._columns(columns))
    best = values(policy.model, data["next_obs"]).max(1)
    np.testing.assert_allclose(found, data["reward"] + columns["discount"] * best, atol=1e-5)


def test_n_step_transitions_without_their_discounts_are_an_error() -> None:
    with pytest.raises(ValueError, match="need the column 'discount'"):
        DQN(BOX, THREE, DQNConfig(n_step=3)).learn(batch())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("huber", [None, 0.5])
@pytest.mark.parametrize("dueling", [False, True])
def test_a_step_is_that_of_adam_on_torchs_own_loss(huber, dueling, weighted) -> None:
    policy = DQN(BOX, THREE, DQNConfig(huber=huber, dueling=dueling, max_grad_norm=0.5), seed=1)
    reference, data = copy.deepcopy(policy.model), batch()
    weight = np.random.default_rng(3).random(32).astype(np.float32) if weighted else np.ones(32, np.float32)
    if weighted:
        data["weight"] = weight
    optimizer = torch.optim.Adam(reference.parameters(), lr=1e-3)
    target = torch.from_numpy(policy._targets(policy._columns(data)))
    chosen = reference(torch.from_numpy(data["obs"])).gather(1, torch.from_numpy(data["action"])[:, None])[
        :, 0
    ]
    kind = {"reduction": "none"}
    own = nn.functional
    losses = (
        own.mse_loss(chosen, target, **kind) / 2
        if huber is None
        else own.huber_loss(chosen, target, delta=huber, **kind)
    )
    loss = (torch.from_numpy(weight) * losses).mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
    optimizer.step()
    metrics = policy.learn(as_tree(data))
    torch.testing.assert_close(weights(policy.model), weights(reference), atol=2e-5, rtol=1e-4)
    assert metrics["train/loss_q"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert metrics["train/grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    error = chosen.detach() - target
    assert metrics["train/td_error"] == pytest.approx(float(error.abs().mean()), rel=1e-4)
    np.testing.assert_allclose(policy.td_error, error, atol=1e-5)


def test_the_target_net_is_copied_every_so_many_steps() -> None:
    policy = DQN(BOX, THREE, DQNConfig(target_update=3), seed=1)
    start, same = weights(policy.target).clone(), []
    for i in range(6):
        policy.learn(batch(seed=i))
        same.append(torch.equal(weights(policy.target), weights(policy.model)))
        if i < 2:
            assert torch.equal(weights(policy.target), start)
    assert same == [False, False, True, False, False, True]


def test_a_soft_update_moves_the_target_net_by_tau() -> None:
    policy = DQN(BOX, THREE, DQNConfig(target_update=1, tau=0.25), seed=1)
    start = weights(policy.target).clone()
    policy.learn(batch())
    torch.testing.assert_close(weights(policy.target), 0.75 * start + 0.25 * weights(policy.model))


def test_a_constant_reward_drives_q_to_its_closed_form() -> None:
    config = DQNConfig(discount=0.5, learning_rate=3e-3, target_update=20, huber=None)
    policy = DQN(BOX, THREE, config, seed=1)
    for i in range(600):
        never = np.zeros(32, bool)
        policy.learn(batch(seed=i) | {"reward": np.full(32, 2.0, np.float32), "terminated": never})
    assert float(policy._forward(observations(200, 9))[0].mean()) == pytest.approx(2.0 / (1 - 0.5), rel=0.03)


def test_a_termination_is_worth_its_reward_and_a_truncation_more() -> None:
    config = DQNConfig(discount=0.5, learning_rate=3e-3, target_update=20, huber=None)
    policy, half = DQN(BOX, THREE, config, seed=1), np.arange(32) < 16
    for i in range(600):
        data = batch(seed=i) | {"reward": np.ones(32, np.float32), "terminated": half, "truncated": ~half}
        for name in (
            "obs",
            "next_obs",
        ):  # the first half lies at +2, ends there; the other half goes on at -2
            data[name] = np.where(half[:, None], 2.0, -2.0).astype(np.float32) + 0.1 * data[name]
        policy.learn(data)
    found = policy._forward(np.array([[2.0] * 3, [-2.0] * 3], np.float32))[0].mean(1)
    assert found == pytest.approx([1.0, 2.0], rel=0.05)


def test_epsilon_is_the_share_of_random_actions() -> None:
    policy = DQN(BOX, THREE, seed=1)
    actor, obs = policy.actor(np.random.default_rng(0)), np.zeros((1000, 3), np.float32)
    greedy = int(actor.act(obs)[0])
    for epsilon in (0.0, 0.3, 1.0):
        actor.epsilon = epsilon
        chosen = np.concatenate([actor.sample(obs)["action"] for _ in range(100)])
        share = np.bincount(chosen, minlength=3) / 100_000
        expected = np.full(3, epsilon / 3) + (1 - epsilon) * (np.arange(3) == greedy)
        np.testing.assert_allclose(share, expected, atol=5 * 0.5 / 100_000**0.5)
        assert chosen.dtype == np.int64


def test_act_is_greedy_only_when_asked() -> None:
    policy, obs = DQN(BOX, spaces.Discrete(3, start=7), seed=1), observations(500)
    policy.epsilon = 1.0
    greedy = policy.act(obs, deterministic=True)
    np.testing.assert_array_equal(greedy, 7 + values(policy.model, obs).argmax(1))
    assert set(policy.act(obs)) == {7, 8, 9}
    assert isinstance(policy.act(obs[0]), int)


def test_a_saved_state_goes_on_exactly() -> None:
    one = DQN(BOX, THREE, DQNConfig(target_update=4), seed=1)
    actor = one.actor(np.random.default_rng(4))
    for i in range(5):
        one.learn(batch(seed=i))
    actor.epsilon, one.epsilon = 0.5, 0.6
    actor.sample(observations(4))
    file = io.BytesIO()
    torch.save({"policy": one.state_dict(), "actor": actor.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    two = DQN(BOX, THREE, DQNConfig(target_update=4), seed=2)
    other = two.actor(np.random.default_rng(5))
    two.load_state_dict(state["policy"])
    other.load_state_dict(state["actor"])
    for i in range(5, 9):
        for policy in (one, two):
            policy.learn(batch(seed=i))
        np.testing.assert_array_equal(
            actor.sample(observations(4))["action"], other.sample(observations(4))["action"]
        )
    assert one.version == two.version == 9
    assert torch.equal(weights(one.model), weights(two.model))
    assert torch.equal(weights(one.target), weights(two.target))
    np.testing.assert_array_equal(one.act(observations(50)), two.act(observations(50)))


def test_the_same_seed_gives_the_same_parameters_bit_for_bit() -> None:
    def trained(seed: int) -> torch.Tensor:
        policy = DQN(BOX, THREE, seed=seed)
        for i in range(5):
            policy.learn(batch(seed=i))
        return weights(policy.model)

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


def test_nested_observations_are_learned_from() -> None:
    policy = DQN(NESTED, THREE, seed=1)
    before = weights(policy.model).clone()
    policy.learn(as_tree(batch() | {"obs": nested(32), "next_obs": nested(32)}))
    assert not torch.equal(weights(policy.model), before)
    assert policy.actor(np.random.default_rng(0)).sample(nested(5))["action"].shape == (5,)


def test_an_actor_changes_only_when_it_loads() -> None:
    policy = DQN(BOX, THREE, DQNConfig(learning_rate=0.1), seed=1)
    actor, obs = policy.actor(np.random.default_rng(0)), observations(100)
    before = actor.act(obs)
    for i in range(20):
        policy.learn(batch(seed=i))
    np.testing.assert_array_equal(actor.act(obs), before)
    actor.load(policy)
    assert actor.version == 20
    np.testing.assert_array_equal(actor.act(obs), policy.act(obs, deterministic=True))
    assert not np.array_equal(actor.act(obs), before)


@pytest.mark.parametrize("double", [False, True])
def test_an_actor_finds_the_errors_of_learning_while_the_target_net_is_no_older(double: bool) -> None:
    policy = DQN(BOX, THREE, DQNConfig(double=double, dueling=True), seed=1)
    actor, data = policy.actor(np.random.default_rng(0)), batch()
    found = actor.td_error(data)
    policy.learn(data)
    np.testing.assert_allclose(found, policy.td_error, atol=1e-6)
    actor.load(policy)
    assert not np.allclose(actor.td_error(data), found)


def test_an_actor_finds_the_errors_of_nested_observations_and_of_no_rows() -> None:
    policy = DQN(NESTED, THREE, seed=1)
    actor = policy.actor(np.random.default_rng(0))
    data = batch() | {"obs": nested(32), "next_obs": nested(32)}
    found = actor.td_error(data)
    policy.learn(as_tree(data))
    np.testing.assert_allclose(found, policy.td_error, atol=1e-5)
    none = batch(0) | {"obs": nested(0), "next_obs": nested(0)}
    assert (actor.td_error(none).shape, actor.td_error(none).dtype) == ((0,), found.dtype)


def test_the_errors_of_n_step_transitions_without_their_discounts_are_refused() -> None:
    actor = DQN(BOX, THREE, DQNConfig(n_step=3)).actor(np.random.default_rng(0))
    with pytest.raises(ValueError, match="need the column 'discount'"):
        actor.td_error(batch())


def test_each_row_may_have_an_epsilon_of_its_own_and_a_saved_actor_keeps_them() -> None:
    policy = DQN(BOX, THREE, seed=1)
    actor, obs = policy.actor(np.random.default_rng(0)), np.zeros((3, 3), np.float32)
    greedy = int(actor.act(obs)[0])
    actor.epsilon = np.array([0.0, 0.3, 1.0])
    chosen = np.array([actor.sample(obs)["action"] for _ in range(20_000)])
    np.testing.assert_allclose((chosen != greedy).mean(0), [0.0, 0.2, 2 / 3], atol=0.02)
    assert (actor.act(obs) == greedy).all(), "evaluation explores nothing"
    file = io.BytesIO()
    torch.save(actor.state_dict(), file)
    file.seek(0)
    other = policy.actor(np.random.default_rng(5))
    other.load_state_dict(torch.load(file, weights_only=True))
    np.testing.assert_array_equal(other.sample(obs)["action"], actor.sample(obs)["action"])
    np.testing.assert_array_equal(other.epsilon, actor.epsilon)


def test_a_model_of_ones_own_is_trained_with_a_target_of_its_kind() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))
    policy = DQN(BOX, THREE, DQNConfig(target_update=1), model=model)
    before = weights(model).clone()
    policy.learn(batch())
    assert not torch.equal(weights(model), before)
    assert torch.equal(weights(policy.target), weights(model))


def test_what_cannot_be_learned_is_refused_when_building() -> None:
    with pytest.raises(EnvError, match=r"Discrete actions.*PPO"):
        DQN(BOX, BOX)
    with pytest.raises(ConfigError, match=r"expected \(2, 3\)"):
        DQN(BOX, THREE, model=nn.Linear(3, 4))
    with pytest.raises(StateError, match="'ppo' given to a policy of 'dqn'"):
        DQN(BOX, THREE).load_state_dict({"algorithm": "ppo"})
