"""Schedules are pure functions of a counter."""

from __future__ import annotations

import pickle

import pytest

from engine.errors import UsageError
from engine.ops.schedules import Constant, Exponential, Linear, as_schedule


def test_linear_reaches_its_end_and_stays() -> None:
    epsilon = Linear(1.0, 0.05, 10_000)
    assert [epsilon(count) for count in (0, 10_000, 99_999)] == [1.0, 0.05, 0.05]
    assert epsilon(5_000) == pytest.approx(0.525)


def test_linear_may_rise() -> None:
    assert Linear(0.4, 1.0, 10)(5) == pytest.approx(0.7)


def test_exponential_goes_half_of_the_rest_in_each_half_life() -> None:
    schedule = Exponential(1.0, 0.2, 100)
    assert [schedule(count) for count in (0, 100, 200)] == pytest.approx([1.0, 0.6, 0.4])
    assert schedule(1e6) == pytest.approx(0.2)


def test_a_count_below_zero_is_the_start() -> None:
    assert Linear(1.0, 0.0, 10)(-5) == Exponential(1.0, 0.0, 10)(-5) == 1.0


def test_the_order_of_questions_changes_no_answer() -> None:
    schedule = Exponential(1.0, 0.1, 7)
    forward = [schedule(count) for count in range(20)]
    assert [schedule(count) for count in reversed(range(20))] == forward[::-1]


def test_a_number_becomes_a_constant_and_a_function_stays() -> None:
    linear = Linear(1, 0, 5)
    assert as_schedule(0.3)(123) == 0.3
    assert as_schedule(linear) is linear


def test_schedules_survive_pickling() -> None:
    for schedule in (Constant(0.1), Linear(1, 0, 5), Exponential(1, 0, 5)):
        assert pickle.loads(pickle.dumps(schedule)) == schedule


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda: Linear(1, 0, 0), "steps"),
        (lambda: Linear(float("nan"), 0, 1), "start"),
        (lambda: Exponential(1, 0, -1), "half_life"),
        (lambda: Constant(float("inf")), "value"),
    ],
)
def test_impossible_arguments_are_refused_when_building(build: object, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        build()  # type: ignore[operator]
