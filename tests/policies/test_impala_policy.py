"""IMPALA: a step is that of Adam on the paper's loss, whoever acted and however long ago."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from engine.errors import ConfigError
from engine.ops.impala import impala_loss
from engine.ops.returns import vtrace
from engine.policies.config import IMPALAConfig
from engine.policies.files import load_policy, save_policy
from engine.policies.impala import IMPALA
from engine.policies.ppo import PPO
from engine.tree import as_tree

BOX = spaces.Box(-1, 1, (3,))
NESTED = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "y": spaces.Box(-1, 1, (1,))})
ACTIONS = [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2,))]


def observations(space: Any, *lead: int, seed: int = 0) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: observations(part, *lead, seed=seed) for name, part in space.spaces.items()}
    return np.random.default_rng(seed).normal(size=(*lead, *space.shape)).astype(np.float32)


def tree(function: Any, obs: Any, *more: Any) -> Any:
    if isinstance(obs, dict):
        return {name: tree(function, leaf, *(other[name] for other in more)) for name, leaf in obs.items()}
    return function(obs, *more)


def moved(policy: Any, by: float, seed: int = 9) -> Any:
    """An older copy: the same policy with other weights."""
    other = copy.deepcopy(policy.model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    old = IMPALA(policy.observation_space, policy.action_space, policy.config)
    old.load_weights(other.state_dict())
    return old


def trajectory(actor: Any, space: Any = BOX, steps: int = 7, envs: int = 4, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    obs = observations(space, steps, envs, seed=seed)
    after = observations(space, steps, envs, seed=seed + 100)
    terminated, truncated = random.random((2, steps, envs)) < 0.2

    def joined(obs: Any, after: Any) -> Any:
        ended = (terminated | truncated)[:-1].reshape(steps - 1, envs, *[1] * (obs.ndim - 2))
        return np.concatenate([np.where(ended, after[:-1], obs[1:]), after[-1:]])

    columns = actor.sample(tree(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), obs))
    columns = {name: column.reshape(steps, envs, *column.shape[1:]) for name, column in columns.items()}
    return {
        "obs": obs,
        "next_obs": tree(joined, obs, after),
        "terminated": terminated,
        "truncated": truncated,
        "reward": random.normal(size=(steps, envs)).astype(np.float32),
        **columns,
    }


def weights(policy: Any) -> torch.Tensor:
    return nn.utils.parameters_to_vector(policy.model.parameters()).detach()


@pytest.mark.parametrize("action_space", ACTIONS, ids=str)
@pytest.mark.parametrize("space", [BOX, NESTED], ids=["box", "nested"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_step_is_that_of_adam_on_the_loss_under_autograd(action_space, space, shared) -> None:
    """The reference knows V of every true next observation, and uses torch's own distributions."""
    config = IMPALAConfig(
        shared=shared, entropy_coef=0.02, learning_rate=0.01, vtrace_lambda=0.9, rho_clip=1.5, c_clip=0.8
    )
    policy = IMPALA(space, action_space, config, seed=1)
    data = trajectory(moved(policy, 0.1).actor(np.random.default_rng(0)), space)
    valid = np.random.default_rng(5).random((7, 4)) < 0.8
    data["valid"] = valid
    behaviour = torch.from_numpy(np.array(policy.head.recorded_log_prob(data)))
    reference = copy.deepcopy(policy.model)
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.01, eps=config.adam_epsilon)
    rows = tree(lambda leaf: torch.from_numpy(leaf.reshape(28, *leaf.shape[2:])), data)
    out, value = reference(rows["obs"])
    law: Any
    if isinstance(action_space, spaces.Box):
        law = torch.distributions.Independent(torch.distributions.Normal(out[0], out[1].exp()), 1)
        log_prob, entropy = law.log_prob(rows["action"]), law.entropy()
    else:
        sizes = [3] if isinstance(action_space, spaces.Discrete) else [2, 3]
        laws = [torch.distributions.Categorical(logits=part) for part in out.split(sizes, 1)]
        choices = rows["action"].reshape(28, -1)
        log_prob = sum(law.log_prob(choices[:, i]) for i, law in enumerate(laws))
        entropy = sum(law.entropy() for law in laws)
    with torch.no_grad():
        next_value = reference(rows["next_obs"])[1].reshape(7, 4)
        trace = vtrace(
            log_prob.reshape(7, 4) - behaviour,
            torch.from_numpy(data["reward"]),
            value.reshape(7, 4),
            next_value,
            torch.from_numpy(data["terminated"]),
            torch.from_numpy(data["truncated"]),
            config.discount,
            config.vtrace_lambda,
            rho_clip=config.rho_clip,
            c_clip=config.c_clip,
            valid=torch.from_numpy(valid),
        )
    kept = torch.from_numpy(valid.reshape(-1))
    loss = impala_loss(
        log_prob[kept],
        trace.advantage.reshape(-1)[kept],
        value[kept],
        trace.target.reshape(-1)[kept],
        entropy[kept],
        value_coef=config.value_coef,
        entropy_coef=config.entropy_coef,
    )
    loss.total.backward()
    norm = nn.utils.clip_grad_norm_(reference.parameters(), config.max_grad_norm)
    optimizer.step()
    metrics = policy.learn(as_tree(data))
    expected = nn.utils.parameters_to_vector(reference.parameters()).detach()
    torch.testing.assert_close(weights(policy), expected, atol=2e-5, rtol=1e-4)
    assert metrics["train/loss_policy"] == pytest.approx(float(loss.policy.detach()), abs=1e-5)
    assert metrics["train/loss_value"] == pytest.approx(float(loss.value.detach()), rel=1e-4)
    assert metrics["train/entropy"] == pytest.approx(float(loss.entropy.detach()), rel=1e-4)
    assert metrics["train/rho_mean"] == pytest.approx(float(trace.rho.reshape(-1)[kept].mean()), rel=1e-4)
    assert metrics["train/grad_norm"] == pytest.approx(float(norm), rel=1e-3)
    assert policy.version == 1


