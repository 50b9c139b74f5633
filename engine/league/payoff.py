"""Who won how often against whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import UnknownName, UsageError, did_you_mean


class Payoff:
    """Counts of wins, draws and losses between players.

    Every game counts for both of its players, so that what one wins the other loses:
    ``mean(a, b) == -mean(b, a)``.
    """

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, tuple[int, int, int]]] = {}

    @property
    def players(self) -> list[str]:
        """The players, in the order in which they were added."""
        return list(self._counts)

    def add(self, player: str) -> None:
        """Let a player take part; names are unique."""
        if player in self._counts:
            raise UsageError(f"there is a player {player!r} already; names are unique")
        self._counts[player] = {}

    def record(self, home: str, away: str, *, wins: int, draws: int, losses: int) -> None:
        """Count games between two players, as `home` saw them."""
        if home == away:
            raise UsageError(f"{home!r} cannot play itself: both sides of a game are counted")
        if min(wins, draws, losses) < 0:
            raise UsageError(f"counts are at least 0, not {(wins, draws, losses)}")
        won, drawn, lost = self.counts(home, away)
        self._counts[home][away] = won + wins, drawn + draws, lost + losses
        self._counts[away][home] = lost + losses, drawn + draws, won + wins

    def counts(self, home: str, away: str) -> tuple[int, int, int]:
        """Return the (wins, draws, losses) of `home` against `away`."""
        for name in (home, away):
            if name not in self._counts:
                raise UnknownName(f"no player {name!r}{did_you_mean(name, self._counts)}")
        return self._counts[home].get(away, (0, 0, 0))

    def games(self, home: str, away: str) -> int:
        """Return how many games were played between two players."""
        return sum(self.counts(home, away))

    def mean(self, home: str, away: str) -> float:
        """Return (wins - losses) / games of `home`, in [-1, 1]; 0 where none was played."""
        wins, draws, losses = self.counts(home, away)
        return (wins - losses) / max(1, wins + draws + losses)

    def win_rate(self, home: str, away: str) -> float:
        """Return the share of games that `home` won, draws by half; 0.5 where none was played."""
        return 0.5 + 0.5 * self.mean(home, away)

    def matrix(self, players: Sequence[str]) -> np.ndarray[Any, Any]:
        """Return the mean payoffs (n, n) of each of `players` against each; minus its own transpose."""
        return np.array([[self.mean(home, away) for away in players] for home in players], np.float64)

    def win_rates(self, players: Sequence[str]) -> np.ndarray[Any, Any]:
        """Return the win rates (n, n) of each of `players` against each; 0.5 on the diagonal."""
        return 0.5 + 0.5 * self.matrix(players)
