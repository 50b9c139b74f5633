"""The tree of sums against running sums of the plain numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.data.sum_tree import SumTree
from engine.errors import UsageError

# below, at and above what one node and what the top hold, and three levels
SIZES = [1, 2, 31, 32, 33, 1024, 32_768, 32_769, 40_000, 1_100_000]


@given(st.sampled_from(SIZES), st.integers(0, 10_000), st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_what_is_found_is_where_the_running_sum_passes(size: int, seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    numbers = np.zeros(size)
    tree = SumTree(size)
    for _ in range(4):
        index = random.integers(0, size, count)
        values = np.round(random.exponential(size=count), 3) * (random.random(count) < 0.8)
        tree.set(index, values)
        for i, value in zip(index, values, strict=True):
            numbers[i] = value
    np.testing.assert_array_equal(tree.values, numbers)
    if not numbers.any():
        return
    assert tree.total == pytest.approx(numbers.sum())
    shares = np.concatenate([random.random(count), [0.0, np.nextafter(1, 0)]])
    found = tree.find(shares)
    assert (numbers[found] > 0).all()
    upper = np.cumsum(numbers)
    target = shares * upper[-1]
    slack = 1e-9 * upper[-1]  # sums in another order round otherwise
    assert (target <= upper[found] + slack).all()
    assert (target >= (upper - numbers)[found] - slack).all()


@pytest.mark.parametrize("size", SIZES)
def test_every_number_is_found_in_proportion(size: int) -> None:
    tree = SumTree(size)
    held = np.unique(np.linspace(0, size - 1, 7).astype(int))
    weights = np.arange(1.0, len(held) + 1)
    tree.set(held, weights)
    draws = 28 * 500
    found = tree.find((np.arange(draws) + 0.5) / draws)
    counts = np.array([(found == index).sum() for index in held])
    np.testing.assert_allclose(counts, draws * weights / weights.sum(), atol=1.0)


def test_of_a_repeated_index_the_last_value_stays() -> None:
    tree = SumTree(100)
    tree.set(np.array([5, 7, 5]), np.array([1.0, 2.0, 3.0]))
    assert (tree.values[5], tree.values[7], tree.total) == (3.0, 2.0, 5.0)


def test_the_tree_depends_on_the_numbers_alone() -> None:
    """Bit for bit, whatever came before: a tree loaded from its numbers draws as the one that was saved."""
    random = np.random.default_rng(0)
    tree, again = SumTree(50_000), SumTree(50_000)
    for _ in range(200):
        tree.set(random.integers(0, 50_000, 64), random.exponential(size=64) * 1e6)
        tree.set(random.integers(0, 50_000, 64), random.exponential(size=64) * 1e-6)
    again.load(tree.values)
    assert tree.total == again.total
    shares = random.random(5_000)
    assert np.array_equal(tree.find(shares), again.find(shares))


def test_widths_of_very_different_sizes_are_never_confused_with_0() -> None:
    tree = SumTree(2_000)
    tree.set(np.array([0, 1000, 1999]), np.array([1e-12, 1e12, 1e-12]))
    assert set(tree.find(np.linspace(0, np.nextafter(1, 0), 1_000)).tolist()) <= {0, 1000, 1999}


def test_nothing_is_found_where_all_numbers_are_0() -> None:
    with pytest.raises(UsageError, match="all numbers of the tree are 0"):
        SumTree(3).find(np.array([0.5]))
    with pytest.raises(UsageError, match="size is 0"):
        SumTree(0)
