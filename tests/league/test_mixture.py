"""Mixtures against closed forms, and against trying every support."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from engine.errors import UsageError
from engine.league.mixture import exploitability, fictitious_play, nash

RPS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


def value_by_trying_every_support(game: np.ndarray[Any, Any]) -> float:
    """The value of a zero-sum game: the best that any candidate strategy secures.

    An optimal strategy makes the opponent indifferent between as many columns as it mixes rows
    (Shapley and Snow 1950), so that solving a linear system for every pair of supports finds one.
    """
    rows, columns = game.shape
    secured = [float(row.min()) for row in game]
    for size in range(2, min(rows, columns) + 1):
        for mine in combinations(range(rows), size):
            for theirs in combinations(range(columns), size):
                system = np.zeros((size + 1, size + 1))
                system[:size, :size] = game[np.ix_(mine, theirs)].T
                system[:size, -1], system[-1, :size] = -1.0, 1.0
                try:
                    solution = np.linalg.solve(system, np.eye(size + 1)[-1])
                except np.linalg.LinAlgError:
                    continue
                if solution[:size].min() >= -1e-12:
                    strategy = np.zeros(rows)
                    strategy[list(mine)] = solution[:size]
                    secured.append(float((strategy @ game).min()))
    return max(secured)


def test_rock_paper_scissors_is_a_third_each() -> None:
    assert np.allclose(nash(RPS), 1 / 3, atol=1e-12)


@pytest.mark.parametrize(("a", "b", "c"), [(1.0, 2.0, 3.0), (5.0, 0.1, 1.0)])
def test_stakes_of_rock_paper_scissors_shift_the_mixture_as_the_closed_form_says(
    a: float, b: float, c: float
) -> None:
    # Rock beats scissors for a, paper rock for b, scissors paper for c: each move is played as
    # often as the stake between the two others.
    game = np.array([[0.0, -b, a], [b, 0.0, -c], [-a, c, 0.0]])
    assert np.allclose(nash(game), np.array([c, a, b]) / (a + b + c), atol=1e-12)


def test_two_by_two_without_saddle_is_the_closed_form() -> None:
    a, b, c, d = 3.0, -1.0, -2.0, 4.0
    strategy = nash([[a, b], [c, d]])
    assert np.allclose(strategy[0], (d - c) / (a - b - c + d), atol=1e-12)


def test_a_saddle_is_played_pure() -> None:
    assert np.array_equal(nash([[1.0, 2.0], [0.0, 5.0]]), [1.0, 0.0])
    assert np.array_equal(nash([[0.3]]), [1.0])


@pytest.mark.parametrize("shape", [(2, 3), (3, 3), (4, 2), (4, 4), (1, 4), (4, 1)])
@pytest.mark.parametrize("whole", [False, True], ids=["real", "whole_numbers_with_ties"])
def test_random_games_secure_the_value_that_trying_every_support_finds(
    shape: tuple[int, int], whole: bool
) -> None:
    generator = np.random.default_rng(7)
    for _ in range(30):
        game = generator.normal(size=shape)
        if whole:
            game = np.round(game)
        strategy = nash(game)
        assert strategy.min() >= 0.0
        assert abs(strategy.sum() - 1.0) < 1e-12
        assert abs((strategy @ game).min() - value_by_trying_every_support(game)) < 1e-9


def test_copies_of_a_move_and_games_of_many_moves_are_solved() -> None:
    generator = np.random.default_rng(1)
    kinds = generator.integers(3, size=40)
    strategy = nash(RPS[np.ix_(kinds, kinds)])
    assert np.allclose(np.bincount(kinds, weights=strategy, minlength=3), 1 / 3, atol=1e-9)
    half = generator.normal(size=(60, 60))
    game = half - half.T
    assert exploitability(nash(game), game) < 1e-9


@pytest.mark.parametrize("game", [RPS, [[3.0, -1.0], [-2.0, 4.0]], [[1.0, 2.0], [0.0, 5.0]]])
def test_fictitious_play_approaches_the_value(game: Any) -> None:
    game = np.array(game)
    value = (nash(game) @ game).min()
    gaps = []
    for rounds in (100, 10_000):
        row, column = fictitious_play(game, rounds)
        assert row.sum() == pytest.approx(1.0)
        secured, conceded = (row @ game).min(), (game @ column).max()
        assert secured <= value + 1e-12 <= conceded + 2e-12
        gaps.append(conceded - secured)
    assert gaps[1] <= min(gaps[0], 0.15)


def test_exploitability_is_the_gain_of_the_best_answer() -> None:
    assert exploitability([1.0, 0.0, 0.0], RPS) == 1.0
    assert exploitability([0.5, 0.25, 0.25], RPS) == 0.25
    assert abs(exploitability(np.full(3, 1 / 3), RPS)) < 1e-12


def test_what_is_no_game_is_refused() -> None:
    for wrong in ([], [1.0, 2.0], [[np.nan]], np.zeros((2, 0))):
        with pytest.raises(UsageError, match="matrix of finite numbers"):
            nash(wrong)
    with pytest.raises(UsageError, match="symmetric"):
        exploitability([0.5, 0.5], [[3.0, -1.0], [-2.0, 4.0]])
    with pytest.raises(UsageError, match="at least 1"):
        fictitious_play(RPS, 0)
