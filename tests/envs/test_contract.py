"""An environment that breaks gymnasium's contract is told by class, what was expected, and what came."""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from engine.envs.make import make_env
from engine.envs.vector import VectorEnv
from engine.errors import EnvError

RIGHT = np.zeros(2, np.float32)


class Broken(gymnasium.Env):
    """Returns what it is told to, right or wrong."""

    def __init__(self, first=None, then=None, space=None):
        self.observation_space = space or spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.first = (RIGHT, {}) if first is None else first
        self.then = (RIGHT, 1.0, False, False, {}) if then is None else then

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.first

    def step(self, action):
        return self.then


class Late(Broken):
    """Breaks the contract in its second step."""

    taken = 0

    def step(self, action):
        self.taken += 1
        return (RIGHT, 1.0, False, False, {}) if self.taken == 1 else (RIGHT, 1.0, False)


class Repairing(gymnasium.Wrapper):
    """Makes five values of four, and a number of an array."""

    def step(self, action):
        obs, reward, done, info = self.env.step(action)
        return obs, float(np.sum(reward)), done, False, info


class Shrinking(gymnasium.ObservationWrapper):
    """Changes the shape and does not say so."""

    def observation(self, obs):
        return obs[:1]


nested = spaces.Dict({"place": spaces.Box(-1.0, 1.0, (2,), np.float32), "room": spaces.Discrete(3)})

BREACHES = {
    "four values": (
        {"then": (RIGHT, 1.0, False, {})},
        r"step\(\) of Broken must return \(observation, reward, terminated, truncated, info\) .* 4 values",
    ),
    "reset without info": (
        {"first": RIGHT},
        r"reset\(\) of Broken must return \(observation, info\), and returned an array of float32 of shape",
    ),
    "reset with None": (
        {"first": (RIGHT, None)},
        r"reset\(\) of Broken must return a dict as the info, .*None",
    ),
    "shape": (
        {"first": (np.zeros(3, np.float32), {})},
        r"reset\(\) of Broken .*Box of float32 of shape \(2,\), and returned .* float32 of shape \(3,\)",
    ),
    "shape in step": (
        {"then": (np.zeros((1, 2), np.float32), 1.0, False, False, {})},
        r"step\(\) of Broken .*returned an array of float32 of shape \(1, 2\)",
    ),
    "dtype": (
        {"first": (np.array([0.5, 0.5]), {}), "space": spaces.Box(0, 255, (2,), np.uint8)},
        r"Box of uint8 of shape \(2,\), and returned an array of float64",
    ),
    "objects": ({"first": (np.array([None, 1.0]), {})}, r"returned an array of object"),
    "words": ({"first": ("ab", {})}, r"returned 'ab', a str"),
    "outside a Discrete": (
        {"first": (7, {}), "space": spaces.Discrete(3)},
        r"Discrete\(3\), and returned 7, a int",
    ),
    "array reward": (
        {"then": (RIGHT, np.ones(1), False, False, {})},
        r"step\(\) of Broken must return one number as the reward, and .* float64 of shape \(1,\)",
    ),
    "no reward": ({"then": (RIGHT, None, False, False, {})}, r"one number as the reward, and returned None"),
    "flags": ({"then": (RIGHT, 1.0, None, False, {})}, r"True or False as terminated, and returned None"),
    "array flag": (
        {"then": (RIGHT, 1.0, False, np.array([True]), {})},
        r"True or False as truncated, and returned an array",
    ),
    "info": ({"then": (RIGHT, 1.0, False, False, [])}, r"a dict as the info, and returned a list of 0"),
    "missing key": (
        {"first": ({"place": RIGHT}, {}), "space": nested},
        r"an observation with the key 'room', and returned one with \['place'\]",
    ),
    "inner shape": (
        {"first": ({"place": RIGHT[:1], "room": 0}, {}), "space": nested},
        r"observation place of its space Box .* returned an array of float32 of shape \(1,\)",
    ),
}


def act(env):
    env.reset()
    return env.step(np.zeros(env.num_envs, int))


@pytest.mark.parametrize(
    "wrappers", [[], ["NormalizeReward", {"wrapper": "TimeLimit", "max_episode_steps": 9}]]
)
@pytest.mark.parametrize(("kwargs", "words"), BREACHES.values(), ids=BREACHES)
def test_a_breach_names_the_class_what_was_expected_and_what_came(kwargs, words, wrappers):
    with (
        make_env(Broken, kwargs=kwargs, wrappers=wrappers, num_envs=2) as env,
        pytest.raises(EnvError, match=words),
    ):
        act(env)


