"""Schedules are pure functions of a counter."""

from __future__ import annotations

import pickle

import pytest

from engine.errors import UsageError
from engine.ops.schedules import Constant, Exponential, Ladder, Linear, as_schedule


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


def test_a_ladder_goes_from_its_schedule_down_to_the_power_of_one_and_alpha() -> None:
    ladder = Ladder(Constant(0.5), 6.0, range(4), 4)
    assert ladder(123).tolist() == pytest.approx([2.0**-1, 2.0**-3, 2.0**-5, 2.0**-7])
    assert Ladder(Constant(0.5), 6.0, range(2, 4), 4)(0).tolist() == ladder(0)[2:].tolist()


def test_a_ladder_of_one_rung_or_without_alpha_is_its_schedule() -> None:
    epsilon = Linear(1.0, 0.1, 10)
    assert Ladder(epsilon, 7.0, range(1), 1)(5).tolist() == [epsilon(5)]
    assert Ladder(epsilon, 0.0, range(3), 3)(5).tolist() == [epsilon(5)] * 3


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
    simple = (Constant(0.1), Linear(1, 0, 5), Exponential(1, 0, 5))
    for schedule in (*simple, Ladder(Constant(0.1), 7, range(2), 2)):
        assert pickle.loads(pickle.dumps(schedule)) == schedule


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda: Linear(1, 0, 0), "steps"),
        (lambda: Linear(float("nan"), 0, 1), "start"),
        (lambda: Exponential(1, 0, -1), "half_life"),
        (lambda: Constant(float("inf")), "value"),
        (lambda: Ladder(Constant(0.4), float("inf"), range(1), 1), "alpha must be a finite"),
        (lambda: Ladder(Constant(0.4), -1, range(1), 1), "alpha must be 0 or above"),
        (lambda: Ladder(Constant(0.4), 7, range(2, 3), 2), "rungs must be some of 0 to total - 1"),
        (lambda: Ladder(Constant(0.4), 7, range(0), 2), "rungs"),
    ],
)
def test_impossible_arguments_are_refused_when_building(build: object, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        build()  # type: ignore[operator]
