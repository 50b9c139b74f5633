"""Wrappers whose running statistics change observations are refused; others are not."""

from __future__ import annotations

from collections import deque

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, TransformObservation
from gymnasium.wrappers.utils import RunningMeanStd

from engine.envs.config import EnvConfig
from engine.envs.make import check_env, make_env
from engine.envs.process import ProcessVectorEnv
from engine.envs.vector import VectorEnv
from engine.errors import EnvError


class Mine(NormalizeObservation):
    """A subclass, under another name."""


class Welford(gymnasium.ObservationWrapper):
    """Statistics written by hand, under names that tell nothing."""

    def __init__(self, env):
        super().__init__(env)
        self.a, self.b, self.c = (
            0,
            np.zeros(env.observation_space.shape),
            np.ones(env.observation_space.shape),
        )

    def observation(self, obs):
        self.a += 1
        difference = obs - self.b
        self.b = self.b + difference / self.a
        self.c = self.c + difference * (obs - self.b)
        return ((obs - self.b) / np.sqrt(self.c / self.a + 1e-8)).astype(np.float32)


class Stepping(gymnasium.Wrapper):
    """Writes its own step and reset; its statistics begin with the first observation."""

    mean = None

    def __init__(self, env):
        super().__init__(env)
        self.running = None

    def _scaled(self, obs):
        self.running = obs if self.running is None else 0.99 * self.running + 0.01 * obs
        return obs - self.running

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return self._scaled(obs), info

    def step(self, action):
        obs, *rest = self.env.step(action)
        return self._scaled(obs), *rest


class Borrowed(gymnasium.Wrapper):
    """Works on its very environment alone, so that it cannot be tried; what it holds is told by its kind."""

    def __init__(self, env):
        super().__init__(env)
        self.obs_rms = RunningMeanStd(shape=env.observation_space.shape)

    def step(self, action):
        assert self.env.unwrapped.gravity
        obs, *rest = self.env.step(action)
        self.obs_rms.update(obs[None])
        return obs - self.obs_rms.mean, *rest


def closure(env):
    """gymnasium's own wrapper around a function that remembers."""
    seen = RunningMeanStd(shape=env.observation_space.shape)

    def scale(obs):
        seen.update(np.asarray(obs)[None])
        return (obs - seen.mean).astype(np.float32)

    return TransformObservation(env, scale, env.observation_space)


def factory():
    """An environment that is made with such a wrapper."""
    return NormalizeObservation(gymnasium.make("CartPole-v1"))


class Holding(gymnasium.Env):
    """Plays another environment behind its own face."""

    def __init__(self):
        self.inner = factory()
        self.observation_space, self.action_space = self.inner.observation_space, self.inner.action_space

    def reset(self, *, seed=None, options=None):
        return self.inner.reset(seed=seed)

    def step(self, action):
        return self.inner.step(action)


class Fixed(gymnasium.ObservationWrapper):
    """The mean and the deviation of a data set, which stay what they are."""

    mean, std = np.arange(4.0), np.full(4, 2.0)

    def observation(self, obs):
        return ((obs - self.mean) / self.std).astype(np.float32)


class Stack(gymnasium.ObservationWrapper):
    """Forgets what is older than four frames, and does not even forget it at a reset."""

    def __init__(self, env):
        super().__init__(env)
        self.frames = deque(maxlen=4)

    def observation(self, obs):
        self.frames.append(obs)
        return np.mean(self.frames, axis=0, dtype=np.float32)


class Noisy(gymnasium.ObservationWrapper):
    """Noise from a generator of its own, from numpy's, and from the environment's."""

    def __init__(self, env):
        super().__init__(env)
        self.generator = np.random.default_rng(3)

    def observation(self, obs):
        noise = self.generator.normal(size=4) + np.random.normal(size=4) + self.np_random.normal(size=4)
        return (obs + noise).astype(np.float32)


class Unseeded(gymnasium.ObservationWrapper):
    """Noise that no seed repeats."""

    def observation(self, obs):
        return (obs + np.random.default_rng().normal(size=4)).astype(np.float32)


class Telling(gymnasium.ObservationWrapper):
    """Says how often it was called in all."""

    calls = 0

    def observation(self, obs):
        Telling.calls += 1
        print("seen")
        return obs


