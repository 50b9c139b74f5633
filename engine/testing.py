"""Fakes with behaviour, for our tests and yours: environments, policies and clocks on a script."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from engine.context import Context, Middleware
from engine.envs.vector import VectorEnv
from engine.task import Task
from engine.types import Arrays


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True)
class Script:
    """One episode: its rewards, and how it ends after the last one."""

    rewards: Sequence[float]
    end: Literal["terminated", "truncated", "both"] = "terminated"


class ScriptedEnv(gymnasium.Env):  # type: ignore[misc,type-arg,unused-ignore]
    """Plays the given episodes over and over, whatever the action; it remembers the actions.

    The observation is (episode, t): float32 (2,), so that every transition can be told apart.
    """

    def __init__(self, episodes: Sequence[Script]) -> None:
        self.episodes = list(episodes)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.actions: list[Any] = []
        self._episode = -1
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._episode += 1
        self._t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        script = self.episodes[self._episode % len(self.episodes)]
        self.actions.append(action)
        reward = script.rewards[self._t]
        self._t += 1
        over = self._t == len(script.rewards)
        terminated = over and script.end in ("terminated", "both")
        truncated = over and script.end in ("truncated", "both")
        return self._obs(), float(reward), terminated, truncated, {}

    def _obs(self) -> Any:
        return np.array([self._episode, self._t], np.float32)


def scripted_env(*episodes: Sequence[Script], autoreset: AutoresetMode = AutoresetMode.DISABLED) -> VectorEnv:
    """Return a `VectorEnv` with one `ScriptedEnv` for each sequence of episodes."""
    makers: list[Callable[[], Any]] = [functools.partial(ScriptedEnv, script) for script in episodes]
    return VectorEnv(SyncVectorEnv(makers, autoreset_mode=autoreset), name="scripted")


class CountingActor:
    """Acts 0, 1, 0, 1, ... and counts what it is asked."""

    def __init__(self) -> None:
        self.version = 0
        self.epsilon = 0.0
        self.sampled = 0
        self.acted = 0

    def sample(self, obs: Arrays) -> dict[str, Arrays]:
        self.sampled += 1
        return {"action": np.full(_rows(obs), self.sampled % 2, np.int64)}

    def act(self, obs: Arrays) -> Arrays:
        self.acted += 1
        return np.zeros(_rows(obs), np.int64)

    def load(self, policy: Any) -> None:
        self.version = policy.version

    def take_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self.version = version


class CountingPolicy:
    """Learns nothing and keeps every batch; its version counts them."""

    def __init__(self) -> None:
        self.version = 0
        self.progress = 0.0
        self.batches: list[Any] = []

    def act(self, obs: Any, *, deterministic: bool = False) -> Any:
        return 0

    def learn(self, batch: Any) -> dict[str, float]:
        self.batches.append(batch)
        self.version += 1
        return {"train/loss": 1.0 / self.version}

    def set_progress(self, fraction: float) -> None:
        self.progress = fraction

    def actor(self, generator: np.random.Generator) -> CountingActor:
        return CountingActor()

    def weights(self) -> Mapping[str, Any]:
        return {"parameters": np.full(1, self.version)}

    def state_dict(self) -> Mapping[str, Any]:
        return {"version": self.version}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.version = state_dict["version"]


def record(log: list[str], name: str, *, error: BaseException | None = None) -> Middleware:
    """Return a yielding middleware that writes ``name>`` on the way in and ``<name`` on the way out.

    With `error`, it raises that on the way in instead of yielding; an error from further in is
    written as ``name!ErrorType`` and passed on.
    """

    def record(ctx: Context) -> Iterator[None]:
        log.append(f"{name}>")
        if error is not None:
            raise error
        try:
            yield
        except BaseException as inner:
            log.append(f"{name}!{type(inner).__name__}")
            raise
        log.append(f"<{name}")

    return record


def jitter(task: Task, *, seed: int, most: int = 20) -> None:
    """Let every middleware of a task take a random while before and after its first half.

    Overlapped, a run must give the same numbers with any seed: nothing may depend on which
    station is quicker.  It gives way to other threads up to `most` times, and does not sleep.
    """
    dice: dict[str | None, random.Random] = {}

    def wait(ctx: Context) -> None:
        own = dice.setdefault(ctx.running, random.Random(f"{seed} {ctx.running}"))
        for _ in range(own.randrange(most) if own.random() < 0.5 else 0):
            time.sleep(0)

    task.before("*", wait).after("*", wait)


def _rows(obs: Arrays) -> int:
    while isinstance(obs, dict):
        obs = next(iter(obs.values()))
    return int(obs.shape[0])
