"""Advantages and returns against double loops that follow the definitions."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UsageError
from engine.ops import returns
from engine.ops.returns import discounted_returns, gae, linear_recurrence, n_step_returns, td_lambda

GAMMA, LAMBDA = 0.97, 0.9


def batch(T: int, B: int, seed: int = 0, ends: float = 0.15) -> tuple[np.ndarray, ...]:
    """Random reward, value, next_value, terminated, truncated; values agree inside an episode."""
    random = np.random.default_rng(seed)
    reward, value, final = random.normal(size=(3, T, B))
    terminated, truncated = random.random((2, T, B)) < ends
    next_value = np.concatenate([value[1:], final[-1:]])
    next_value = np.where(terminated | truncated, final, next_value)
    return reward, value, next_value, terminated, truncated


def brute_return(
    t: int, b: int, reward: Any, next_value: Any, terminated: Any, truncated: Any, n: int
) -> float:
    """The n-step return of one row, summed forward along its episode."""
    total, weight = 0.0, 1.0
    for k in range(t, len(reward)):
        total += weight * reward[k, b]
        weight *= GAMMA
        if terminated[k, b]:
            return total
        if truncated[k, b] or k == len(reward) - 1 or k - t + 1 == n:
            return total + weight * next_value[k, b]
    raise AssertionError


def brute(function: Any, T: int, B: int) -> np.ndarray:
    return np.array([[function(t, b) for b in range(B)] for t in range(T)])


def brute_gae(reward: Any, value: Any, next_value: Any, terminated: Any, truncated: Any) -> np.ndarray:
    """Sum of (gamma lambda)^l delta[t+l] to the end of the episode, row by row."""

    def advantage(t: int, b: int) -> float:
        total, weight = 0.0, 1.0
        for k in range(t, len(reward)):
            bootstrap = 0.0 if terminated[k, b] else next_value[k, b]
            total += weight * (reward[k, b] + GAMMA * bootstrap - value[k, b])
            weight *= GAMMA * LAMBDA
            if terminated[k, b] or truncated[k, b]:
                break
        return total

    return brute(advantage, *reward.shape)


SHAPES = [(1, 1), (2, 3), (3, 1), (7, 2), (64, 4), (65, 3), (301, 70), (5, 2100)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_recurrence_matches_a_loop_in_every_way_of_summing(shape: tuple[int, int], convert) -> None:
    random = np.random.default_rng(0)
    x, a = random.normal(size=(2, *shape))
    last = random.normal(size=shape[1:])
    y = np.zeros((shape[0] + 1, *shape[1:]))
    y[-1] = last
    for t in reversed(range(shape[0])):
        y[t] = x[t] + a[t] * y[t + 1]
    found = linear_recurrence(*(convert(array) for array in (x, a, last)))
    np.testing.assert_allclose(np.asarray(found), y[:-1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("way", [returns._loop, returns._doubling, returns._halving])
@pytest.mark.parametrize("steps", [2, 3, 8, 13])
def test_every_way_of_summing_gives_the_same(way: Any, steps: int) -> None:
    x, a = np.random.default_rng(1).normal(size=(2, steps, 2))
    expected = [x[-1]]
    for t in reversed(range(steps - 1)):
        expected.insert(0, x[t] + a[t] * expected[0])
    np.testing.assert_allclose(way(np_namespace(), x, a), expected, rtol=1e-12)


def np_namespace() -> Any:
    from engine.ops.arrays import namespace

    return namespace(np.zeros(1))


def test_the_recurrence_takes_rows_without_and_with_more_dimensions() -> None:
    x = np.array([1.0, 2.0, 4.0])
    a = np.array([0.5, 0.5, 0.5])
    np.testing.assert_allclose(linear_recurrence(x, a, np.array(2.0)), [3.25, 4.5, 5.0])
    deep = np.ones((3, 2, 2))
    np.testing.assert_allclose(linear_recurrence(deep, deep)[:, 1, 1], [3, 2, 1])


def test_inputs_are_left_as_they_were() -> None:
    arrays = batch(20, 3)
    copies = [array.copy() for array in arrays]
    gae(*arrays, GAMMA, LAMBDA)
    assert all(np.array_equal(array, copy) for array, copy in zip(arrays, copies, strict=True))


@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 1000), st.sampled_from([0.0, 0.1, 0.6]))
@settings(max_examples=40, deadline=None)
def test_gae_matches_the_definition(T: int, B: int, seed: int, ends: float) -> None:
    arrays = batch(T, B, seed, ends)
    np.testing.assert_allclose(gae(*arrays, GAMMA, LAMBDA), brute_gae(*arrays), rtol=1e-9, atol=1e-9)


@given(st.integers(1, 25), st.integers(1, 3), st.integers(0, 1000), st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_n_step_returns_match_the_definition(T: int, B: int, seed: int, n: int) -> None:
    reward, _, next_value, terminated, truncated = batch(T, B, seed)
    expected = brute(lambda t, b: brute_return(t, b, reward, next_value, terminated, truncated, n), T, B)
    found = n_step_returns(reward, next_value, terminated, truncated, GAMMA, n)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(1, 1), (30, 3)])
def test_discounted_returns_match_the_definition(shape: tuple[int, int]) -> None:
    reward, _, next_value, terminated, truncated = batch(*shape)
    ends = (terminated, truncated)
    expected = brute(lambda t, b: brute_return(t, b, reward, next_value, *ends, 999), *shape)
    np.testing.assert_allclose(discounted_returns(reward, *ends, GAMMA, next_value), expected)
    nothing = np.zeros(shape)
    expected = brute(lambda t, b: brute_return(t, b, reward, nothing, *ends, 999), *shape)
    np.testing.assert_allclose(discounted_returns(reward, *ends, GAMMA), expected)


def test_lambda_returns_are_the_weighted_mean_of_n_step_returns() -> None:
    reward, _, next_value, terminated, truncated = batch(12, 3, seed=5)
    # Past the end of an episode the n-step return stays the same, so a long sum stands for all of it.
    expected = sum(
        (1 - LAMBDA) * LAMBDA ** (n - 1) * n_step_returns(reward, next_value, terminated, truncated, GAMMA, n)
        for n in range(1, 400)
    )
    np.testing.assert_allclose(td_lambda(reward, next_value, terminated, truncated, GAMMA, LAMBDA), expected)


def test_gae_plus_value_is_the_lambda_return() -> None:
    reward, value, next_value, terminated, truncated = batch(50, 4)
    found = gae(reward, value, next_value, terminated, truncated, GAMMA, LAMBDA) + value
    np.testing.assert_allclose(found, td_lambda(reward, next_value, terminated, truncated, GAMMA, LAMBDA))


def test_gae_with_lambda_one_is_monte_carlo_minus_value() -> None:
    reward, value, next_value, terminated, truncated = batch(40, 3)
    ends = (terminated, truncated)
    monte_carlo = brute(lambda t, b: brute_return(t, b, reward, next_value, *ends, 999), 40, 3)
    np.testing.assert_allclose(gae(reward, value, next_value, *ends, GAMMA, 1.0), monte_carlo - value)


def test_a_batch_with_an_inner_truncation_equals_its_pieces() -> None:
    arrays = batch(20, 2, ends=0.0)
    arrays[4][7] = True
    whole = gae(*arrays, GAMMA, LAMBDA)
    pieces = [gae(*(array[part] for array in arrays), GAMMA, LAMBDA) for part in (slice(8), slice(8, None))]
    np.testing.assert_allclose(whole, np.concatenate(pieces))


def test_where_both_flags_are_set_termination_wins() -> None:
    one = np.ones((1, 1))
    yes, no = one > 0, one < 0
    both = gae(one, 0 * one, 100 * one, yes, yes, GAMMA, LAMBDA)
    assert both == gae(one, 0 * one, 100 * one, yes, no, GAMMA, LAMBDA) == 1.0
    assert td_lambda(one, 100 * one, yes, yes, GAMMA, LAMBDA) == 1.0
    assert n_step_returns(one, 100 * one, yes, yes, GAMMA, 3) == 1.0


def test_the_value_behind_a_termination_is_never_read() -> None:
    reward, value, next_value, terminated, truncated = batch(10, 2, ends=0.4)
    next_value[terminated] = np.nan
    assert np.isfinite(gae(reward, value, next_value, terminated, truncated, GAMMA, LAMBDA)).all()


def test_dummy_rows_reach_no_real_row() -> None:
    arrays = batch(12, 1, ends=0.0)
    arrays[3][4] = True
    for piece, number in zip(arrays[:3], (1e6, 1e6, 1e6), strict=True):
        piece[5] = number  # what stands behind the end is no transition
    found = gae(*arrays, GAMMA, LAMBDA)
    real = np.arange(12) != 5
    np.testing.assert_allclose(found[real], gae(*(array[real] for array in arrays), GAMMA, LAMBDA))


def test_with_a_mask_dummy_rows_get_no_advantage_whatever_they_hold() -> None:
    arrays = batch(12, 1, ends=0.0)
    arrays[3][4] = True
    arrays[0][5] = np.nan
    valid = np.arange(12)[:, None] != 5
    found = gae(*arrays, GAMMA, LAMBDA, valid=valid)
    assert found[5] == 0
    np.testing.assert_allclose(found[valid], gae(*(a[valid][:, None] for a in arrays), GAMMA, LAMBDA)[:, 0])


@pytest.mark.parametrize("shape", [(5, 3), (130, 8), (700, 40)])
def test_every_library_gives_the_same_in_float32(shape: tuple[int, int], convert) -> None:
    arrays = [array.astype(np.float32) if array.dtype != bool else array for array in batch(*shape)]
    found = np.asarray(gae(*(convert(array) for array in arrays), GAMMA, LAMBDA))
    expected = gae(*arrays, GAMMA, LAMBDA)
    assert expected.dtype == found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


RETURNS = {
    "gae": lambda r, v, n, *ends: gae(r, v, n, *ends, GAMMA, LAMBDA),
    "gae of valid rows": lambda r, v, n, *ends: gae(r, v, n, *ends, GAMMA, LAMBDA, valid=v > 0),
    "td_lambda": lambda r, v, n, *ends: td_lambda(r, n, *ends, GAMMA, LAMBDA),
    "discounted_returns": lambda r, v, n, *ends: discounted_returns(r, *ends, GAMMA, n),
    "discounted_returns of rewards alone": lambda r, v, n, *ends: discounted_returns(r, *ends, GAMMA),
    "n_step_returns": lambda r, v, n, *ends: n_step_returns(r, n, *ends, GAMMA, 3),
    "n_step_returns of more steps than there are": lambda r, v, n, *ends: n_step_returns(
        r, n, *ends, GAMMA, 99
    ),
}


@pytest.mark.parametrize("name", RETURNS)
@pytest.mark.parametrize("shape", [(1, 3), (33, 2), (10, 2, 3)], ids=str)
def test_every_library_gives_the_same(name: str, shape: tuple[int, ...], convert) -> None:
    columns = batch(shape[0], int(np.prod(shape[1:])))
    arrays = [array.reshape(shape) for array in columns]
    found = RETURNS[name](*(convert(array) for array in arrays))
    np.testing.assert_allclose(np.asarray(found), RETURNS[name](*arrays), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(40, 2), (300, 70), (4, 2100)])
def test_gradients_flow_through_every_way_of_summing(shape: tuple[int, int]) -> None:
    reward, value, next_value, terminated, truncated = (torch.from_numpy(array) for array in batch(*shape))
    reward.requires_grad_()
    gae(reward, value, next_value, terminated, truncated, GAMMA, LAMBDA)[0].sum().backward()
    ended = (terminated | truncated).numpy()
    expected, weight = np.zeros(shape), np.ones(shape[1])
    for t in range(shape[0]):
        expected[t] = weight
        weight = weight * GAMMA * LAMBDA * ~ended[t]
    assert reward.grad is not None
    np.testing.assert_allclose(reward.grad, expected, atol=1e-12)


def test_shapes_that_would_broadcast_are_refused() -> None:
    reward, value, next_value, terminated, truncated = batch(4, 2)
    with pytest.raises(UsageError, match=r"value \(4, 2, 1\)"):
        gae(reward, value[..., None], next_value, terminated, truncated, GAMMA, LAMBDA)


def test_less_than_one_step_is_refused() -> None:
    reward, _, next_value, terminated, truncated = batch(4, 2)
    with pytest.raises(UsageError, match="n is 0"):
        n_step_returns(reward, next_value, terminated, truncated, GAMMA, 0)


def test_gae_is_not_slower_than_a_loop_over_time() -> None:
    arrays = [array.astype(np.float32) if array.dtype != bool else array for array in batch(2048, 8)]

    def loop() -> None:
        out, carry = np.empty((2048, 8), np.float32), np.zeros(8, np.float32)
        reward, value, next_value, terminated, truncated = arrays
        for t in reversed(range(2048)):
            delta = reward[t] + GAMMA * next_value[t] * ~terminated[t] - value[t]
            carry = delta + GAMMA * LAMBDA * ~(terminated[t] | truncated[t]) * carry
            out[t] = carry

    def seconds(function: Any) -> float:
        best = 1e9
        for _ in range(5):
            start = time.perf_counter()
            function()
            best = min(best, time.perf_counter() - start)
        return best

    # The real distance is above twenty times; a fifth leaves room for a busy machine.
    assert seconds(lambda: gae(*arrays, GAMMA, LAMBDA)) < seconds(loop) / 5
