"""Environments are found, wrapped, and seeded the same way however they are run."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import ResizeObservation, TimeLimit
from scripted_envs import Counting, Noise

from engine import seeding
from engine.envs.config import EnvConfig
from engine.envs.make import check_env, make_env
from engine.errors import EnvError, MissingExtra


def first_observations(num_envs, vectorization, count=12):
    """Initial observation of each of the first `count` episodes, by id."""
    with make_env(Noise, num_envs=num_envs, seed=5, vectorization=vectorization) as env:
        seen = dict(enumerate(env.reset().tolist()))
        latest, actions = num_envs, np.arange(num_envs) % 3
        while len(seen) < count:
            step = env.step(actions)
            for episode in step.episodes:
                seen[latest] = step.obs[episode.index].tolist()
                latest += 1
    return {key: seen[key] for key in range(count)}


def test_the_same_episodes_are_seen_with_1_2_and_8_environments():
    want = {}
    for number in range(12):
        want[number] = Noise().reset(seed=seeding.integer(5, "episode", number))[0].tolist()
    for num_envs in (1, 2, 8):
        assert first_observations(num_envs, "sync") == want


def test_the_same_episodes_are_seen_in_processes():
    assert first_observations(2, "process") == first_observations(1, "sync")


def test_an_episode_tells_its_seed():
    with make_env(Noise, num_envs=2, seed=5, role="evaluator") as env:
        env.reset(episode=40)
        episodes = env.step(np.zeros(2, int)).episodes
    assert [e.seed for e in episodes] == [
        seeding.integer(5, "episode", i, role="evaluator") for i in (40, 41)
    ]
    assert "whatever num_envs is" in env.episodes_seeded


def test_a_reset_goes_on_counting_and_a_numbered_one_repeats():
    with make_env(Noise, num_envs=2) as env:
        first, second, again = env.reset(), env.reset(), env.reset(episode=0)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, again)


def test_environments_of_one_reset_differ():
    with make_env("CartPole-v1", num_envs=3, vectorization="sync") as env:
        assert len(np.unique(env.reset()[:, 0])) == 3


def test_native_runs_repeat_for_a_seed():
    runs = []
    for seed in (1, 1, 2):
        with make_env("CartPole-v1", num_envs=4, seed=seed, vectorization="native") as env:
            env.reset()
            runs.append(np.stack([env.step(np.full(4, t % 2)).obs for t in range(60)]))
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def kind(env):
    with env:
        return type(env.env).__name__


def test_auto_takes_the_native_class_where_it_is_quicker():
    assert kind(make_env("CartPole-v1", num_envs=8)) == "CartPoleVectorEnv"
    assert kind(make_env("CartPole-v1", num_envs=1)) == "SyncVectorEnv"
    assert kind(make_env("Acrobot-v1", num_envs=8)) == "SyncVectorEnv"


def test_auto_passes_by_a_native_class_that_cannot_serve():
    assert kind(make_env("CartPole-v1", num_envs=8, wrappers=["TimeAwareObservation"])) == "SyncVectorEnv"
    assert kind(make_env("CartPole-v1", num_envs=8, render_mode="rgb_array")) == "SyncVectorEnv"


@pytest.fixture
def registered():
    """Register environments for one test: `registered(id, **spec)`."""
    ids = []

    def register(env_id, **spec):
        ids.append(env_id)
        gymnasium.register(env_id, entry_point="gymnasium.envs.classic_control:CartPoleEnv", **spec)

    yield register
    for env_id in ids:
        del gymnasium.registry[env_id]


def test_auto_passes_by_a_native_class_that_cannot_be_imported(registered):
    registered("Absent-v0", vector_entry_point="no_such_module:Native")
    assert kind(make_env("Absent-v0", num_envs=8)) == "SyncVectorEnv"


def test_auto_passes_by_a_native_class_that_shows_something_else(registered):
    registered("Other-v0", vector_entry_point=lambda num_envs, **_: OtherNative(num_envs))
    assert kind(make_env("Other-v0", num_envs=8)) == "SyncVectorEnv"
    assert kind(make_env("Other-v0", num_envs=8, vectorization="native")) == "OtherNative"


class OtherNative(gymnasium.vector.VectorEnv):
    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    single_observation_space = spaces.Box(0, 255, (84, 84), np.uint8)
    single_action_space = spaces.Discrete(2)

    def __init__(self, num_envs):
        self.num_envs = num_envs


def test_native_without_a_native_class_is_an_error():
    with pytest.raises(EnvError, match=r"Acrobot-v1 has no vectorised class"):
        make_env("Acrobot-v1", vectorization="native")
    with pytest.raises(EnvError, match="wrappers go around single environments"):
        make_env("CartPole-v1", vectorization="native", wrappers=["TimeLimit"])


def limited(env):
    return TimeLimit(env, 5)


LIMIT = {"wrapper": "TimeLimit", "max_episode_steps": 5}


@pytest.mark.parametrize(
    ("env_id", "more", "expected"),
    [
        ("CartPole-v1", {}, True),
        ("CartPole-v1", {"vectorization": "native"}, True),
        ("CartPole-v1", {"vectorization": "process"}, True),
        ("CliffWalking-v1", {}, False),
        ("CliffWalking-v1", {"vectorization": "process"}, False),
        ("CliffWalking-v1", {"kwargs": {"max_episode_steps": 9}}, True),
        ("CliffWalking-v1", {"wrappers": [LIMIT]}, True),
        ("CliffWalking-v1", {"wrappers": [LIMIT], "vectorization": "process"}, True),
        ("CliffWalking-v1", {"wrappers": [limited, "FlattenObservation"]}, True),
        (Counting, {}, False),
        (lambda: limited(Counting()), {}, True),
    ],
)
def test_whether_a_time_limit_is_set_is_known(env_id, more, expected):
    with make_env(env_id, num_envs=2, **more) as env:
        assert env.time_limited == expected


def test_a_time_limit_of_the_registry_truncates():
    with make_env("MountainCar-v0", num_envs=2) as env:
        env.reset()
        ends = [env.step(np.ones(2, int)).truncated.any() for _ in range(200)]
    assert ends.index(True) == 199


TWO_STEPS = [
    [{"wrapper": "TimeLimit", "max_episode_steps": 2}],
    [{"wrapper": "gymnasium.wrappers:TimeLimit", "max_episode_steps": 2}],
    [lambda env: TimeLimit(env, 2)],
]


@pytest.mark.parametrize("wrappers", TWO_STEPS)
def test_wrappers_are_names_dicts_or_callables(wrappers):
    with make_env(Counting, kwargs={"script": [(9, "terminated")]}, wrappers=wrappers) as env:
        env.reset()
        assert [env.step(np.zeros(1, int)).truncated[0] for _ in range(2)] == [False, True]


def test_lists_are_tuples_to_gymnasiums_wrappers_as_yaml_writes_no_tuples():
    reshape = {"wrapper": "ReshapeObservation", "shape": [2, 2]}
    with make_env("CartPole-v1", wrappers=[reshape], num_envs=3) as env:
        assert env.reset().shape == (3, 2, 2)


def test_arguments_reach_the_environment_and_a_misspelt_one_is_named():
    with make_env("engine.envs.toy:ConstantRewardEnv", kwargs={"length": 3}) as env:
        env.reset()
        assert [bool(env.step(np.zeros(1, int)).truncated[0]) for _ in range(3)] == [False, False, True]
    with pytest.raises(EnvError, match="no argument 'lenght'; did you mean 'length'"):
        make_env("engine.envs.toy:ConstantRewardEnv", kwargs={"lenght": 3})
    with pytest.raises(EnvError, match="did you mean 'goal_velocity'"):
        make_env("MountainCar-v0", kwargs={"goal_velocit": 3})


def test_an_error_of_an_environment_names_it_and_its_index():
    with make_env("engine.envs.toy:CrashEnv", num_envs=2, kwargs={"after": 2}) as env:
        env.reset()
        env.step(np.zeros(2, int))
        with pytest.raises(RuntimeError, match="step 2") as caught:
            env.step(np.zeros(2, int))
    assert caught.value.__notes__ == ["raised by environment engine.envs.toy:CrashEnv, index 0"]


def test_frames_are_drawn_where_asked_for():
    pytest.importorskip("pygame")
    with make_env("CartPole-v1", num_envs=2, render_mode="rgb_array") as env:
        env.reset()
        frames = env.render()
        assert [frame.shape for frame in frames] == [(400, 600, 3)] * 2
        assert env.render_fps == 50
    with make_env("CartPole-v1") as env, pytest.raises(EnvError, match="render_mode"):
        env.render()


UNKNOWN = {
    "CartPol-v1": "did you mean 'CartPole-v1'",
    "cartpole": "did you mean 'CartPole-v1'",
    "CartPole": "version is missing.*did you mean 'CartPole-v1'",
    "CartPole-v9": "has no v9 of it.*did you mean 'CartPole-v1'",
    "LunarLander-v2": "did you mean 'LunarLander-v3'",
    "Taxi-v3": "did you mean 'Taxi-v4'",
    "xqzzy": "env.plugins",
    "ph2d/CartPole-v1": "did you mean 'phys2d'",
    "engine.envs.toy:DictEnvv": "no environment 'DictEnvv'; did you mean 'DictEnv'",
    "no_such_module:Env": "no module 'no_such_module'",
    "engine.envs.toi:DictEnv": "no module 'engine.envs.toi'",
    "Hopper-v3": "cannot be made.*did you mean 'Hopper-v5'",
}


@pytest.mark.parametrize("env_id", UNKNOWN)
def test_an_unknown_id_is_answered_with_the_nearest(env_id):
    with pytest.raises(EnvError, match=UNKNOWN[env_id]):
        check_env(EnvConfig(id=env_id))


WRONG = {
    "'TimeLimits'; did you mean 'TimeLimit'": {"wrappers": ["TimeLimits"]},
    "no wrapper 'Nois'; did you mean 'Noise'": {"wrappers": ["scripted_envs:Nois"]},
    "under 'wrapper'": {"wrappers": [{"max_episode_steps": 3}]},
    "TimeLimit.*max_episode_steps": {"wrappers": ["TimeLimit"]},
    "no module 'no_such_plugin'": {"plugins": ["no_such_plugin"]},
    "has no vectorised class": {"vectorization": "native"},
    "no argument 'goal'": {"kwargs": {"goal": 1}},
}


@pytest.mark.parametrize("words", WRONG)
def test_what_else_is_wrong_with_a_config_is_named(words):
    with pytest.raises(EnvError, match=words):
        check_env(EnvConfig(id="MountainCar-v0", **WRONG[words]))


def test_a_good_config_gives_the_spaces():
    observation, action = check_env(EnvConfig(id="engine.envs.toy:TupleEnv"))
    assert list(observation.spaces) == ["item_0", "item_1"]
    assert action == spaces.Discrete(4)
    observation, _ = check_env(EnvConfig(id="CartPole-v1", vectorization="native"))
    assert observation.shape == (4,)


@pytest.mark.parametrize(("num_envs", "vectorization"), [(0, "auto"), (2, "sink")])
def test_impossible_sizes_and_modes_are_refused(num_envs, vectorization):
    with pytest.raises(EnvError, match=r"at least 1|did you mean 'sync'"):
        make_env("CartPole-v1", num_envs=num_envs, vectorization=vectorization)


@pytest.mark.parametrize(("env_id", "package", "extra"), [
    ("LunarLander-v3", "Box2D", "box2d"),
    ("Hopper-v5", "mujoco", "mujoco"),
    ("ALE/Pong-v5", "ale_py", "atari"),
])  # fmt: skip
def test_a_missing_extra_is_named_without_importing_torch(env_id, package, extra):
    code = f"""
