"""The adapter yields true transitions whatever way gymnasium resets."""

from __future__ import annotations

from itertools import pairwise

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_envs import Bad, Counting, NestedCounting

from engine.envs.make import make_env
from engine.envs.vector import Episode, VectorEnv
from engine.errors import EnvError

MODES = list(AutoresetMode)
ENDS = ("terminated", "truncated", "both")


def over(scripts, mode, *, env_class=Counting, copy=False, **kwargs):
    makers = [lambda script=script: env_class(script, **kwargs) for script in scripts]
    return VectorEnv(SyncVectorEnv(makers, copy=copy, autoreset_mode=mode))


def choose(obs):
    """An action that is a function of the observation, so that dummy rows change nothing."""
    return ((obs[:, 0] + 2 * obs[:, 1]) % 3).astype(np.int64)


def expected_transitions(script, count):
    """Worked out from the script alone: (obs, action, reward, terminated, truncated, next_obs)."""
    out, episode = [], 0
    while len(out) < count:
        length, end = script[episode % len(script)]
        for step in range(length):
            action = (episode + 2 * step) % 3
            reward = 100.0 * episode + 10.0 * (step + 1) + action
            last = step + 1 == length
            terminated = last and end != "truncated"
            truncated = last and end == "truncated"
            out.append(([episode, step], action, reward, terminated, truncated, [episode, step + 1]))
        episode += 1
    return out[:count]


def collect(env, calls):
    """Valid transitions of each environment, and the finished episodes."""
    rows, episodes = [[] for _ in range(env.num_envs)], []
    obs = env.obs
    for _ in range(calls):
        action = choose(obs)
        step = env.step(action)
        for i in range(env.num_envs):
            if step.valid is None or step.valid[i]:
                row = obs[i].tolist(), action[i], step.reward[i], step.terminated[i], step.truncated[i]
                rows[i].append((*row, step.next_obs[i].tolist()))
        episodes += step.episodes
        obs = step.obs
    return rows, episodes


scripts = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(ENDS)), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(scripts=st.lists(scripts, min_size=1, max_size=3), copy=st.booleans())
def test_all_autoreset_modes_give_the_transitions_of_the_script(scripts, copy):
    for mode in MODES:
        rows, episodes = collect(over(scripts, mode, copy=copy), 15)
        for index, script in enumerate(scripts):
            want = expected_transitions(script, len(rows[index]))
            assert rows[index] == want
            lengths = [e.length for e in episodes if e.index == index]
            assert lengths == [script[i % len(script)][0] for i in range(len(lengths))]
            ends = np.cumsum([0, *lengths])
            returns = [sum(row[2] for row in want[a:b]) for a, b in pairwise(ends)]
            assert [e.return_ for e in episodes if e.index == index] == returns


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_no_row_is_a_dummy_where_the_mode_has_none(mode):
    env = over([[(2, "both")]], mode)
    env.reset()
    assert all(env.step(np.zeros(1, int)).valid is None for _ in range(6))


def test_next_step_marks_exactly_the_call_after_an_end_as_invalid():
    env = over([[(2, "terminated")], [(3, "truncated")]], AutoresetMode.NEXT_STEP)
    env.reset()
    valid = [env.step(np.zeros(2, int)).valid for _ in range(6)]
    rows = [[True, True] if row is None else row.tolist() for row in valid]
    assert rows == [[True, True], [True, True], [False, True], [True, False], [True, True], [False, True]]


@pytest.mark.parametrize("mode", MODES)
def test_an_end_of_both_kinds_is_reported_as_terminated_only(mode):
    env = over([[(1, "both")]], mode)
    env.reset()
    step = env.step(np.zeros(1, int))
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([True], [False])


@pytest.mark.parametrize("mode", MODES)
def test_nothing_that_was_given_out_is_written_to_again(mode):
    env = over([[(2, "terminated")], [(3, "both")]], mode, env_class=NestedCounting)
    obs = env.reset()
    kept, copies = [], []
    for _ in range(8):
        step = env.step(np.zeros(2, int))
        arrays = [
            *flat(obs),
            *flat(step.obs),
            *flat(step.next_obs),
            step.reward,
            step.terminated,
            step.truncated,
        ]
        kept += arrays
        copies += [array.copy() for array in arrays]
        obs = step.obs
    for array, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def flat(obs):
    return [leaf for value in obs.values() for leaf in flat(value)] if isinstance(obs, dict) else [obs]


@pytest.mark.parametrize("mode", MODES)
def test_nested_observations_are_dicts_with_the_true_last_one(mode):
    env = over([[(2, "terminated")], [(5, "truncated")]], mode, env_class=NestedCounting)
    env.reset()
    for _ in range(2):
        step = env.step(np.zeros(2, int))
    assert set(step.next_obs) == {"pair", "step"}
    assert step.next_obs["pair"]["item_0"].tolist() == [0, 0]
    assert step.next_obs["pair"]["item_1"].tolist() == [[2.0], [2.0]]
    assert step.next_obs["step"].tolist() == [[2.0], [2.0]]
    first = mode is not AutoresetMode.NEXT_STEP
    assert step.obs["step"].tolist() == [[0.0 if first else 2.0], [2.0]]