def test_without_recorded_probabilities_there_are_no_importance_weights() -> None:
    policy = IMPALA(BOX, spaces.Discrete(2))
    data = trajectory(policy.actor(np.random.default_rng(0)))
    del data["logits"]
    with pytest.raises(ValueError, match="of the weights that chose the actions"):
        policy.learn(data)


def test_log_prob_in_place_of_logits_gives_the_same_step() -> None:
    one, two = (IMPALA(BOX, spaces.Discrete(2), seed=3) for _ in range(2))
    data = trajectory(moved(one, 0.1).actor(np.random.default_rng(0)))
    one.learn(data)
    log_prob = two.head.recorded_log_prob(data)
    two.learn({name: column for name, column in data.items() if name != "logits"} | {"log_prob": log_prob})
    assert torch.equal(weights(one), weights(two))


def test_own_fresh_data_has_weights_of_1_and_no_divergence() -> None:
    policy = IMPALA(BOX, spaces.Discrete(3), seed=1)
    metrics = policy.learn(trajectory(policy.actor(np.random.default_rng(0))))
    assert metrics["train/rho_mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["train/kl"] == pytest.approx(0.0, abs=1e-6)


def test_environments_are_learned_from_alike_in_any_order() -> None:
    one, two = (IMPALA(BOX, spaces.Discrete(2), seed=3) for _ in range(2))
    data = trajectory(one.actor(np.random.default_rng(0)))
    one.learn(data)
    two.learn({name: column[:, ::-1] for name, column in data.items()})
    torch.testing.assert_close(weights(one), weights(two), atol=1e-6, rtol=1e-4)


def test_rows_that_are_not_valid_change_nothing() -> None:
    """A dummy row behind an episode's end, as NEXT_STEP autoreset makes it, is as if it were not there."""
    one, two = (IMPALA(BOX, spaces.Discrete(2), seed=3) for _ in range(2))
    data = trajectory(one.actor(np.random.default_rng(0)), envs=1, steps=8)
    data["terminated"][:] = data["truncated"][:] = False
    data["terminated"][3] = True
    valid = np.ones((8, 1), bool)
    valid[4] = False
    without = {name: np.delete(column, 4, axis=0) for name, column in data.items()}
    data["reward"][4] = 1e6
    found, expected = one.learn({**data, "valid": valid}), two.learn(without)
    torch.testing.assert_close(weights(one), weights(two), atol=1e-6, rtol=1e-4)
    assert found["train/loss_value"] == pytest.approx(expected["train/loss_value"], rel=1e-4)
    assert found["train/explained_variance"] == pytest.approx(expected["train/explained_variance"], abs=1e-4)
    with pytest.raises(ValueError, match="without a single valid row"):
        one.learn({**data, "valid": np.zeros((8, 1), bool)})


def test_a_rewarded_action_becomes_likely_though_an_older_policy_acted() -> None:
    policy = IMPALA(BOX, spaces.Discrete(3), IMPALAConfig(learning_rate=0.01, discount=0.0), seed=1)
    actor = policy.actor(np.random.default_rng(0))
    for seed in range(60):
        data = trajectory(actor, seed=seed, steps=16)
        policy.learn({**data, "reward": (data["action"] == 2).astype(np.float32)})
    assert actor.version == 0, "it acted with the first weights all the time"
    assert (policy.act(observations(BOX, 50), deterministic=True) == 2).all()


def test_a_constant_reward_drives_the_value_to_its_closed_form() -> None:
    config = IMPALAConfig(discount=0.8, learning_rate=0.01, max_grad_norm=10.0)
    policy = IMPALA(BOX, spaces.Discrete(2), config, seed=1)
    actor = policy.actor(np.random.default_rng(0))
    for iteration in range(400):
        data = trajectory(actor, steps=16, envs=4, seed=iteration)
        flags = np.zeros((16, 4), bool)
        data |= {"terminated": flags, "truncated": flags, "reward": np.full((16, 4), 2.0, np.float32)}
        data["next_obs"] = np.concatenate([data["obs"][1:], data["next_obs"][-1:]])
        policy.learn(data)
    value = float(policy.values(observations(BOX, 200, seed=999)).mean())
    assert value == pytest.approx(2.0 / (1 - 0.8), rel=0.05)


class Own(nn.Module):
    """A model of the user's own, which torch differentiates."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 8)
        self.logits, self.worth = nn.Linear(8, 2), nn.Linear(8, 1)

    def policy(self, obs: Any) -> Any:
        return self.logits(torch.tanh(self.net(obs)))

    def value(self, obs: Any) -> Any:
        return self.worth(torch.tanh(self.net(obs)))[:, 0]

    def forward(self, obs: Any) -> Any:
        return self.policy(obs), self.value(obs)


def test_a_model_of_ones_own_learns_and_a_wrong_one_is_refused() -> None:
    policy = IMPALA(BOX, spaces.Discrete(2), model=Own())
    before = weights(policy).clone()
    policy.learn(trajectory(policy.actor(np.random.default_rng(0))))
    assert not torch.equal(before, weights(policy))
    with pytest.raises(ConfigError, match="no method policy"):
        IMPALA(BOX, spaces.Discrete(2), model=nn.Linear(3, 2))


def test_a_saved_policy_acts_as_before(tmp_path) -> None:
    policy = IMPALA(BOX, spaces.Discrete(3), IMPALAConfig(hidden=(8,)), seed=4)
    policy.learn(trajectory(policy.actor(np.random.default_rng(0))))
    again = load_policy(save_policy(policy, tmp_path / "policy"))
    obs = observations(BOX, 20)
    assert type(again) is IMPALA
    assert again.version == 1
    assert (policy.act(obs, deterministic=True) == again.act(obs, deterministic=True)).all()


def test_a_burst_after_a_quiet_stretch_moves_no_weight_by_more_than_the_learning_rate() -> None:
    # With Adam's usual epsilon its second moment forgets the old gradients, and one bad batch takes ten
    # steps of up to three times the learning rate each.
    policy = IMPALA(BOX, spaces.Discrete(2), IMPALAConfig(learning_rate=1e-3))
    parameter, gradient = policy._weights.parameter.detach(), policy._weights.gradient
    share = policy.config.max_grad_norm / len(parameter) ** 0.5
    random = torch.Generator().manual_seed(0)
    largest = []
    for step in range(3010):
        sign = torch.randint(0, 2, parameter.shape, generator=random) * 2.0 - 1.0
        gradient.copy_(sign * share * (1.0 if step == 3000 else 0.02))
        before = parameter.clone()
        policy._optimizer.step()
        largest.append(float((parameter - before).abs().max()))
    assert max(largest[3000:]) < 1e-3


def test_impala_and_ppo_of_one_seed_begin_with_the_same_net() -> None:
    assert torch.equal(
        weights(IMPALA(BOX, spaces.Discrete(2), seed=7)), weights(PPO(BOX, spaces.Discrete(2), seed=7))
    )