class RewardStatistics(gymnasium.Wrapper):
    """Running statistics, of rewards."""

    def __init__(self, env):
        super().__init__(env)
        self.running = RunningMeanStd(shape=())

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        self.running.update(np.array([reward]))
        return obs, float(reward / np.sqrt(self.running.var + 1e-8)), *rest


class Watching(gymnasium.Wrapper):
    """Keeps statistics of observations for a look at them, and changes nothing."""

    def __init__(self, env):
        super().__init__(env)
        self.obs_mean, self.count = np.zeros(4), 0

    def step(self, action):
        obs, *rest = self.env.step(action)
        self.count += 1
        self.obs_mean += (obs - self.obs_mean) / self.count
        return obs, *rest


def frozen(env):
    """Statistics that were found once and no longer run."""
    wrapped = NormalizeObservation(env)
    wrapped.update_running_mean = False
    return wrapped


REFUSED = [
    "NormalizeObservation",
    {"wrapper": "NormalizeObservation", "epsilon": 1e-4},
    Mine,
    Welford,
    Stepping,
    Borrowed,
    closure,
]
ALLOWED = ["NormalizeReward", Fixed, Stack, Noisy, Unseeded, RewardStatistics, Watching, frozen,
           {"wrapper": "FrameStackObservation", "stack_size": 4}, "FlattenObservation"]  # fmt: skip


@pytest.mark.parametrize("wrapper", REFUSED, ids=str)
def test_running_statistics_of_observations_are_refused_with_the_reason(wrapper):
    for inside in ([wrapper], [wrapper, "NormalizeReward"]):
        with pytest.raises(EnvError, match=r"no policy saves.*NormalizeReward is allowed"):
            make_env("CartPole-v1", wrappers=inside, num_envs=2)


@pytest.mark.parametrize("wrapper", ALLOWED, ids=str)
def test_what_keeps_no_running_statistics_of_observations_is_let_through(wrapper):
    with make_env("CartPole-v1", wrappers=[wrapper], num_envs=2, seed=1) as env:
        env.reset()
        assert np.isfinite(env.step(np.zeros(2, int)).reward).all()


def test_trying_a_wrapper_changes_nothing_in_it():
    before = np.random.get_state()[1].copy()
    with make_env("CartPole-v1", wrappers=[Stack], num_envs=1, vectorization="sync") as env:
        stack = env.env.envs[0].env
        assert not stack.frames
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_the_wrappers_of_one_copy_are_tried_in_silence_whatever_num_envs_is(capsys):
    calls = []
    for num_envs in (1, 8):
        Telling.calls = 0
        make_env("CartPole-v1", wrappers=[Telling], num_envs=num_envs, vectorization="sync").close()
        calls.append(Telling.calls)
    assert calls[0] == calls[1] > 0
    assert capsys.readouterr().out == ""


def test_processes_refuse_them_too():
    with pytest.raises(EnvError, match="Welford around") as caught:
        make_env("CartPole-v1", wrappers=[Welford], num_envs=2, vectorization="process")
    assert not any("Traceback" in note for note in caught.value.__notes__)


def test_they_are_refused_wherever_they_hide():
    with pytest.raises(EnvError, match="NormalizeObservation around"):
        make_env(factory)
    with pytest.raises(EnvError, match="NormalizeObservation around"):
        make_env(factory, vectorization="process")
    with pytest.raises(EnvError, match="NormalizeObservation around"):
        make_env(Holding)
    with pytest.raises(EnvError, match="NormalizeObservation around CartPole"):
        check_env(EnvConfig(id="CartPole-v1", wrappers=["NormalizeObservation"]))
    with pytest.raises(EnvError, match="NormalizeObservation around"):
        VectorEnv(SyncVectorEnv([factory]))
    with pytest.raises(EnvError, match="NormalizeObservation around"):
        ProcessVectorEnv([factory])
    raw = gymnasium.make_vec("CartPole-v1", 4, "vector_entry_point")
    with pytest.raises(EnvError, match="NormalizeObservation around"):
        VectorEnv(gymnasium.wrappers.vector.NormalizeObservation(raw))
