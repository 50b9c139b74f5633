"""The league: players that learn, snapshots of what they were, and who plays whom next.

::

    every player begins with a snapshot of itself
    mixture = Nash strategy of the payoffs of the snapshots that have played enough
    a job is one of
        evaluate: the two snapshots that were asked to play each other the fewest times
        learn:    a player against a snapshot drawn from the mixture
    a player that beats the mixture long enough leaves a new snapshot

This is policy-space response oracles (Lanctot et al. 2017): where the mixture can be beaten, its
best answer joins it, so that the mixture approaches a Nash strategy of the whole game.
What a player's weights mean is known to who plays, not to the league.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import UnknownName, UsageError, did_you_mean
from engine.league.mixture import nash
from engine.league.payoff import Payoff


@dataclass(frozen=True, kw_only=True)
class Job:
    """A match to play."""

    number: int
    """Counts jobs from 1."""
    player: str
    """For whom it was asked."""
    home: str
    """The player itself, or a snapshot."""
    away: str
    weights: tuple[float, ...]
    """Of `home`."""
    opponent: tuple[float, ...]
    """The weights of `away`."""
    games: int
    learn: bool
    """Whether `home` is to learn from it; else both are snapshots that stay as they are."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a match went, as `home` saw it."""

    job: Job
    actor: str
    """Who played it."""
    wins: int
    draws: int
    losses: int
    weights: tuple[float, ...]
    """Of `home`, after learning."""

    @property
    def games(self) -> int:
        return self.wins + self.draws + self.losses

    @property
    def mean(self) -> float:
        """The mean payoff of a game, in [-1, 1]."""
        return (self.wins - self.losses) / max(1, self.games)


@dataclass
class _Learning:
    """What a player has become, and how it did since its last snapshot."""

    weights: tuple[float, ...]
    snapshots: int = 0
    payoffs: tuple[float, ...] = ()
    """Mean payoffs of its last matches against the mixture."""


class League:
    """Keeps players, snapshots and payoffs; gives jobs and takes results.

    `players` holds the weights that each learning player begins with; `generator` draws the
    opponents.  `games` are those of one job.  A player leaves a snapshot once its last `window`
    learning matches gained `margin` a game on average (in [-1, 1]); the snapshots of a player
    are named ``<player>_0``, ``<player>_1``, and so on.  A snapshot joins the mixture after `trial`
    games against each older one: a few lucky games must not make it the only opponent.  Jobs
    serve trials first; then every `evaluate_every`-th lets snapshots play each other.
    """

    def __init__(
        self,
        players: Mapping[str, Sequence[float]],
        *,
        generator: np.random.Generator,
        games: int = 16,
        window: int = 32,
        margin: float = 0.3,
        trial: int = 128,
        evaluate_every: int = 2,
    ) -> None:
        if not players:
            raise UsageError("a league needs at least one player")
        counts = {"games": games, "window": window, "trial": trial, "evaluate_every": evaluate_every}
        for name, value in counts.items():
            if value < 1:
                raise UsageError(f"{name} is at least 1, not {value}")
        if not 0.0 < margin < 1.0:
            raise UsageError(f"margin is a mean payoff between 0 and 1, not {margin}")
        self.games = games
        self.window = window
        self.margin = margin
        self.trial = trial
        self.evaluate_every = evaluate_every
        self.payoff = Payoff()
        self.games_played = 0
        self._generator = generator
        self._jobs = 0
        self._asked: dict[tuple[str, str], int] = {}
        self._players: dict[str, _Learning] = {}
        self._snapshots: dict[str, tuple[float, ...]] = {}
        self._mixture: np.ndarray[Any, Any] | None = None
        for player, weights in players.items():
            self._players[player] = _Learning(tuple(float(weight) for weight in weights))
            self._leave_snapshot(player)

    @property
    def players(self) -> dict[str, tuple[float, ...]]:
        """The weights of the players that learn."""
        return {name: one.weights for name, one in self._players.items()}

    @property
    def snapshots(self) -> dict[str, tuple[float, ...]]:
        """The weights of the snapshots, the oldest first."""
        return dict(self._snapshots)

    @property
    def mixture(self) -> dict[str, float]:
        """How often to meet each snapshot: a Nash strategy of their payoffs; 0 for those on trial."""
        return dict(zip(self._snapshots, self._weighting().tolist(), strict=True))

    def blend(self, strategy: Callable[[tuple[float, ...]], Any]) -> np.ndarray[Any, Any]:
        """Return the mixture's probabilities of moves; `strategy` maps weights to those of one player."""
        each = np.array([strategy(weights) for weights in self._snapshots.values()], np.float64)
        return self._weighting() @ each

    def get_job(self, player: str) -> Job:
        """Return the next match for whoever plays for `player`; raises `UnknownName` for a stranger."""
        learning = self._player(player)
        self._jobs += 1
        pair = min(self._asked, key=self._asked.__getitem__, default=None)
        on_trial = pair is not None and self._asked[pair] * self.games < self.trial
        if pair is not None and (on_trial or self._jobs % self.evaluate_every == 0):
            self._asked[pair] += 1
            return self._job(player, *pair, self._snapshots[pair[0]], learn=False)
        away = self._generator.choice(list(self._snapshots), p=self._weighting())
        return self._job(player, player, str(away), learning.weights, learn=True)

    def put_result(self, result: Result) -> None:
        """Count a match; keep what the player learned, and its snapshot when it beats the mixture."""
        home, away = result.job.home, result.job.away
        if not result.job.learn:
            self.payoff.record(home, away, wins=result.wins, draws=result.draws, losses=result.losses)
            self._mixture = None
        else:
            one = self._player(home)
            one.weights = result.weights
            one.payoffs = (*one.payoffs, result.mean)[-self.window :]
            if len(one.payoffs) == self.window and sum(one.payoffs) >= self.margin * self.window:
                self._leave_snapshot(home)
        self.games_played += result.games

    def _player(self, name: str) -> _Learning:
        if name not in self._players:
            raise UnknownName(f"the league has no player {name!r}{did_you_mean(name, self._players)}")
        return self._players[name]

    def _job(self, player: str, home: str, away: str, weights: tuple[float, ...], *, learn: bool) -> Job:
        return Job(
            number=self._jobs,
            player=player,
            home=home,
            away=away,
            weights=weights,
            opponent=self._snapshots[away],
            games=self.games,
            learn=learn,
        )

    def _leave_snapshot(self, player: str) -> None:
        one = self._players[player]
        name = f"{player}_{one.snapshots}"
        one.snapshots += 1
        one.payoffs = ()
        self.payoff.add(name)
        self._asked.update({(other, name): 0 for other in self._snapshots})
        self._snapshots[name] = one.weights
        self._mixture = None

    def _weighting(self) -> np.ndarray[Any, Any]:
        if self._mixture is None:
            names = list(self._snapshots)
            tried = [
                all(self.payoff.games(name, older) >= self.trial for older in names[:index])
                for index, name in enumerate(names)
            ]
            members = [name for name, joins in zip(names, tried, strict=True) if joins]
            self._mixture = np.zeros(len(names))
            self._mixture[tried] = nash(self.payoff.matrix(members))
        return self._mixture
