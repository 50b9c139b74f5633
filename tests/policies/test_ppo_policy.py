"""PPO: what it records, how it evaluates, and that learning does what the paper says."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from engine.errors import ConfigError, StateError
from engine.ops.ppo import ppo_loss
from engine.ops.returns import gae
from engine.policies.config import PPOConfig
from engine.policies.ppo import PPO
from engine.tree import as_tree

BOX = spaces.Box(-1, 1, (3,))
NESTED = spaces.Dict(
    {"x": spaces.Box(-1, 1, (2,)), "pair": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}
)
IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)
ACTIONS = [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2), spaces.Box(-1, 1, (2,))]


def observations(space: Any, *lead: int, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    if isinstance(space, spaces.Dict):
        return {name: observations(part, *lead, seed=seed) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {f"item_{i}": observations(part, *lead, seed=seed) for i, part in enumerate(space.spaces)}
    if isinstance(space, spaces.Discrete):
        return random.integers(0, space.n, lead)
    if isinstance(space, spaces.Box) and space.dtype == np.float32:
        return random.normal(size=(*lead, *space.shape)).astype(np.float32)
    return random.integers(0, 2, (*lead, *space.shape)).astype(space.dtype)


def batch(policy: PPO, rows: int = 64, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    obs = observations(policy.observation_space, rows, seed=seed)
    columns = policy.actor(random).sample(obs)
    numbers = {name: random.normal(size=rows).astype(np.float32) for name in ("advantage", "returns")}
    return {"obs": obs, **columns, **numbers, "value": policy.values(obs)}


def weights(policy: PPO) -> torch.Tensor:
    return nn.utils.parameters_to_vector(policy.model.parameters()).detach()


@pytest.mark.parametrize("observation_space", [BOX, NESTED, IMAGE], ids=["box", "nested", "image"])
@pytest.mark.parametrize("action_space", ACTIONS, ids=str)
def test_the_first_ratio_is_1_on_every_row(observation_space, action_space) -> None:
    policy = PPO(observation_space, action_space, seed=1)
    rows = policy._rows(as_tree(batch(policy)))
    out, _ = policy.model(torch.utils._pytree.tree_map(torch.from_numpy, rows["obs"]))
    parameters = tuple(o.detach().numpy() for o in (out if isinstance(out, tuple) else (out,)))
    log_prob, _, _ = policy.head.evaluate(parameters, rows["action"])
    np.testing.assert_allclose(np.exp(log_prob - rows["log_prob"]), 1.0, atol=1e-6)


@pytest.mark.parametrize("action_space", ACTIONS, ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_a_step_is_that_of_adam_on_the_loss_under_autograd(action_space, shared) -> None:
    config = PPOConfig(
        shared=shared, epochs=1, minibatches=1, entropy_coef=0.02, value_clip=0.1, learning_rate=0.01
    )
    policy = PPO(BOX, action_space, config, seed=1)
    data = batch(policy)
    reference = copy.deepcopy(policy.model)
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.01, eps=config.adam_epsilon)
    rows = {name: torch.as_tensor(column) for name, column in policy._rows(data).items()}
    out, value = reference(rows["obs"])
    law: Any
    if isinstance(action_space, spaces.Box):
        law = torch.distributions.Independent(torch.distributions.Normal(out[0], out[1].exp()), 1)
        log_prob, entropy = law.log_prob(rows["action"]), law.entropy()
    else:
        sizes = [3] if isinstance(action_space, spaces.Discrete) else [2, policy.head.outputs - 2]
        laws = [torch.distributions.Categorical(logits=part) for part in out.split(sizes, 1)]
        choices = rows["action"].reshape(64, -1)
        log_prob = sum(law.log_prob(choices[:, i]) for i, law in enumerate(laws))
        entropy = sum(law.entropy() for law in laws)
    advantage = rows["advantage"]
    loss = ppo_loss(
        log_prob,
        rows["log_prob"],
        (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8),
        value,
        rows["returns"],
        entropy,
        clip=config.clip,
        value_coef=config.value_coef,
        entropy_coef=config.entropy_coef,
        value_clip=config.value_clip,
        old_value=rows["value"],
    )
    loss.total.backward()
    norm = nn.utils.clip_grad_norm_(reference.parameters(), config.max_grad_norm)
    optimizer.step()
    metrics = policy.learn(as_tree(data))
    expected = nn.utils.parameters_to_vector(reference.parameters()).detach()
    torch.testing.assert_close(weights(policy), expected, atol=2e-5, rtol=1e-4)
    assert metrics["train/loss_policy"] == pytest.approx(float(loss.policy.detach()), abs=1e-6)
    assert metrics["train/loss_value"] == pytest.approx(float(loss.value.detach()), rel=1e-5)
    assert metrics["train/entropy"] == pytest.approx(float(loss.entropy.detach()), rel=1e-5)
    assert metrics["train/grad_norm"] == pytest.approx(float(norm), rel=1e-4)


def test_every_row_is_used_once_an_epoch_whatever_the_sizes(monkeypatch) -> None:
    policy = PPO(BOX, spaces.Discrete(2), PPOConfig(epochs=2, minibatches=4))
    seen: list[np.ndarray] = []
    step = policy._step
    monkeypatch.setattr(policy, "_step", lambda columns, rows: (seen.append(rows), step(columns, rows))[1])
    policy.learn(batch(policy, 10))
    assert [len(rows) for rows in seen] == [2, 3, 2, 3] * 2
    for epoch in (seen[:4], seen[4:]):
        assert sorted(np.concatenate(epoch)) == list(range(10))


def test_a_single_row_can_be_learned_from() -> None:
    policy = PPO(BOX, spaces.Discrete(2))
    metrics = policy.learn(batch(policy, 1))
    assert all(np.isfinite(x) for x in metrics.values())
    assert torch.isfinite(weights(policy)).all()


def test_rows_that_are_not_valid_change_nothing() -> None:
    one, two = (PPO(BOX, spaces.Discrete(2), seed=3) for _ in range(2))
    data = batch(one, 32)
    valid = np.arange(32) % 4 != 0
    poisoned = {**data, "valid": valid, "advantage": np.where(valid, data["advantage"], np.float32(np.nan))}
    one.learn(poisoned)
    two.learn({name: column[valid] for name, column in data.items()})
    assert torch.equal(weights(one), weights(two))


def test_time_and_environments_are_flattened_together() -> None:
    one, two = (PPO(BOX, spaces.Box(-1, 1, (2,)), seed=3) for _ in range(2))
    data = batch(one, 32)
    one.learn(data)
    two.learn({name: column.reshape(8, 4, *column.shape[1:]) for name, column in data.items()})
    assert torch.equal(weights(one), weights(two))


def test_no_step_is_taken_from_a_policy_that_moved_too_far() -> None:
    free, kept = PPOConfig(learning_rate=0.05, minibatches=1, epochs=8), 0.01
    policy = PPO(BOX, spaces.Discrete(3), free, seed=1)
    data = batch(policy)
    old = policy._rows(data)["log_prob"]

    def moved(policy: PPO) -> float:
        log_ratio = policy.head.evaluate(policy._forward(data["obs"]), data["action"])[0] - old
        return float((np.exp(log_ratio) - 1 - log_ratio).mean())

    # brute force: how far the policy is after 1, 2, ... steps
    distances = []
    for steps in range(1, 9):
        trial = PPO(
            BOX, spaces.Discrete(3), PPOConfig(learning_rate=0.05, minibatches=1, epochs=steps), seed=1
        )
        trial.learn(data)
        distances.append(moved(trial))
    first_too_far = next(i for i, distance in enumerate(distances) if distance > kept) + 1
    assert 1 <= first_too_far < 8
    limited = PPO(
        BOX,
        spaces.Discrete(3),
        PPOConfig(learning_rate=0.05, minibatches=1, epochs=8, target_kl=kept),
        seed=1,
    )
    metrics = limited.learn(data)
    assert metrics["train/minibatches"] == first_too_far
    assert moved(limited) == pytest.approx(distances[first_too_far - 1], rel=1e-4)


def test_value_clipping_holds_to_the_stored_value_over_all_epochs() -> None:
    options = {"learning_rate": 1e-3, "epochs": 50, "minibatches": 1, "max_grad_norm": 100.0}
    policy = PPO(BOX, spaces.Discrete(2), PPOConfig(value_clip=0.05, **options))
    data = batch(policy) | {"returns": np.full(64, 10.0, np.float32)}
    stored = data["value"].copy()
    policy.learn(data)
    clipped = float((policy.values(data["obs"]) - stored).mean())
    free = PPO(BOX, spaces.Discrete(2), PPOConfig(**options))
    free.learn(data)
    assert 0.05 < clipped < 0.3
    assert float((free.values(data["obs"]) - stored).mean()) > 5 * clipped


def test_evaluate_looks_at_the_true_final_observation() -> None:
    policy = PPO(BOX, spaces.Discrete(2), seed=1)
    steps, envs = 6, 3
    obs, next_obs = observations(BOX, steps, envs, seed=1), observations(BOX, steps, envs, seed=2)
    terminated, truncated = np.zeros((2, steps, envs), bool)
    terminated[1, 0] = truncated[2, 1] = terminated[3, 2] = truncated[3, 2] = terminated[5, 1] = True
    next_obs[:-1] = np.where((terminated | truncated)[:-1, :, None], next_obs[:-1], obs[1:])
    columns = policy.actor(np.random.default_rng(0)).sample(obs.reshape(-1, 3))
    columns = {name: column.reshape(steps, envs, *column.shape[1:]) for name, column in columns.items()}
    flags = {"terminated": terminated, "truncated": truncated}
    found = policy.evaluate({"obs": obs, "next_obs": next_obs, **flags, **columns})
    for t in range(steps):
        for b in range(envs):
            expected = 0.0 if terminated[t, b] else policy.values(next_obs[t, b][None])[0]
            assert found["next_value"][t, b] == pytest.approx(expected, abs=1e-6)
            assert found["value"][t, b] == pytest.approx(policy.values(obs[t, b][None])[0], abs=1e-6)
            law = torch.distributions.Categorical(logits=torch.from_numpy(columns["logits"][t, b]))
            log_prob = law.log_prob(torch.tensor(columns["action"][t, b]))
            assert found["log_prob"][t, b] == pytest.approx(float(log_prob), abs=1e-6)
    assert not truncated[5].any(), "the trajectory's own flags are left alone"


def test_a_constant_reward_drives_the_value_to_its_closed_form() -> None:
    config = PPOConfig(discount=0.8, learning_rate=0.01, epochs=8, minibatches=1)
    policy, steps, envs = PPO(BOX, spaces.Discrete(2), config, seed=1), 32, 4
    actor, flags = policy.actor(np.random.default_rng(0)), np.zeros((steps, envs), bool)
    reward = np.full((steps, envs), 2.0, np.float32)
    for iteration in range(60):
        obs = observations(BOX, steps + 1, envs, seed=iteration)
        columns = actor.sample(obs[:-1].reshape(-1, 3))
        columns = {name: column.reshape(steps, envs, *column.shape[1:]) for name, column in columns.items()}
        trajectory = {
            "obs": obs[:-1],
            "next_obs": obs[1:],
            "terminated": flags,
            "truncated": flags,
            **columns,
        }
        found = policy.evaluate(trajectory)
        advantage = gae(reward, found["value"], found["next_value"], flags, flags, config.discount, 0.9)
        policy.learn({**trajectory, **found, "advantage": advantage, "returns": advantage + found["value"]})
        actor.load(policy)
    assert float(policy.values(observations(BOX, 200, seed=99)).mean()) == pytest.approx(
        2.0 / (1 - 0.8), rel=0.03
    )


def test_a_rewarded_action_becomes_likely() -> None:
    policy = PPO(BOX, spaces.Discrete(3), PPOConfig(learning_rate=0.01), seed=1)
    for seed in range(10):
        data = batch(policy, 128, seed)
        policy.learn({**data, "advantage": (data["action"] == 2).astype(np.float32)})
    assert (policy.act(observations(BOX, 50), deterministic=True) == 2).all()


def test_the_same_seed_gives_the_same_parameters_bit_for_bit() -> None:
    def trained(seed: int) -> torch.Tensor:
        torch.manual_seed(np.random.default_rng().integers(1000))  # must not matter
        policy = PPO(BOX, spaces.Discrete(2), seed=seed)
        for i in range(3):
            policy.learn(batch(policy, 64, i))
        return weights(policy)

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


def test_building_a_policy_leaves_torchs_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    PPO(BOX, spaces.Discrete(2))
    assert torch.equal(torch.rand(3), expected)


def test_a_saved_state_goes_on_exactly() -> None:
    one = PPO(NESTED, spaces.Box(-1, 1, (2,)), seed=1)
    actor = one.actor(np.random.default_rng(4))
    one.learn(batch(one))
    one.learning_rate = 0.02
    actor.load(one)
    obs = observations(NESTED, 5)
    actor.sample(obs), one.act(obs)
    file = io.BytesIO()
    torch.save({"policy": one.state_dict(), "actor": actor.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    two = PPO(NESTED, spaces.Box(-1, 1, (2,)), seed=77)
    other = two.actor(np.random.default_rng(78))
    two.load_state_dict(state["policy"])
    other.load_state_dict(state["actor"])
    data = batch(one)
    for policy in (one, two):
        policy.learn(data)
    assert (two.version, two.learning_rate) == (2, 0.02)
    assert torch.equal(weights(one), weights(two))
    np.testing.assert_array_equal(one.act(obs), two.act(obs))
    for _ in range(3):
        np.testing.assert_array_equal(actor.sample(obs)["action"], other.sample(obs)["action"])


def test_a_state_dict_is_a_snapshot() -> None:
    policy = PPO(BOX, spaces.Discrete(2))
    state = policy.state_dict()
    before = {name: tensor.clone() for name, tensor in state["model"].items()}
    policy.learn(batch(policy))
    assert all(torch.equal(state["model"][name], before[name]) for name in before)
    assert not state["optimizer"]["mean"].any()


def test_a_state_of_another_net_is_refused_before_anything_changes() -> None:
    policy = PPO(BOX, spaces.Discrete(2))
    before = weights(policy).clone()
    with pytest.raises(StateError, match=r"actor\.layers\.0\.weight is \(32, 3\) there and \(64, 3\) here"):
        policy.load_state_dict(PPO(BOX, spaces.Discrete(2), PPOConfig(hidden=(32, 64))).state_dict())
    assert torch.equal(weights(policy), before)


def test_an_actor_changes_only_when_it_loads() -> None:
    policy = PPO(BOX, spaces.Discrete(2), PPOConfig(learning_rate=0.1), seed=1)
    actor, obs = policy.actor(np.random.default_rng(0)), observations(BOX, 8)
    before = actor.sample(obs)["logits"]
    policy.learn(batch(policy))
    np.testing.assert_array_equal(actor.sample(obs)["logits"], before)
    actor.load(policy)
    assert actor.version == policy.version == 1
    np.testing.assert_allclose(actor.sample(obs)["logits"], policy._forward(obs)[0], rtol=1e-6)


def test_deterministic_acting_draws_no_numbers() -> None:
    policy = PPO(BOX, spaces.Discrete(2))
    actor = policy.actor(np.random.default_rng(0))
    before = policy.state_dict()["generators"], actor.state_dict()["noise"]
    policy.act(np.zeros(3), deterministic=True), actor.act(observations(BOX, 4))
    assert before == (policy.state_dict()["generators"], actor.state_dict()["noise"])


def test_act_gives_what_the_environment_takes() -> None:
    for action_space in [
        spaces.Discrete(3, start=5),
        *ACTIONS[1:],
        spaces.Box(-0.01, 0.01, (2,), np.float64),
    ]:
        policy = PPO(NESTED, action_space)
        single = {"x": np.zeros(2), "pair": (1, np.array([0, 1]))}
        action = policy.act(single)
        assert action_space.contains(action), f"{action!r} not in {action_space}"
        many = policy.act(observations(NESTED, 6))
        assert len(many) == 6
        assert all(action_space.contains(row) for row in many)
    assert isinstance(PPO(BOX, spaces.Discrete(2)).act(np.zeros(3)), int)


class Own(nn.Module):
    """A model of somebody's own, with dropout while it learns."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.5))
        self.actor, self.critic = nn.Linear(16, outputs), nn.Linear(16, 1)

    def policy(self, obs):
        return self.actor(self.body(obs))

    def value(self, obs):
        return self.critic(self.body(obs)).squeeze(-1)

    def forward(self, obs):
        return self.policy(obs), self.value(obs)


