"""Statistics, numpy and torch alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.ops.statistics import explained_variance, normalise


@pytest.fixture(params=[np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def array(request: pytest.FixtureRequest) -> Any:
    return lambda values: request.param(np.array(values, dtype=np.float32))


def test_a_perfect_prediction_explains_everything(array: Any) -> None:
    assert float(explained_variance(array([1, 2, 4]), array([1, 2, 4]))) == 1.0


def test_a_constant_offset_is_not_unexplained(array: Any) -> None:
    assert float(explained_variance(array([11, 12, 14]), array([1, 2, 4]))) == pytest.approx(1.0)


def test_the_mean_explains_nothing_and_the_opposite_less(array: Any) -> None:
    target = array([-1, 0, 1])
    assert float(explained_variance(array([0, 0, 0]), target)) == pytest.approx(0.0)
    assert float(explained_variance(-target, target)) == pytest.approx(-3.0)


def test_a_target_without_variance_gives_zero_not_nan(array: Any) -> None:
    assert float(explained_variance(array([1, 2]), array([5, 5]))) == 0.0


def test_normalised_values_have_mean_zero_and_deviation_one(array: Any) -> None:
    x = normalise(array([[1, 2], [3, 10]]))
    assert float(x.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float((x * x).mean()) == pytest.approx(1.0, abs=1e-5)


def test_a_single_row_keeps_its_value(array: Any) -> None:
    assert float(normalise(array([3.5]))[0]) == 3.5


def test_equal_values_become_zero(array: Any) -> None:
    assert np.array_equal(np.asarray(normalise(array([2, 2, 2]))), [0, 0, 0])