import sys
sys.modules[{package!r}] = None
from engine.envs.config import EnvConfig
assert 'gymnasium' not in sys.modules
from engine.envs.make import check_env
from engine.errors import MissingExtra
try:
    check_env(EnvConfig(id={env_id!r}))
except MissingExtra as error:
    print(error)
assert 'torch' not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert f"pip install -c constraints.txt 'engine[{extra}]'" in done.stdout


def test_a_missing_package_of_no_extra_is_named_too():
    if "jax" in sys.modules:
        pytest.skip("jax is installed")
    with pytest.raises(MissingExtra, match=r"pip install -c constraints\.txt jax"):
        check_env(EnvConfig(id="phys2d/CartPole-v1"))


class Lazy(gymnasium.Wrapper):
    """Imports what it needs when it is first reset."""

    def reset(self, **kwargs):
        import a_package_that_is_not_there  # noqa: F401

        return self.env.reset(**kwargs)


@pytest.mark.parametrize("vectorization", ["sync", "process"])
def test_a_wrapper_that_imports_an_absent_package_late_names_it_too(vectorization):
    with (
        make_env("CartPole-v1", wrappers=[Lazy], vectorization=vectorization) as env,
        pytest.raises(MissingExtra, match=r"needs the package 'a_package_that_is_not_there'"),
    ):
        env.reset()


