"""The optima that the toy environments promise."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check

from engine.envs import toy
from engine.envs.make import make_env


def play(name, choose, calls=8):
    with make_env(f"engine.envs.toy:{name}", num_envs=3) as env:
        obs = env.reset()
        for _ in range(calls):
            step = env.step(choose(obs))
            obs = step.obs
    return [episode.return_ for episode in step.episodes]


def test_naming_what_is_shown_reaches_the_optimum_of_dict_env():
    assert play("DictEnv", lambda obs: obs["shown"].argmax(1)) == [toy.DictEnv.optimal_return] * 3


def test_naming_what_is_shown_reaches_the_optimum_of_tuple_env():
    assert play("TupleEnv", lambda obs: obs["item_0"]) == [toy.TupleEnv.optimal_return] * 3


def test_hitting_the_target_reaches_the_optimum():
    assert play("ContinuousTargetEnv", lambda obs: obs) == [toy.ContinuousTargetEnv.optimal_return] * 3


def test_a_constant_reward_is_truncated_and_never_terminated():
    with make_env(lambda: toy.ConstantRewardEnv(length=3)) as env:
        env.reset()
        steps = [env.step(np.zeros(1, int)) for _ in range(3)]
    assert [bool(step.terminated[0]) for step in steps] == [False] * 3
    assert [bool(step.truncated[0]) for step in steps] == [False, False, True]
    assert steps[-1].episodes[0].return_ == 3.0


@pytest.mark.parametrize("env", [toy.DictEnv, toy.TupleEnv, toy.ConstantRewardEnv, toy.ContinuousTargetEnv])
def test_toys_obey_gymnasium(env):
    gymnasium_check(env(), skip_render_check=True)
