"""V-trace against the sum formula of its paper, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UsageError
from engine.ops.returns import gae, td_lambda, vtrace

GAMMA = 0.97
NAMES = ("log_ratio", "reward", "value", "next_value", "terminated", "truncated")


def batch(T: int, B: int, seed: int = 0, ends: float = 0.15) -> dict[str, np.ndarray]:
    """Random columns (T, B); values agree inside an episode."""
    random = np.random.default_rng(seed)
    reward, value, final = random.normal(size=(3, T, B))
    terminated, truncated = random.random((2, T, B)) < ends
    next_value = np.concatenate([value[1:], final[-1:]])
    next_value = np.where(terminated | truncated, final, next_value)
    log_ratio = random.normal(size=(T, B))
    return dict(zip(NAMES, (log_ratio, reward, value, next_value, terminated, truncated), strict=True))


def brute(
    data: dict[str, np.ndarray], lambda_: float, rho_clip: float, c_clip: float
) -> tuple[np.ndarray, np.ndarray]:
    """Equation 1 and the policy gradient of section 4.2, summed over an episode for every row anew."""
    ratio = np.exp(data["log_ratio"])
    ended = data["terminated"] | data["truncated"]
    steps, envs = ratio.shape

    def following(t: int, b: int) -> float:
        return 0.0 if data["terminated"][t, b] else float(data["next_value"][t, b])

    def target(s: int, b: int) -> float:
        total = data["value"][s, b]
        for t in range(s, steps):
            product = np.prod([lambda_ * min(c_clip, ratio[i, b]) for i in range(s, t)])
            delta = min(rho_clip, ratio[t, b]) * (
                data["reward"][t, b] + GAMMA * following(t, b) - data["value"][t, b]
            )
            total += GAMMA ** (t - s) * product * delta
            if ended[t, b]:
                break
        return float(total)

    targets, advantages = np.zeros((2, steps, envs))
    for s in range(steps):
        for b in range(envs):
            targets[s, b] = target(s, b)
            goes_on = s + 1 < steps and not ended[s, b]
            then = target(s + 1, b) if goes_on else following(s, b)
            advantages[s, b] = min(rho_clip, ratio[s, b]) * (
                data["reward"][s, b] + GAMMA * then - data["value"][s, b]
            )
    return targets, advantages


@given(
    st.integers(1, 30),
    st.integers(1, 3),
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.1, 0.6]),
    st.sampled_from([(1.0, 1.0, 1.0), (0.9, 2.0, 0.7), (0.0, 1.0, 1.0), (1.0, 0.5, 3.0)]),
)
@settings(max_examples=30, deadline=None)
def test_targets_and_advantages_are_those_of_the_paper(
    T: int, B: int, seed: int, ends: float, options: tuple[float, float, float]
) -> None:
    data = batch(T, B, seed, ends)
    lambda_, rho_clip, c_clip = options
    expected = brute(data, *options)
    found = vtrace(**data, discount=GAMMA, lambda_=lambda_, rho_clip=rho_clip, c_clip=c_clip)
    np.testing.assert_allclose(found.target, expected[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.advantage, expected[1], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.rho, np.minimum(rho_clip, np.exp(data["log_ratio"])), rtol=1e-12)


@pytest.mark.parametrize("options", [(1.0, 1.0, 1.0), (0.9, 2.0, 0.7)], ids=["clipped alike", "apart"])
@pytest.mark.parametrize("masked", [False, True])
def test_every_library_gives_the_same(options: tuple[float, float, float], masked: bool, convert) -> None:
    data = batch(17, 3)
    expected = brute(data, *options)
    lambda_, rho_clip, c_clip = options
    arrays = {name: convert(column) for name, column in data.items()}
    valid = {"valid": convert(np.ones((17, 3), bool))} if masked else {}
    found = vtrace(**arrays, discount=GAMMA, lambda_=lambda_, rho_clip=rho_clip, c_clip=c_clip, **valid)
    np.testing.assert_allclose(np.asarray(found.target), expected[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.asarray(found.advantage), expected[1], rtol=1e-9, atol=1e-9)


def test_none_clips_nothing() -> None:
    data = batch(12, 2)
    found = vtrace(**data, discount=GAMMA, rho_clip=None, c_clip=None)
    expected = brute(data, 1.0, np.inf, np.inf)
    np.testing.assert_allclose(found.target, expected[0], rtol=1e-9)
    np.testing.assert_allclose(found.advantage, expected[1], rtol=1e-9)


def test_on_policy_data_gives_lambda_returns_and_their_advantages() -> None:
    data = batch(40, 3)
    data["log_ratio"] = np.zeros((40, 3))
    found = vtrace(**data, discount=GAMMA, lambda_=0.9)
    rest = [data[name] for name in ("next_value", "terminated", "truncated")]
    np.testing.assert_allclose(found.target, td_lambda(data["reward"], *rest, GAMMA, 0.9), rtol=1e-9)
    monte_carlo = vtrace(**data, discount=GAMMA)
    expected = gae(data["reward"], data["value"], *rest, GAMMA, 1.0)
    np.testing.assert_allclose(monte_carlo.target - data["value"], expected, atol=1e-9)
    np.testing.assert_allclose(monte_carlo.advantage, expected, atol=1e-9)


def test_a_truncated_row_bootstraps_from_its_final_observation_and_a_terminated_one_from_nothing() -> None:
    row: dict[str, Any] = {
        "log_ratio": np.zeros((2, 3)),
        "reward": np.ones((2, 3)),
        "value": np.zeros((2, 3)),
        "next_value": np.full((2, 3), 10.0),
        "terminated": np.array([[True, False, True], [False] * 3]),
        "truncated": np.array([[False, True, True], [False] * 3]),
    }
    found = vtrace(**row, discount=0.5)
    np.testing.assert_allclose(found.target, [[1.0, 6.0, 1.0], [6.0, 6.0, 6.0]])
    np.testing.assert_allclose(found.advantage, found.target)


def test_an_inner_truncation_equals_separately_computed_pieces() -> None:
    data = batch(20, 2, ends=0.0)
    data["truncated"][7] = True
    whole = vtrace(**data, discount=GAMMA)
    for piece in (slice(0, 8), slice(8, 20)):
        found = vtrace(**{name: column[piece] for name, column in data.items()}, discount=GAMMA)
        for mine, theirs in zip(whole, found, strict=True):
            np.testing.assert_allclose(mine[piece], theirs, rtol=1e-9)


def test_rows_that_are_no_transitions_reach_no_other_row_and_teach_nothing() -> None:
    data = batch(12, 1, ends=0.0)
    data["terminated"][5] = True
    valid = np.ones((12, 1), bool)
    valid[6] = False
    without = {name: np.delete(column, 6, axis=0) for name, column in data.items()}
    data["reward"][6], data["value"][6] = 1e6, -1e6
    found = vtrace(**data, discount=GAMMA, valid=valid)
    expected = vtrace(**without, discount=GAMMA)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.delete(mine, 6, axis=0), theirs, rtol=1e-9)
    assert (found.advantage[6], found.rho[6]) == (0.0, 0.0)


def test_ratios_too_large_for_the_exponential_are_clipped_without_a_warning() -> None:
    data = {
        name: column.astype(np.float32) if name != "terminated" else column
        for name, column in batch(4, 1).items()
    }
    data["truncated"] = data["truncated"].astype(bool)
    data["log_ratio"][:] = 500.0
    found = vtrace(**data, discount=GAMMA)
    assert np.isfinite(found.target).all()
    assert found.target.dtype == found.advantage.dtype == np.float32
    assert (found.rho == 1.0).all()


@pytest.mark.parametrize("name", ["rho_clip", "c_clip"])
def test_a_clip_that_is_not_above_0_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is 0.0, expected above 0"):
        vtrace(**batch(2, 1), discount=GAMMA, **{name: 0.0})
    with pytest.raises(UsageError, match="arrays of one shape"):
        vtrace(**batch(2, 1) | {"reward": np.zeros((2, 2))}, discount=GAMMA)
