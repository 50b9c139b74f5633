"""An environment that writes down every step, in a file for each process."""

from __future__ import annotations

import os
from typing import Any

from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Counting(CartPoleEnv):  # type: ignore[misc,unused-ignore]
    """CartPole; the learner's, which only evaluates, writes nothing."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        name = os.path.join(os.environ["COUNT_FOLDER"], str(os.getpid()))
        self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def step(self, action: Any) -> Any:
        os.write(self._file, b".")
        return super().step(action)

    def close(self) -> None:
        os.close(self._file)
        super().close()
