"""Returns are counted at the innermost environment, between its own resets, whatever stands around it."""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from engine.envs.make import make_env
from engine.envs.process import ProcessVectorEnv
from engine.envs.vector import VectorEnv
from engine.middleware.functional.collect import EpisodeWindow
from engine.middleware.functional.evaluate import run_episodes


class Diary(gymnasium.Env):
    """Keeps the sums of its own rewards between its own resets: the oracle of these tests."""

    length = 5

    def __init__(self, reward=float):
        self.observation_space = spaces.Box(-10.0, 10.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.reward, self.sums, self.sum, self.elapsed, self.drawn = reward, [], 0.0, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.elapsed:
            self.sums.append(self.sum)
        self.sum, self.elapsed = 0.0, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.elapsed += 1
        self.drawn += 1
        reward = self.reward(self.drawn % 7)
        self.sum += float(reward)
        over = self.elapsed >= self.length
        return np.full(1, self.elapsed, np.float32), reward, over, False, {}


class Half(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 0.5 * float(reward)


class Lives(gymnasium.Wrapper):
    """Ends an episode after two steps, and resets the environment only when that has really ended."""

    real, taken = True, 0

    def reset(self, **kwargs):
        self.taken = 0
        if self.real:
            obs, info = self.env.reset(**kwargs)
        else:
            obs, _, self.real, _, info = self.env.step(0)
            if self.real:
                obs, info = self.env.reset(**kwargs)
        self.real = False
        return obs, info

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.taken += 1
        self.real = terminated
        return obs, reward, terminated or self.taken == 2, truncated, info


class Doubled(gymnasium.Wrapper):
    """Pays everything twice; reads an attribute of what it stands on, and looks ahead in a copy."""

    def step(self, action):
        ahead = copy.deepcopy(self.env)
        for _ in range(3):
            ahead.step(action)
        assert self.env.length == Diary.length
        obs, reward, *rest = self.env.step(action)
        return obs, 2 * reward, *rest


class Warmed(gymnasium.Wrapper):
    """Plays two steps inside every reset: they belong to the innermost environment's return."""

    def reset(self, **kwargs):
        self.env.reset(**kwargs)
        for _ in range(2):
            obs, *_, info = self.env.step(0)
        return obs, info


class Opaque(gymnasium.Env):
    """Stands around an environment without being a gymnasium.Wrapper."""

    def __init__(self, env):
        self.inner, self.observation_space, self.action_space = env, env.observation_space, env.action_space

    def reset(self, *, seed=None, options=None):
        return self.inner.reset(seed=seed)

    def step(self, action):
        obs, _, *rest = self.inner.step(action)
        return obs, 0.0, *rest


class Unseen(gymnasium.Wrapper):
    """Passes its step on to the very innermost environment, past what lies between."""

    def step(self, action):
        obs, reward, *rest = self.unwrapped.step(action)
        return obs, -reward, *rest


WRAPPERS = {
    "rewards": ["NormalizeReward"],
    "half": [Half],
    "lives": [Lives],
    "lives under rewards": [Lives, Half],
    "look ahead": [Doubled],
    "steps in resets": [Warmed],
    "no gymnasium.Wrapper": [Opaque],
    "straight to the innermost": [Half, Unseen],
    "limit": [{"wrapper": "TimeLimit", "max_episode_steps": 3}],
    "limit and rewards": [{"wrapper": "TimeLimit", "max_episode_steps": 3}, "NormalizeReward"],
    "several": [
        "RecordEpisodeStatistics",
        Half,
        "NormalizeReward",
        {"wrapper": "FrameStackObservation", "stack_size": 2},
    ],
}


def diaries(env):
    """The innermost environments of a sync vector environment, found without the engine's help."""
    found = []
    for layer in env.env.unwrapped.envs:
        while not isinstance(layer, Diary):
            layer = getattr(layer, "inner", None) or layer.env
        found.append(layer)
    return found


def play(env, steps):
    """Step it; return the returns of each environment, and the wrapped ones."""
    returns, wrapped = [[] for _ in range(env.num_envs)], [[] for _ in range(env.num_envs)]
    env.reset()
    for _ in range(steps):
        step = env.step(np.zeros(env.num_envs, np.int64))
        for episode in step.episodes:
            returns[episode.index].append(episode.return_)
        for episode in step.wrapped:
            wrapped[episode.index].append(episode.return_)
    return returns, wrapped


@pytest.mark.parametrize("reward", [float, int, np.float32, np.int64], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("wrappers", WRAPPERS.values(), ids=WRAPPERS)
def test_returns_are_what_the_innermost_environment_paid_between_its_resets(wrappers, reward):
    with make_env(Diary, num_envs=3, wrappers=wrappers, kwargs={"reward": reward}) as env:
        returns, wrapped = play(env, 41)
        paid = [diary.sums for diary in diaries(env)]
        assert returns == paid
        assert all(len(sums) >= 5 for sums in paid)
        assert all(wrapped)
        assert "Diary itself" in env.about_returns


@pytest.mark.parametrize("wrappers", [WRAPPERS[name] for name in ("half", "lives", "limit and rewards")])
def test_processes_count_the_same_returns(wrappers):
    seen = []
    for vectorization in ("sync", "process"):
        with make_env(Diary, num_envs=2, wrappers=wrappers, vectorization=vectorization) as env:
            seen.append((*play(env, 23), env.wrappers, [env.running(index) for index in range(2)]))
    assert seen[0] == seen[1]
    assert seen[0][0][0]
    assert seen[0][1][0]


def test_processes_of_a_users_own_makers_count_too():
    with VectorEnv(ProcessVectorEnv([lambda: Half(Diary())] * 2)) as env:
        returns, wrapped = play(env, 11)
        assert env.wrappers == ("Half",)
        assert [[0.5 * value for value in values] for values in returns] == wrapped
        assert returns[0] == [15.0, 6.0 + 0.0 + 1.0 + 2.0 + 3.0]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_all_autoreset_modes_count_the_same_returns(mode):
    raw = SyncVectorEnv([lambda: Half(Diary())] * 2, autoreset_mode=mode)
    env = VectorEnv(raw)
    returns, wrapped = play(env, 40)
    assert returns == [diary.sums for diary in diaries(env)]
    assert len(returns[0]) >= 6
    assert [2 * value for value in wrapped[0][: len(returns[0])]] == returns[0]


class Native(gymnasium.vector.VectorEnv):
    """A vectorised class with environments that nothing outside it can see."""

    def __init__(self, mode):
        self._hidden = SyncVectorEnv([Diary] * 2, autoreset_mode=mode)
        self.num_envs, self.metadata = 2, self._hidden.metadata
        self.single_observation_space = self._hidden.single_observation_space
        self.single_action_space = self._hidden.single_action_space
        self.observation_space, self.action_space = self._hidden.observation_space, self._hidden.action_space

    def reset(self, *, seed=None, options=None):
        return self._hidden.reset(seed=seed, options=options)

    def step(self, actions):
        return self._hidden.step(actions)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_native_classes_under_vector_wrappers_are_counted_below_them(mode):
    native = Native(mode)
    env = VectorEnv(gymnasium.wrappers.vector.NormalizeReward(native))
    returns, wrapped = play(env, 40)
    assert returns == [diary.sums for diary in native._hidden.envs]
    assert len(returns[0]) >= 6
    assert wrapped[0] != returns[0]
    assert env.wrappers == ("NormalizeReward",)


def test_a_native_class_counts_what_it_did_without_wrappers():
    plain = VectorEnv(gymnasium.make_vec("CartPole-v1", 4, "vector_entry_point"), seed=3)
    raw = gymnasium.make_vec("CartPole-v1", 4, "vector_entry_point")
    want, none = play(plain, 120)
    returns, _ = play(VectorEnv(gymnasium.wrappers.vector.NormalizeReward(raw), seed=3), 120)
    # The count sees an end by the reset, one call after the step that ended.
    assert all(have == all_[: len(have)] and len(have) >= 3 for have, all_ in zip(returns, want, strict=True))
    assert none == [[]] * 4
    assert plain.about_returns is None


def test_vector_wrappers_over_single_environments_are_counted_below_both():
    raw = SyncVectorEnv([Diary] * 2, autoreset_mode=AutoresetMode.DISABLED)
    env = VectorEnv(gymnasium.wrappers.vector.TransformReward(raw, lambda reward: -reward))
    returns, wrapped = play(env, 11)
    assert returns == [diary.sums for diary in diaries(env)]
    assert [[-value for value in values] for values in wrapped] == returns


@pytest.mark.parametrize(
    "wrappers",
    [
        [],
        ["RecordEpisodeStatistics"],
        [{"wrapper": "FrameStackObservation", "stack_size": 2}],
        [{"wrapper": "engine.envs.wrappers:RepeatAction", "repeat": 2}],
    ],
)
def test_wrappers_that_change_no_reward_cost_and_say_nothing(wrappers):
    with make_env(Diary, num_envs=2, wrappers=wrappers) as env:
        returns, wrapped = play(env, 12)
        assert env.wrappers == ()
        assert env.about_returns is None
        assert wrapped == [[], []]
        assert returns == [diary.sums for diary in diaries(env)]
        assert all("step" not in vars(diary) for diary in diaries(env))


def test_the_time_limit_of_a_registered_environment_is_part_of_it():
    with make_env("CartPole-v1", num_envs=2, vectorization="sync") as env:
        assert env.wrappers == ()
    with make_env("CartPole-v1", wrappers=[{"wrapper": "TimeLimit", "max_episode_steps": 9}]) as env:
        assert env.wrappers == ("TimeLimit",)


def test_an_environment_that_wraps_another_by_itself_is_the_innermost():
    class Mine(Opaque):
        def __init__(self):
            super().__init__(Half(Diary()))

        def step(self, action):
            obs, reward, *rest = self.inner.step(action)
            return obs, reward + 1.0, *rest

    with make_env(Mine, num_envs=1) as env:
        returns, _ = play(env, 5)
        assert returns == [[0.5 * sum(range(1, 6)) + 5.0]]
        assert env.wrappers == ()


def test_an_evaluation_counts_whole_games_that_began_in_it():
    with make_env(Diary, num_envs=2, wrappers=[Lives]) as env:
        for _ in range(3):
            before = [len(diary.sums) for diary in diaries(env)]
            env.reset()
            env.step(np.zeros(2, np.int64))  # a game under way when the next evaluation begins
            episodes = run_episodes(lambda obs: np.zeros(2, np.int64), env, 4)
            assert len(episodes) == 4
            paid = [
                sums for diary, start in zip(diaries(env), before, strict=True) for sums in diary.sums[start:]
            ]
            assert all(episode.return_ in paid for episode in episodes)
            assert all(episode.return_ >= 1 + 2 + 3 for episode in episodes)  # five of seven rewards
            # The agent takes four steps of a game: the wrapper takes the third of five, in its own reset.
            assert [episode.length for episode in episodes] == [4] * 4


def test_the_window_shows_wrapped_returns_beside_the_others():
    metrics = {}
    with make_env(Diary, num_envs=1, wrappers=[Half]) as env:
        window = EpisodeWindow()
        env.reset()
        for _ in range(5):
            step = env.step(np.zeros(1, np.int64))
        window.add(step.episodes, metrics, wrapped=step.wrapped)
    assert metrics == {
        "collect/return_mean": 15.0,
        "collect/length_mean": 5.0,
        "collect/wrapped_return_mean": 7.5,
    }
