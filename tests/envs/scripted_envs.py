"""Environments whose every observation and reward is known beforehand."""

from __future__ import annotations

import os

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env):
    """Observes (episode, step); the reward tells both and the action; ends as its script says.

    The script is a list of (length, end), used over and over; an end is "terminated",
    "truncated" or "both".  Episodes are counted from 0 by resets.
    """

    def __init__(self, script=((3, "terminated"),), action_space=None) -> None:
        self.script = script
        self.observation_space = spaces.Box(-1.0, 1e6, (2,), np.float32)
        self.action_space = action_space or spaces.Discrete(3)
        self.actions = []
        self.episode = -1

    def observe(self):
        return np.array([self.episode, self.elapsed], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.elapsed = 0
        return self.observe(), {"first": True}

    def step(self, action):
        self.actions.append(action)
        self.elapsed += 1
        length, end = self.script[self.episode % len(self.script)]
        over = self.elapsed == length
        reward = 100.0 * self.episode + 10.0 * self.elapsed + float(np.sum(action))
        ended = over and end in ("terminated", "both"), over and end in ("truncated", "both")
        return self.observe(), reward, *ended, {"elapsed": self.elapsed}


class NestedCounting(Counting):
    """The same behind a Dict that holds a Tuple."""

    def __init__(self, script=((3, "terminated"),)) -> None:
        super().__init__(script)
        pair = spaces.Tuple((spaces.Discrete(10_000), spaces.Box(0.0, 1e6, (1,), np.float32)))
        self.observation_space = spaces.Dict({"pair": pair, "step": spaces.Box(0.0, 1e6, (1,), np.float32)})

    def observe(self):
        step = np.array([self.elapsed], np.float32)
        return {"pair": (np.int64(self.episode), step), "step": step}


class Noise(gymnasium.Env):
    """The first observation is drawn from the seed; ends after as many steps as the action says."""

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(10)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.elapsed = 0
        return self.np_random.random(3, np.float32), {}

    def step(self, action):
        self.elapsed += 1
        return self.np_random.random(3, np.float32), 1.0, self.elapsed > action, False, {}


class Dying(Counting):
    """Ends its whole process in its second step."""

    def step(self, action):
        if self.elapsed == 1:
            os._exit(7)
        return super().step(action)


class Bad(Counting):
    """Gives a reward or observation that is not finite in its second step."""

    def __init__(self, what="reward") -> None:
        super().__init__()
        self.what = what

    def step(self, action):
        obs, reward, *rest = super().step(action)
        if self.elapsed == 2:
            obs, reward = (obs, np.nan) if self.what == "reward" else (obs * np.inf, reward)
        return obs, reward, *rest
