"""Learn a strategy of a matrix game from the moves that opponents made.

A player is a softmax over moves: its `weights` are the logits.  One step of multiplicative
weights (Freund and Schapire 1999) adds to each logit what the move would have gained.
Against any opponents whatever, the mean regret of T such steps with payoffs in [-1, 1] and
without a limit is at most ``log(moves) / (learning_rate T) + learning_rate / 2``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def strategy(weights: Sequence[float]) -> np.ndarray[Any, Any]:
    """Return the probabilities (n,) of moves: softmax(weights)."""
    logits = np.asarray(weights, np.float64)
    likely: np.ndarray[Any, Any] = np.exp(logits - logits.max())
    likely /= likely.sum()
    return likely


def improve(
    weights: Sequence[float],
    opponent_moves: Any,
    payoff: Any,
    *,
    learning_rate: float,
    limit: float = np.inf,
) -> tuple[float, ...]:
    """Return the weights after one step against `opponent_moves` (n,): how often each was seen.

    w + learning_rate * payoff @ (opponent_moves / sum), then centred on 0 and held within
    -limit and limit, so that a move that has become bad is left within a bounded number of steps.
    """
    seen = np.asarray(opponent_moves, np.float64)
    gain = np.asarray(payoff, np.float64) @ (seen / seen.sum())
    logits = np.asarray(weights, np.float64) + learning_rate * gain
    held = np.clip(logits - logits.mean(), -limit, limit)
    return tuple(held.tolist())