def test_the_space_of_nested_observations_is_a_dict_space():
    env = over([[(2, "terminated")]], AutoresetMode.DISABLED, env_class=NestedCounting)
    row = {"pair": {k: v[0] for k, v in env.obs["pair"].items()}, "step": env.obs["step"][0]}
    assert env.single_observation_space.contains(row)


def test_next_obs_is_obs_itself_when_nothing_ended():
    env = over([[(3, "both")]], AutoresetMode.DISABLED)
    env.reset()
    step = env.step(np.zeros(1, int))
    assert step.next_obs is step.obs
    assert step.episodes == ()


def test_dtypes_are_those_of_the_conventions():
    env = over([[(1, "terminated")]], AutoresetMode.NEXT_STEP)
    env.reset()
    for _ in range(2):
        step = env.step(np.zeros(1, int))
        kinds = [step.reward.dtype, step.terminated.dtype, step.truncated.dtype, step.obs.dtype]
        assert kinds == [np.float32, np.bool_, np.bool_, np.float32]


def test_discrete_actions_are_counted_from_zero():
    env = over([[(9, "both")]], AutoresetMode.DISABLED, action_space=spaces.Discrete(3, start=5))
    env.reset()
    env.step(np.array([0]))
    env.step(np.array([2]))
    assert env.env.envs[0].actions == [5, 7]


def test_box_actions_are_clipped_and_the_callers_array_is_left_alone():
    space = spaces.Box(-1.0, 2.0, (2,), np.float32)
    env = over([[(9, "both")]], AutoresetMode.DISABLED, action_space=space)
    env.reset()
    action = np.array([[-5.0, 5.0]], np.float32)
    env.step(action)
    assert env.env.envs[0].actions[0].tolist() == [-1.0, 2.0]
    assert action.tolist() == [[-5.0, 5.0]]


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)])
def test_multi_actions_pass_through(space):
    env = over([[(9, "both")]], AutoresetMode.DISABLED, action_space=space)
    env.reset()
    env.step(np.array([[1, 1]]))
    assert env.env.envs[0].actions[0].tolist() == [1, 1]


def test_episodes_are_numbered_in_order_of_start_and_by_index():
    env = over([[(3, "both")], [(2, "both")], [(2, "both")]], AutoresetMode.DISABLED)
    env.reset()
    episodes = [e for _ in range(4) for e in env.step(np.zeros(3, int)).episodes]
    assert [(e.index, e.id, e.length) for e in episodes] == [
        (1, 1, 2),
        (2, 2, 2),
        (0, 0, 3),
        (1, 3, 2),
        (2, 4, 2),
    ]
    assert isinstance(episodes[0], Episode)


def test_returns_are_summed_in_double_precision():
    env = over([[(400, "truncated")]], AutoresetMode.DISABLED)
    rewards = [10.0 * (i + 1) + 0.1 for i in range(400)]
    env.env.envs[0].step = scripted_rewards(env.env.envs[0].step, rewards)
    env.reset()
    episodes = [e for _ in range(400) for e in env.step(np.zeros(1, int)).episodes]
    assert episodes[0].return_ == pytest.approx(sum(rewards), rel=1e-12)


def scripted_rewards(step, rewards):
    numbers = iter(rewards)

    def scripted(action):
        obs, _, *rest = step(action)
        return obs, next(numbers), *rest

    return scripted


