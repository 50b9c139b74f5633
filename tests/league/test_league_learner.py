"""The learner keeps the regret bound of multiplicative weights and answers what it sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.league.learner import improve, strategy

RPS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


def test_a_strategy_is_the_softmax_of_the_weights_however_large() -> None:
    assert np.allclose(strategy((0.0, np.log(2.0), np.log(5.0))), np.array([1, 2, 5]) / 8)
    assert np.allclose(strategy((1e4, 0.0, -1e4)), [1, 0, 0])


def test_a_step_adds_what_each_move_would_have_gained() -> None:
    # Of four opponents two moved rock and two paper: the moves would have gained -1/2, 1/2 and 0.
    weights = improve((0.1, -0.3, 0.2), [2, 2, 0], RPS, learning_rate=0.2)
    assert np.allclose(weights, [0.0, -0.2, 0.2])


def test_weights_stay_within_the_limit_and_can_come_close_to_a_pure_move() -> None:
    weights: Any = (2.0, -1.0, -1.0)
    for _ in range(100):
        weights = improve(weights, [1, 0, 0], RPS, learning_rate=0.5, limit=3.0)
        assert max(map(abs, weights)) <= 3.0
    assert strategy(weights).argmax() == 1  # paper
    assert strategy(weights).max() > 0.9


@pytest.mark.parametrize("kind", ["random", "constant", "adversary"])
def test_the_mean_regret_keeps_its_bound(kind: str) -> None:
    generator = np.random.default_rng(3)
    rounds, rate = 400, 0.1
    weights: tuple[float, ...] = (0.0, 0.0, 0.0)
    gained, moves = 0.0, np.zeros(3)
    for _ in range(rounds):
        mine = strategy(weights)
        if kind == "adversary":  # plays what hurts the most right now
            move = int(np.argmin(mine @ RPS))
        else:
            move = 0 if kind == "constant" else int(generator.integers(3))
        seen = np.eye(3)[move]
        gained += float(mine @ RPS @ seen)
        moves += seen
        weights = improve(weights, seen, RPS, learning_rate=rate)
    regret = float((RPS @ moves).max() - gained) / rounds
    assert regret <= np.log(3) / (rate * rounds) + rate / 2


def test_the_mean_strategies_of_two_learners_approach_a_third_each() -> None:
    one: tuple[float, ...] = (2.0, -1.0, -1.0)
    two: tuple[float, ...] = (-1.0, 0.0, 1.0)
    mean = np.zeros((2, 3))
    rounds = 4_000
    for _ in range(rounds):
        first, second = strategy(one), strategy(two)
        mean += np.array([first, second]) / rounds
        one = improve(one, second, RPS, learning_rate=0.02)
        two = improve(two, first, RPS, learning_rate=0.02)
    assert np.abs(mean - 1 / 3).max() < 0.05
