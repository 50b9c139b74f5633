"""Mixed strategies of zero-sum matrix games: whom to play how often.

In a matrix game the row player chooses a row, the column player a column, and the entry is
what the row player gets and the column player pays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.errors import UsageError

_EPSILON = 1e-12


def nash(payoff: Any) -> np.ndarray[Any, Any]:
    """Return a Nash strategy (n,) of the row player for `payoff` (n, m): the best against the worst.

    x = argmax_x min_j sum_i x_i payoff_ij (von Neumann 1928).  Where there are several, one of
    them with few rows.  Solved exactly, up to rounding, as a linear program by the simplex method.
    """
    game = _checked(payoff)
    # Adding a constant changes no strategy.  With every entry positive, x = u / sum(u) for the u >= 0 of
    # smallest sum with u @ game >= 1; u are the prices of its dual: max sum(y), game @ y <= 1, y >= 0.
    game = game - game.min() + 1.0
    rows, columns = game.shape
    tableau = np.zeros((rows + 1, columns + rows + 1))
    tableau[:rows, :columns] = game
    tableau[:rows, columns:-1] = np.eye(rows)
    tableau[:rows, -1] = 1.0
    tableau[-1, :columns] = -1.0
    basis = np.arange(columns, columns + rows)
    while True:
        entering = np.flatnonzero(tableau[-1, :-1] < -_EPSILON)
        if not entering.size:
            break
        # Bland's rule, the first that helps: it cannot cycle.
        column = entering[0]
        usable = np.flatnonzero(tableau[:rows, column] > _EPSILON)
        ratio = tableau[usable, -1] / tableau[usable, column]
        ties = usable[ratio <= ratio.min() + _EPSILON]
        row = ties[np.argmin(basis[ties])]
        tableau[row] /= tableau[row, column]
        others = np.arange(rows + 1) != row
        tableau[others] -= np.outer(tableau[others, column], tableau[row])
        basis[row] = column
    prices: np.ndarray[Any, Any] = np.maximum(tableau[-1, columns:-1], 0.0)
    prices /= prices.sum()
    return prices


def fictitious_play(payoff: Any, rounds: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the mean strategies (n,), (m,) of two who always answer best to the other's mean so far.

    Brown 1951; they approach Nash strategies (Robinson 1951), about as 1 / sqrt(rounds).
    """
    game = _checked(payoff)
    if rounds < 1:
        raise UsageError(f"rounds is at least 1, not {rounds}")
    gains, costs = np.zeros(game.shape[0]), np.zeros(game.shape[1])
    row_counts, column_counts = np.zeros(game.shape[0]), np.zeros(game.shape[1])
    for _ in range(rounds):
        row, column = int(np.argmax(gains)), int(np.argmin(costs))
        row_counts[row] += 1
        column_counts[column] += 1
        gains += game[:, column]
        costs += game[row]
    return row_counts / rounds, column_counts / rounds


def exploitability(strategy: Any, payoff: Any) -> float:
    """Return how much the best answer gains against `strategy` (n,) in a symmetric `payoff` (n, n).

    max_i (payoff @ strategy)_i: at least 0, and 0 exactly where `strategy` is a Nash strategy.
    """
    game = _checked(payoff)
    if not np.array_equal(game, -game.T):
        raise UsageError("exploitability needs a symmetric game, whose payoff is minus its transpose")
    return float((game @ np.asarray(strategy, np.float64)).max())


def _checked(payoff: Any) -> np.ndarray[Any, Any]:
    game = np.array(payoff, np.float64)
    if game.ndim != 2 or not game.size or not np.isfinite(game).all():
        raise UsageError(
            f"a payoff is a matrix of finite numbers with at least one row and column, not {payoff!r}"
        )
    return game