class SameStepNative(gymnasium.vector.VectorEnv):
    """Writes into its own buffers and batches the last observations, as native classes do."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    num_envs = 2
    single_observation_space = spaces.Box(-10.0, 10.0, (1,), np.float32)
    single_action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.seeds = seed
        self.buffer = np.zeros((2, 1), np.float32)
        return self.buffer, {}

    def step(self, actions):
        self.buffer += 1
        final = self.buffer.copy()
        over = self.buffer[:, 0] == [2, 3]
        self.buffer[over] = 0
        return self.buffer, np.ones(2), over, np.zeros(2, bool), {"final_obs": final}


def test_a_native_class_with_batched_final_observations_is_read():
    env = VectorEnv(SameStepNative())
    env.reset()
    steps = [env.step(np.zeros(2, int)) for _ in range(3)]
    assert [step.next_obs.ravel().tolist() for step in steps] == [[1, 1], [2, 2], [1, 3]]
    assert [step.obs.ravel().tolist() for step in steps] == [[1, 1], [0, 2], [1, 0]]


def test_a_native_class_is_seeded_once_and_says_so():
    env = VectorEnv(SameStepNative(), seed=3)
    env.reset()
    assert isinstance(env.env.seeds, int)
    assert "num_envs=2 only" in env.episodes_seeded
    assert [e.seed for _ in range(3) for e in env.step(np.zeros(2, int)).episodes] == [None, None]


def test_a_vector_env_that_hides_its_mode_is_refused():
    env = SameStepNative()
    env.metadata = {}
    with pytest.raises(EnvError, match="autoreset_mode"):
        VectorEnv(env)


def test_a_single_environment_is_refused_with_the_way_out():
    with pytest.raises(EnvError, match="make_env"):
        VectorEnv(Counting())


@pytest.mark.parametrize("what", ["reward", "observation"])
def test_numbers_that_are_not_finite_are_refused_with_the_index(what):
    makers = [lambda: Counting(((9, "both"),)), lambda: Bad(what)]
    env = VectorEnv(
        SyncVectorEnv(makers, observation_mode="different", autoreset_mode=AutoresetMode.DISABLED)
    )
    env.reset()
    env.step(np.zeros(2, int))
    with pytest.raises(EnvError, match=f"{what}.* environment 1"), np.errstate(all="ignore"):
        env.step(np.zeros(2, int))


class Wide(Counting):
    """Float64 numbers, one of them as large as it is told."""

    def __init__(self, value, what="observation"):
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.value, self.what = value, what

    def observe(self):
        return np.array([0.0, self.value if self.what == "observation" else 0.0])

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, self.value if self.what == "reward" else 0.0, *rest


@pytest.mark.parametrize("value", [1e39, -1e300, np.inf])
def test_numbers_beyond_float32_are_refused_with_the_reason(value):
    with pytest.raises(
        EnvError, match=r"observation .*environment 0: it holds .*float32, which ends at 3.4e\+38"
    ):
        VectorEnv(SyncVectorEnv([lambda: Wide(value)])).reset()
    env = VectorEnv(SyncVectorEnv([lambda: Wide(value, "reward")]))
    env.reset()
    with (
        pytest.raises(EnvError, match=r"the reward .*float32, which ends at 3.4e\+38"),
        np.errstate(over="ignore"),
    ):
        env.step(np.zeros(1, int))


@pytest.mark.parametrize("value", [3.4e38, -3.4e38, 0.0])
def test_numbers_that_float32_holds_are_kept(value):
    env = VectorEnv(SyncVectorEnv([lambda: Wide(value)]))
    assert env.reset()[0, 1] == value


def test_nan_gets_no_hint_about_its_size():
    with pytest.raises(EnvError, match=r"it holds nan$"):
        VectorEnv(SyncVectorEnv([lambda: Wide(np.nan)])).reset()


def test_actions_of_another_shape_are_refused():
    env = over([[(3, "both")]] * 2, AutoresetMode.DISABLED)
    env.reset()
    with pytest.raises(EnvError, match=r"shape \(2,\), got \(3,\)"):
        env.step(np.zeros(3, int))


def test_stepping_before_reset_and_after_close_are_clear_errors():
    env = over([[(3, "both")]], AutoresetMode.DISABLED)
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.zeros(1, int))
    with env:
        env.reset()
    env.close()
    with pytest.raises(EnvError, match="closed"):
        env.step(np.zeros(1, int))


def test_obs_resets_when_nobody_has():
    env = over([[(3, "both")]], AutoresetMode.DISABLED)
    assert env.obs.tolist() == [[0.0, 0.0]]
    assert env.obs is env.obs


TEXT = spaces.Text(5)
REFUSED = [
    TEXT,
    spaces.Sequence(spaces.Discrete(2)),
    spaces.Graph(spaces.Discrete(2), None),
    spaces.OneOf([TEXT]),
]


@pytest.mark.parametrize("space", REFUSED, ids=lambda space: type(space).__name__)
def test_spaces_without_fixed_arrays_are_refused_by_name(space):
    env = SameStepNative()
    env.single_observation_space = spaces.Dict({"words": spaces.Tuple((space,))})
    with pytest.raises(EnvError, match=rf"observation words\.item_0 .*{type(space).__name__} space"):
        VectorEnv(env)
    env.single_observation_space, env.single_action_space = SameStepNative.single_observation_space, space
    with pytest.raises(EnvError, match=f"action .*{type(space).__name__} space"):
        VectorEnv(env)


@pytest.mark.parametrize("vectorization", ["sync", "native", "process"])
def test_every_env_step_is_counted_as_it_begins(vectorization):
    cell, valid = [0], 0
    with make_env("CartPole-v1", num_envs=3, vectorization=vectorization) as env:
        env.count_into(cell)
        env.reset()
        for _ in range(60):
            step = env.step(np.ones(3, np.int64))
            valid += 3 if step.valid is None else int(step.valid.sum())
    assert cell[0] == valid
    assert (valid < 180) == (vectorization == "native"), "whose steps after an end are resets"


def test_a_step_that_fails_was_begun():
    cell = [0]

    class Breaking(gymnasium.Wrapper):
        def step(self, action):
            if cell[0] == 5:
                raise ValueError("it broke")
            return super().step(action)

    with make_env("CartPole-v1", num_envs=3, wrappers=[Breaking], vectorization="sync") as env:
        env.count_into(cell)
        env.reset()
        env.step(np.ones(3, np.int64))
        with pytest.raises(ValueError, match="it broke"):
            env.step(np.ones(3, np.int64))
    assert cell[0] == 5