def test_a_model_of_ones_own_learns_and_acts() -> None:
    model = Own()
    policy = PPO(BOX, spaces.Discrete(2), model=model)
    before = weights(policy).clone()
    policy.learn(batch(policy))
    assert policy.model is model
    assert not torch.equal(weights(policy), before)
    # no dropout while acting
    obs = observations(BOX, 9)
    np.testing.assert_array_equal(policy.values(obs), policy.values(obs))


def test_a_model_with_wrong_outputs_is_refused_when_it_is_given() -> None:
    with pytest.raises(ConfigError, match=r"shapes \[\(2, 7\)\].*expected \[\(2, 2\)\]"):
        PPO(BOX, spaces.Discrete(2), model=Own(7))
    with pytest.raises(ConfigError, match=r"Linear has no method policy"):
        PPO(BOX, spaces.Discrete(2), model=nn.Linear(3, 2))


def test_progress_sets_the_learning_rate() -> None:
    policy = PPO(BOX, spaces.Discrete(2), PPOConfig(learning_rate=0.1, learning_rate_decay="linear"))
    policy.set_progress(0.75)
    assert policy.learn(batch(policy))["train/learning_rate"] == pytest.approx(0.025)


def test_explained_variance_is_1_for_a_perfect_critic() -> None:
    policy = PPO(BOX, spaces.Discrete(2))
    data = batch(policy)
    assert policy.learn({**data, "returns": data["value"]})["train/explained_variance"] == pytest.approx(1.0)
    assert policy.learn({**data, "returns": np.ones(64, np.float32)})["train/explained_variance"] == 0.0
