"""Payoffs count every game for both sides."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import UnknownName, UsageError
from engine.league.payoff import Payoff


def of(*players: str) -> Payoff:
    payoff = Payoff()
    for player in players:
        payoff.add(player)
    return payoff


def test_what_one_wins_the_other_loses() -> None:
    payoff = of("a", "b")
    payoff.record("a", "b", wins=3, draws=2, losses=1)
    payoff.record("b", "a", wins=4, draws=0, losses=0)
    assert payoff.counts("a", "b") == (3, 2, 5)
    assert payoff.counts("b", "a") == (5, 2, 3)
    assert payoff.games("a", "b") == payoff.games("b", "a") == 10
    assert payoff.mean("a", "b") == -0.2
    assert payoff.win_rate("b", "a") == 0.6


def test_players_who_never_met_are_taken_for_equals() -> None:
    payoff = of("a", "b")
    assert payoff.mean("a", "b") == 0.0
    assert payoff.win_rate("a", "b") == payoff.win_rate("a", "a") == 0.5


def test_matrices_equal_a_count_game_by_game() -> None:
    generator = np.random.default_rng(0)
    names = ["a", "b", "c", "d"]
    payoff = of(*names)
    games: list[tuple[int, int, int]] = []
    for _ in range(300):
        home, away = generator.choice(4, size=2, replace=False)
        outcome = int(generator.integers(-1, 2))
        games.append((int(home), int(away), outcome))
        counts = {"wins": int(outcome > 0), "draws": int(outcome == 0), "losses": int(outcome < 0)}
        payoff.record(names[home], names[away], **counts)
    expected = np.full((4, 4), 0.5)
    for i in range(4):
        for j in range(4):
            points = [(1 + r) / 2 for h, a, r in games if (h, a) == (i, j)]
            points += [(1 - r) / 2 for h, a, r in games if (h, a) == (j, i)]
            if points:
                expected[i, j] = np.mean(points)
    assert np.allclose(payoff.win_rates(names), expected, atol=1e-12)
    assert np.array_equal(payoff.matrix(names), -payoff.matrix(names).T)
    assert np.allclose(payoff.matrix(names[2:]), 2 * expected[2:, 2:] - 1, atol=1e-12)


def test_mistakes_are_named() -> None:
    payoff = of("main_0", "main_1")
    with pytest.raises(UnknownName, match="did you mean 'main_0'"):
        payoff.mean("main_00", "main_1")
    with pytest.raises(UsageError, match="cannot play itself"):
        payoff.record("main_0", "main_0", wins=1, draws=0, losses=0)
    with pytest.raises(UsageError, match="at least 0"):
        payoff.record("main_0", "main_1", wins=-1, draws=0, losses=0)
    with pytest.raises(UsageError, match="unique"):
        payoff.add("main_0")
