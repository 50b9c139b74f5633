"""Small environments with known optima, for tests and first experiments: ``engine.envs.toy:DictEnv``."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

_Result = tuple[Any, float, bool, bool, dict[str, Any]]


class _Guess(gymnasium.Env):
    """Name the number that is shown: 1 for the right action, 0 for another; ends after 8 steps."""

    length: ClassVar[int] = 8
    optimal_return: ClassVar[float] = 8.0
    metadata = {"render_modes": []}  # noqa: RUF012
    choices: ClassVar[int] = 4

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(self.choices)

    def _observe(self) -> Any:
        raise NotImplementedError

    def _draw(self) -> Any:
        self._shown = int(self.np_random.integers(self.choices))
        return self._observe()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._elapsed = 0
        return self._draw(), {}

    def step(self, action: Any) -> _Result:
        reward = float(int(action) == self._shown)
        self._elapsed += 1
        return self._draw(), reward, self._elapsed >= self.length, False, {}


class DictEnv(_Guess):
    """Nested Dict observation: the number one-hot, and the share of the episode that is over.  Optimum 8."""

    def __init__(self) -> None:
        super().__init__()
        box = spaces.Box(0.0, 1.0, (self.choices,), np.float32)
        clock = spaces.Dict({"elapsed": spaces.Box(0.0, 1.0, (1,), np.float32)})
        self.observation_space = spaces.Dict({"shown": box, "clock": clock})

    def _observe(self) -> Any:
        shown = np.zeros(self.choices, np.float32)
        shown[self._shown] = 1.0
        return {"shown": shown, "clock": {"elapsed": np.array([self._elapsed / self.length], np.float32)}}


class TupleEnv(_Guess):
    """Tuple observation (the number, the share of the episode that is over).  Optimum 8."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Tuple(
            (spaces.Discrete(self.choices), spaces.Box(0.0, 1.0, (1,), np.float32))
        )

    def _observe(self) -> Any:
        return np.int64(self._shown), np.array([self._elapsed / self.length], np.float32)


class ConstantRewardEnv(gymnasium.Env):
    """Reward 1 whatever is done; never terminates, truncates after `length` steps.

    Nothing in the observation tells the time, so its value is 1 / (1 - discount) everywhere.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, length: int = 100) -> None:
        self.length = length
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._elapsed = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> _Result:
        self._elapsed += 1
        return np.ones(1, np.float32), 1.0, False, self._elapsed >= self.length, {}


class ContinuousTargetEnv(gymnasium.Env):
    """Hit the point that is shown: reward is minus the squared distance; ends after 8 steps.  Optimum 0."""

    length: ClassVar[int] = 8
    optimal_return: ClassVar[float] = 0.0
    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, size: int = 2) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (size,), np.float32)

    def _draw(self) -> Any:
        self._target = self.np_random.uniform(-1.0, 1.0, self.observation_space.shape).astype(np.float32)
        return self._target.copy()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._elapsed = 0
        return self._draw(), {}

    def step(self, action: Any) -> _Result:
        reward = -float(np.square(action - self._target).sum())
        self._elapsed += 1
        return self._draw(), reward, self._elapsed >= self.length, False, {}


class CrashEnv(ConstantRewardEnv):
    """Raises `RuntimeError` in its step number `after`, counted over all episodes from 1."""

    def __init__(self, after: int = 10, length: int = 100) -> None:
        super().__init__(length)
        self.after = after
        self._steps = 0

    def step(self, action: Any) -> _Result:
        self._steps += 1
        if self._steps >= self.after:
            raise RuntimeError(f"this environment crashes in its step {self.after}")
        return super().step(action)
