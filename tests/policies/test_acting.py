"""Heads, noise and the conversions around acting."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces

from engine.errors import ConfigError, EngineError, EnvError
from engine.policies.config import PPOConfig
from engine.policies.device import choose_device
from engine.policies.heads import Categorical, Gaussian, MultiCategorical, head_for
from engine.policies.noise import Noise, gumbel, normal, uniform
from engine.policies.ppo import PPO
from engine.policies.spaces import describe, env_action, rebuild, to_arrays


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_gumbel_noise_samples_the_softmax() -> None:
    logits = np.array([0.0, 1.0, -1.0, 2.0], np.float32)
    noise = gumbel(generator(), (200_000, 4))
    action = Categorical(4).sample((np.tile(logits, (200_000, 1)),), noise)["action"]
    expected = np.exp(logits) / np.exp(logits).sum()
    # 5 standard errors of a share of 200 000 draws
    np.testing.assert_allclose(np.bincount(action) / 200_000, expected, atol=5 * 0.5 / 200_000**0.5)


def test_gumbel_noise_is_finite_where_an_exponential_draw_is_0() -> None:
    class Zeros:
        def standard_exponential(self, shape, dtype):
            return np.zeros(shape, dtype)

    assert np.isfinite(gumbel(Zeros(), (3,))).all()


@pytest.mark.parametrize(
    ("space", "parameters"),
    [
        (spaces.Discrete(3), (np.random.default_rng(1).normal(size=(6, 3)),)),
        (spaces.MultiDiscrete([2, 3]), (np.random.default_rng(1).normal(size=(6, 5)),)),
        (spaces.MultiBinary(2), (np.random.default_rng(1).normal(size=(6, 4)),)),
        (spaces.Box(-1, 1, (2,)), tuple(np.random.default_rng(1).normal(size=(2, 6, 2)))),
        (spaces.Box(-1, 1, (2, 1)), tuple(np.random.default_rng(1).normal(size=(2, 6, 2)))),
    ],
    ids=str,
)
def test_recorded_log_prob_is_the_one_that_learning_finds(space, parameters) -> None:
    head = head_for(space)
    columns = head.sample(parameters, head.draw(generator(), (6, head.outputs)))
    assert columns["action"].shape == (6, *space.shape)
    log_prob, entropy, _ = head.evaluate(parameters, columns["action"])
    np.testing.assert_allclose(head.recorded_log_prob(columns), log_prob, rtol=1e-9)
    assert entropy.shape == (6,)


def test_multi_discrete_is_the_product_of_its_parts() -> None:
    head, random = MultiCategorical([2, 3]), generator(2)
    logits, action = (
        torch.from_numpy(random.normal(size=(5, 5))).requires_grad_(),
        random.integers(0, 2, (5, 2)),
    )
    laws = [torch.distributions.Categorical(logits=part) for part in (logits[:, :2], logits[:, 2:])]
    expected = sum(law.log_prob(torch.from_numpy(action[:, i])) for i, law in enumerate(laws))
    spread = sum(law.entropy() for law in laws)
    (expected.sum() - 0.3 * spread.sum()).backward()
    log_prob, entropy, pull_back = head.evaluate((logits.detach().numpy(),), action)
    np.testing.assert_allclose(log_prob, expected.detach())
    np.testing.assert_allclose(entropy, spread.detach())
    np.testing.assert_allclose(pull_back(np.ones(5), -0.3)[0], logits.grad, atol=1e-12)


def test_the_raw_action_is_recorded_and_the_clipped_one_steps() -> None:
    space = spaces.Box(np.float32(-0.1), np.float32(0.2), (1,))
    columns = Gaussian((1,)).sample(
        (np.full((1, 1), 3.0, np.float32), np.zeros(1, np.float32)), np.ones((1, 1))
    )
    assert columns["action"].tolist() == [[4.0]]
    assert env_action(columns["action"], space).tolist() == [[pytest.approx(0.2)]]


def test_an_action_space_without_a_head_is_named() -> None:
    with pytest.raises(EnvError, match="Text"):
        head_for(spaces.Text(3))


@pytest.mark.parametrize("draw", [gumbel, normal, uniform])
def test_noise_is_the_generators_own_stream(draw) -> None:
    noise = Noise(generator(5), draw, 2)
    expected = draw(generator(5), (128, 3, 2))
    np.testing.assert_array_equal([noise(3) for _ in range(128)], expected)


@pytest.mark.parametrize("before", [0, 1, 127, 128, 200])
def test_noise_goes_on_after_a_resume(before) -> None:
    first = Noise(generator(5), gumbel, 2)
    for _ in range(before):
        first(3)
    second = Noise(generator(99), gumbel, 2)
    second.load_state_dict(first.state_dict())
    for rows in [3] * 150 + [1, 3]:
        np.testing.assert_array_equal(first(rows), second(rows))


NESTED = spaces.Dict(
    {"a": spaces.Box(-1, 1, (2,)), "b": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}
)


def test_a_nested_observation_becomes_a_batch_of_one() -> None:
    arrays, single = to_arrays({"a": [0.5, 1], "b": (2, [0, 1])}, NESTED)
    assert single
    assert arrays["a"].tolist() == [[0.5, 1.0]]
    assert arrays["b"]["item_0"].tolist() == [2]
    assert arrays["b"]["item_1"].tolist() == [[0, 1]]


def test_a_batch_of_nested_observations_is_recognised() -> None:
    obs = {"a": np.zeros((4, 2)), "b": {"item_0": np.zeros(4), "item_1": np.zeros((4, 2))}}
    arrays, single = to_arrays(obs, NESTED)
    assert not single
    assert arrays["b"]["item_0"].shape == (4,)


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        ({"a": np.zeros(3), "b": (0, np.zeros(2))}, r"obs\.a has shape \(3,\); expected \(2,\)"),
        ({"a": np.zeros(2)}, r"obs should hold \['a', 'b'\], not \['a'\]"),
        ({"a": np.zeros((4, 2)), "b": (0, np.zeros(2))}, "single observations and some are batches"),
    ],
)
def test_a_wrong_observation_is_named(obs, words) -> None:
    with pytest.raises(ValueError, match=words):
        to_arrays(obs, NESTED)


SPACES = [
    NESTED,
    spaces.Box(np.array([-np.inf, -2.5]), np.array([3.0, np.inf]), dtype=np.float64),
    spaces.Box(-np.inf, np.inf, (3, 2)),
    spaces.Box(0, 255, (8, 8, 3), np.uint8),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([2, 3], start=[1, 1]),
    spaces.MultiBinary([2, 3]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_survive_json(space) -> None:
    again = rebuild(json.loads(json.dumps(describe(space), allow_nan=False)))
    assert again == space
    assert again.dtype == space.dtype


def test_an_absent_cuda_is_a_clear_error(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match="finds 0 CUDA devices"):
        choose_device("cuda")
    with pytest.raises(ConfigError, match="unknown device 'gpu'"):
        choose_device("gpu")


def test_observation_keys_that_a_batch_cannot_hold_are_refused_while_building() -> None:
    space = spaces.Dict({"inner": spaces.Dict({"values": spaces.Box(-1, 1, (2,))})})
    with pytest.raises(EnvError, match="'values'"):
        PPO(space, spaces.Discrete(2))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_observations_that_are_not_finite_in_float32_are_refused(value: float) -> None:
    space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    policy = PPO(space, spaces.Discrete(2), PPOConfig(hidden=(8,)), seed=0)
    for obs in (np.array([0.0, value, 0.0]), [[0.0, 0.0, 0.0], [0.0, 0.0, value]]):
        for deterministic in (True, False):
            with pytest.raises(ValueError, match=r"obs holds .*finite numbers of float32") as raised:
                policy.act(obs, deterministic=deterministic)
            assert isinstance(raised.value, EngineError)
    assert policy.act(np.zeros(3)) in (0, 1)


def test_a_part_that_is_not_finite_is_named() -> None:
    space = spaces.Dict({"a": spaces.Box(-1.0, 1.0, (1,), np.float64), "b": spaces.Discrete(3)})
    with pytest.raises(ValueError, match=r"obs\.a holds nan"):
        to_arrays({"a": [np.nan], "b": 1}, space)
    with pytest.raises(ValueError, match=r"obs\.b holds nan"):
        to_arrays({"a": [0.5], "b": np.nan}, space)