def test_processes_and_vector_environments_of_ones_own_tell_it_too():
    kwargs, words = BREACHES["four values"]
    for env in (
        make_env(Broken, kwargs=kwargs, vectorization="process"),
        VectorEnv(SyncVectorEnv([lambda: Broken(**kwargs)])),
    ):
        with env, pytest.raises(EnvError, match=words):
            act(env)


class Unseedable(Broken):
    """As before gymnasium had seeds in `reset`."""

    def reset(self):
        return self.first


class Spaceless(gymnasium.Env):
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)


def test_a_reset_without_seed_is_told_with_what_it_must_take():
    words = r"reset of Unseedable must take \(\*, seed=None, options=None\), and takes \(\)"
    for wrappers in ([], [Repairing, "NormalizeReward"]):
        with make_env(Unseedable, wrappers=wrappers) as env, pytest.raises(EnvError, match=words):
            env.reset()


def test_an_environment_without_a_space_is_told_before_wrappers_fail():
    with pytest.raises(EnvError, match=r"Spaceless has no action_space; set self\.action_space"):
        make_env(Spaceless, wrappers=["NormalizeReward"])


def test_doctor_is_recommended_for_environments_and_not_for_wrappers():
    with (
        make_env("CartPole-v1", wrappers=[Shrinking]) as env,
        pytest.raises(EnvError, match="of Shrinking must") as caught,
    ):
        env.reset()
    assert "doctor" not in str(caught.value)


def test_a_wrapper_may_mend_what_it_stands_on():
    kwargs = {"then": (RIGHT, np.ones(1), False, {})}
    with make_env(Broken, kwargs=kwargs, wrappers=[Repairing]) as env:
        assert act(env).reward[0] == 1.0


def test_the_wrapper_that_breaks_the_contract_is_named():
    with (
        make_env(Broken, wrappers=[Shrinking, "NormalizeReward"]) as env,
        pytest.raises(EnvError, match=r"reset\(\) of Shrinking .*shape \(2,\), and returned .*shape \(1,\)"),
    ):
        act(env)


@pytest.mark.parametrize("right", [
    {"then": (RIGHT, 1, np.bool_(False), 0, {})},
    {"then": (RIGHT.astype(np.float64), np.float64(1.0), False, False, {})},
    {"then": (RIGHT, np.array(1.0), False, False, {})},
    {"first": ([0.0, 0.0], {})},
    {"first": ({"place": RIGHT, "room": np.int64(2), "more": "words"}, {}),
     "then": ({"place": RIGHT, "room": 1}, 0.0, False, False, {}), "space": nested},
])  # fmt: skip
def test_what_numpy_takes_without_loss_is_let_through(right):
    with make_env(Broken, kwargs=right, num_envs=2) as env:
        assert act(env).valid is None


def test_after_the_first_step_the_environment_has_its_methods_back():
    with make_env("CartPole-v1", vectorization="sync", num_envs=2) as env:
        layers = list(env.env.envs)
        while layers[-1] is not layers[-1].unwrapped:
            layers.append(layers[-1].env)
        env.reset()
        assert any("step" in vars(layer) for layer in layers)
        env.step(np.zeros(2, int))
        env.step(np.zeros(2, int))
        assert not any({"step", "reset"} & vars(layer).keys() for layer in layers)


def test_a_copy_of_an_environment_is_its_own_and_not_watched():
    made = []

    class Ahead(gymnasium.Wrapper):
        def step(self, action):
            ahead = copy.deepcopy(self.env)
            made.append((ahead, self.env))
            ahead.step(action)
            return self.env.step(action)

    with make_env(Late, wrappers=[Ahead]) as env:
        act(env)
    ahead, own = made[0]
    assert ahead is not own
    assert (ahead.taken, own.taken) == (1, 1)


def test_an_error_of_the_environment_itself_stays_what_it_is():
    class Failing(Broken):
        def step(self, action):
            raise RuntimeError("the user's own")

    with make_env(Failing) as env, pytest.raises(RuntimeError, match="the user's own"):
        act(env)


def test_a_vectorised_class_that_gives_too_few_rows_is_named():
    class Flat(gymnasium.vector.VectorEnv):
        metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
        num_envs = 3
        single_observation_space = observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        single_action_space = action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros((3, 2), np.float32), {}

        def step(self, actions):
            return np.zeros((3, 2), np.float32), np.zeros((3, 1)), np.zeros(3, bool), np.zeros(3, bool), {}

    with pytest.raises(
        EnvError, match=r"Flat gave the reward of 3 environments in the shape \(3, 1\), expected \(3,\)"
    ):
        act(VectorEnv(Flat()))
