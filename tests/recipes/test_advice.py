"""Odd configurations are told in one line each; sound ones are not."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from engine import config as configs
from engine.data.prioritized import PrioritizedReplay
from engine.data.replay import ReplayBuffer
from engine.envs.config import EnvConfig
from engine.errors import EngineError
from engine.policies.config import DQNConfig, PPOConfig
from engine.recipes import advice
from engine.recipes import ppo as ppo_recipe
from engine.recipes.config import StopConfig
from engine.recipes.dqn import CollectConfig, DQNRun, PrioritizedConfig, TrainConfig, dqn
from engine.recipes.ppo import CollectConfig as PPOCollectConfig
from engine.recipes.ppo import PPORun, ppo


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def built_dqn(env: str = "CartPole-v1", *, n_step: int = 1, env_step: int = 5_000, **train: object) -> None:
    config = DQNRun(
        env=EnvConfig(id=env, num_envs=2),
        collect=CollectConfig(num_steps=4),
        policy=DQNConfig(n_step=n_step, hidden=(8,)),
        train=TrainConfig(**train),  # type: ignore[arg-type]
        stop=StopConfig(env_step=env_step),
    )
    with dqn(config):
        pass


def test_a_buffer_that_will_not_fit_is_told_with_both_sizes(caplog: pytest.LogCaptureFixture) -> None:
    built_dqn(buffer_size=10**12)
    (told,) = warnings(caplog)
    # Two observations of four float32, an action, a reward, an end, and the version of the weights.
    assert (
        "will not fit: full, it takes 48.2 TiB (train.buffer_size=1000000000000 transitions of 53 b" in told
    )
    memory = advice.machine_memory()
    assert memory is not None
    assert f"this machine has {advice.shown(memory)} of memory" in told
    assert "the 5,000 env steps of this run fill 258.8 KiB of it" in told


def test_a_container_has_the_memory_of_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = advice.machine_memory()
    (tmp_path / "unlimited").write_text("max\n")
    (tmp_path / "limited").write_text(f"{3 << 20}\n")
    monkeypatch.setattr(advice, "_CGROUPS", (tmp_path / "absent", tmp_path / "unlimited"))
    assert whole is not None
    assert (advice.machine_memory() or 0) >= whole
    monkeypatch.setattr(advice, "_CGROUPS", (tmp_path / "limited",))
    assert advice.machine_memory() == 3 << 20


@pytest.mark.parametrize(
    ("env", "n_step", "prioritized"),
    [
        ("CartPole-v1", 1, None),
        ("CartPole-v1", 3, None),
        ("engine.envs.toy:TupleEnv", 1, None),
        ("engine.envs.toy:DictEnv", 3, PrioritizedConfig()),
        ("CartPole-v1", 3, PrioritizedConfig(initial_priority="td_error")),
    ],
)
def test_the_size_that_is_told_is_that_of_the_real_columns(
    env: str, n_step: int, prioritized: PrioritizedConfig | None
) -> None:
    config = DQNRun(
        env=EnvConfig(id=env, num_envs=2),
        policy=DQNConfig(n_step=n_step, hidden=(8,)),
        train=TrainConfig(prioritized=prioritized, buffer_size=4_000, warm_up=1),
        stop=StopConfig(env_step=20),
    )
    with dqn(config) as task:
        task.run(max_step=8)
        found = [one.value for one in task.holdings()]
    (buffer,) = {id(one): one for one in found if isinstance(one, ReplayBuffer)}.values()
    assert buffer._columns is not None
    real = sum(leaf.nbytes for leaf in buffer._columns.leaves)
    if isinstance(buffer, PrioritizedReplay):
        real += sum(level.nbytes for level in buffer._tree._levels)
    with dqn(config) as task:
        space = next(env.single_observation_space for env in task.owned if hasattr(env, "num_envs"))
    assert advice.row_bytes(config, space) * 4_000 == pytest.approx(real, rel=0.01)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"buffer_size": 63, "batch_size": 64}, "buffer_size=63 holds fewer .*batch_size=64"),
        ({"warm_up": 5_000}, "warm_up=5000 env steps are not over .* stop.env_step=5000"),
    ],
)
def test_useless_combinations_of_dqn_get_one_line(
    train: dict[str, object], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    built_dqn(**train)  # type: ignore[arg-type]
    (told,) = warnings(caplog)
    assert re.search(words, told)


@pytest.mark.parametrize(
    "train",
    [
        {},
        {"buffer_size": 64, "batch_size": 64},
        {"warm_up": 4_999},
        {"warm_up": 0, "batch_size": 1, "buffer_size": 1},
    ],
)
def test_what_makes_sense_gets_none(train: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    built_dqn(**train)  # type: ignore[arg-type]
    assert warnings(caplog) == []


def test_the_last_iteration_counts_to_the_run(caplog: pytest.LogCaptureFixture) -> None:
    # 5 steps are 8 with two environments of four steps: the run ends after them, and one was learned from.
    built_dqn(env_step=5, warm_up=7)
    assert warnings(caplog) == []
    built_dqn(env_step=5, warm_up=8)
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize(("minibatches", "count"), [(12, 0), (13, 1)])
def test_more_minibatches_than_rows_get_one_line(
    minibatches: int, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = PPORun(
        env=EnvConfig(id="CartPole-v1", num_envs=3),
        collect=PPOCollectConfig(num_steps=4),
        policy=PPOConfig(minibatches=minibatches, hidden=(8,)),
    )
    with ppo(config):
        pass
    told = warnings(caplog)
    assert len(told) == count
    assert all("policy.minibatches=13 is more than the 12 transitions" in line for line in told)


def test_several_collectors_give_the_learner_more_rows(caplog: pytest.LogCaptureFixture) -> None:
    config = PPORun(env=EnvConfig(id="CartPole-v1", num_envs=2), policy=PPOConfig(minibatches=512))
    advice.advise_minibatches(config, 2)
    assert warnings(caplog) == []
    advice.advise_minibatches(config, 1)
    assert len(warnings(caplog)) == 1


def test_the_shipped_configurations_get_none(caplog: pytest.LogCaptureFixture) -> None:
    names: Sequence[str] = [
        name for name in configs.names() if name.startswith(("dqn/cartpole", "ppo/cartpole"))
    ]
    for name in names:
        recipe, kind = (dqn, DQNRun) if name.startswith("dqn") else (ppo, PPORun)
        with recipe(configs.convert(configs.load(name), kind)):  # type: ignore[operator]
            pass
    assert names
    assert warnings(caplog) == []


def test_a_run_writes_the_line_into_its_log(tmp_path: Path) -> None:
    run = ppo_recipe.train(
        "CartPole-v1",
        overrides=["stop.env_step=8", "env.num_envs=1", "collect.num_steps=8", "policy.minibatches=9",
                   "evaluate.episodes=1", "evaluate.video=0"],
        run_dir=tmp_path / "run",
        progress="off",
    )  # fmt: skip
    assert (run.path / "logs" / "main-0.jsonl").read_text().count(
        "policy.minibatches=9 is more than the 8"
    ) == 1


def test_a_buffer_that_the_system_refuses_is_an_error_in_one_line() -> None:
    draws = np.random.default_rng(0)
    with pytest.raises(EngineError, match=r"1,000,000,000,000,000 transitions does not fit"):
        ReplayBuffer(10**15, generator=draws).push({"obs": np.zeros((1, 64))})
    with pytest.raises(EngineError, match=r"1,000,000,000,000,000 transitions does not fit"):
        PrioritizedReplay(10**15, generator=draws)
