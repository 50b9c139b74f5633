"""Wrappers around single environments that gymnasium does not have."""

from __future__ import annotations

from typing import Any

import gymnasium

from engine.errors import EnvError


class RepeatAction(gymnasium.Wrapper):  # type: ignore[misc,type-arg,unused-ignore]
    """Take each action `repeat` times, or until the episode ends; rewards are summed.

    The return of an episode stays what it was.  Raises `EnvError` for a repeat below 1.
    """

    def __init__(self, env: Any, repeat: int) -> None:
        if isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1:
            raise EnvError(f"RepeatAction takes repeat= as a whole number of at least 1, not {repeat!r}")
        super().__init__(env)
        self.repeat = repeat

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the last observation, the sum of rewards, and how the episode stands."""
        total = 0.0
        for _ in range(self.repeat):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info
