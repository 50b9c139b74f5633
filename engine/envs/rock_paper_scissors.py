"""Rock-paper-scissors against an opponent whose strategy is set from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from engine.errors import EnvError

MOVES = ("rock", "paper", "scissors")
"""What the actions mean, in order."""

PAYOFF = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
"""Reward of a row's move against a column's; equals minus its transpose.  It cannot be changed."""
PAYOFF.flags.writeable = False


class RockPaperScissors(gymnasium.Env):
    """Play `rounds` rounds (1: one-shot) for a reward of 1, 0 or -1 each; terminates after the last.

    `opponent` holds its probabilities of rock, paper and scissors; it draws every move
    independently of what came before.  The observation is the round before: one-hot the own
    move (3), then one-hot the opponent's (3); zeros at first.  ``info["opponent_move"]`` is the
    opponent's move as a number.  The best mean reward of a round is the largest entry of
    ``PAYOFF @ opponent``; it is 0 against the uniform opponent, whatever one does.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(
        self,
        rounds: int = 8,
        opponent: Sequence[float] = (1 / 3, 1 / 3, 1 / 3),
        render_mode: str | None = None,
    ) -> None:
        if rounds < 1:
            raise EnvError(f"rock-paper-scissors is played for at least 1 round, not {rounds}")
        self.rounds = rounds
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (6,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._elapsed = 0
        self._last: tuple[int, int] | None = None
        self.set_opponent(opponent)

    def set_opponent(self, opponent: Sequence[float]) -> None:
        """Let the opponent move with other probabilities from the next round on."""
        strategy = np.array(opponent, np.float64)
        if strategy.shape != (3,) or not (strategy >= 0.0).all() or abs(strategy.sum() - 1.0) > 1e-6:
            raise EnvError(
                f"an opponent is 3 probabilities of {', '.join(MOVES)} that sum to 1, not {opponent!r}"
            )
        self._below = np.cumsum(strategy)[:2]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start anew; ``options["opponent"]`` sets the opponent as `set_opponent` does."""
        super().reset(seed=seed)
        if options and "opponent" in options:
            self.set_opponent(options["opponent"])
        self._elapsed, self._last = 0, None
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        mine = int(action)
        theirs = int(np.searchsorted(self._below, self.np_random.random(), side="right"))
        self._last = mine, theirs
        self._elapsed += 1
        over = self._elapsed >= self.rounds
        return self._observe(), float(PAYOFF[mine, theirs]), over, False, {"opponent_move": theirs}

    def render(self) -> str:
        """Return the last round in words."""
        if self._last is None:
            return "no round was played yet"
        mine, theirs = self._last
        outcome = {1.0: "won", 0.0: "a draw", -1.0: "lost"}[float(PAYOFF[mine, theirs])]
        return f"round {self._elapsed}: {MOVES[mine]} against {MOVES[theirs]}, {outcome}"

    def _observe(self) -> Any:
        obs = np.zeros(6, np.float32)
        if self._last is not None:
            obs[self._last[0]] = obs[3 + self._last[1]] = 1.0
        return obs