class Screen(gymnasium.Env):
    """Pictures, as an Atari game shows them."""

    observation_space = spaces.Box(0, 255, (210, 160, 3), np.uint8)
    action_space = spaces.Discrete(2)


@pytest.mark.parametrize(
    ("wrapper", "module", "line"),
    [
        ("AtariPreprocessing", "cv2", "'engine[atari]'"),
        (lambda env: ResizeObservation(env, (84, 84)), "cv2", "opencv-python-headless"),
        ("JaxToNumpy", "jax", "jax"),
        ("scripted_wrapper_of_jax:Anything", "jax", "jax"),
    ],
)
def test_a_wrapper_whose_package_is_missing_is_one_line(wrapper, module, line, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.wrappers.jax")]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "scripted_wrapper_of_jax.py").write_text("import jax\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingExtra) as raised:
        make_env(Screen, wrappers=[wrapper])
    said = str(raised.value)
    assert (
        f"needs the package {module!r}, which is not installed: pip install -c constraints.txt {line}" in said
    )
    assert "\n" not in said


def test_a_wrapper_that_returns_nothing_is_named():
    with pytest.raises(EnvError, match=r"makes a NoneType, which is no gymnasium\.Env"):
        make_env("CartPole-v1", wrappers=[lambda env: None])


def test_a_wrapper_that_refuses_its_environment_is_one_line():
    with pytest.raises(EnvError, match=r"wrapper .*ResizeObservation.* of CartPole-v1: .*2D or 3D image"):
        make_env("CartPole-v1", wrappers=[{"wrapper": "ResizeObservation", "shape": [4, 4]}])
    with pytest.raises(EnvError, match=r"wrapper 'ClipReward' of CartPole-v1: .*cannot be None"):
        make_env("CartPole-v1", wrappers=["ClipReward"])


def test_the_fields_of_a_config_are_arguments_of_make_env():
    import inspect

    import msgspec

    fields = [field.name for field in msgspec.structs.fields(EnvConfig)]
    assert set(fields) <= set(inspect.signature(make_env).parameters)
