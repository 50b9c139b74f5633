"""Recipes in roles: the same numbers as in one process, and every env step accounted for."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from fleet import Fleet, watching

from engine import config as configs
from engine.bus.bus import host, join
from engine.bus.memory import Network
from engine.errors import ConfigError, DeadlineExceeded, UsageError
from engine.recipes.dqn import DQNRun, dqn, epsilons
from engine.recipes.impala import IMPALARun, impala
from engine.recipes.parts import make_training_env
from engine.recipes.ppo import PPORun, ppo

RECIPES = {
    "ppo": (ppo, PPORun),
    "impala": (impala, IMPALARun),
    "dqn": (dqn, DQNRun),
    "apex": (dqn, DQNRun),
    "apex_1_step": (dqn, DQNRun),
}

SMALL: dict[str, list[str]] = {
    "ppo": ["policy.hidden=[8]", "collect.num_steps=16", "env.num_envs=2", "stop.env_step=256"],
    "impala": [
        "policy.hidden=[8]", "collect.num_steps=8", "env.num_envs=2", "stop.env_step=256",
        "exchange.lockstep=true",
    ],
    "dqn": [
        "policy.hidden=[8]", "policy.n_step=3", "collect.num_steps=2", "env.num_envs=2", "stop.env_step=160",
        "train.warm_up=32", "train.batch_size=8", "exchange.lockstep=true",
    ],
}  # fmt: skip
LADDER = ["collect.epsilon_start=0.4", "collect.epsilon_end=0.4", "collect.epsilon_alpha=7"]
SMALL["apex"] = [*SMALL["dqn"], *LADDER, "train.prioritized.initial_priority=td_error"]
SMALL["apex_1_step"] = [*SMALL["apex"], "policy.n_step=1"]


def config_of(name: str, *words: str) -> Any:
    given = ["env.id=CartPole-v1", "evaluate.every=64", "evaluate.episodes=1", *SMALL[name], *words]
    return configs.convert(configs.override(configs.Settings({}, {}), given), RECIPES[name][1])


def alone(name: str, config: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Run a recipe in one process; return its policy and the metrics of every iteration."""
    found: list[Any] = []
    rows: list[dict[str, Any]] = []

    def watch(policy: Any) -> Any:
        found.append(policy)
        return watching(rows)

    with RECIPES[name][0](config, watch=watch) as task:
        task.run()
    return found[0], rows


def weights(policy: Any) -> Any:
    return policy.weights()["parameters"].copy()


@pytest.mark.parametrize("name", RECIPES)
def test_one_collector_and_a_learner_in_lockstep_give_the_numbers_of_one_process(name: str) -> None:
    config = config_of(name)
    policy, rows = alone(name, config)
    fleet = Fleet(RECIPES[name][0], config, {"collector": 1, "learner": 1}).run()
    np.testing.assert_array_equal(weights(fleet.policy), weights(policy))
    assert len(fleet.rows) == len(rows)
    for apart, together in zip(fleet.rows, rows, strict=True):
        shared = apart.keys() & together.keys()
        assert "env_step" in shared
        assert {name: apart[name] for name in shared} == {name: together[name] for name in shared}


@pytest.mark.parametrize("name", RECIPES)
def test_two_collectors_in_lockstep_give_the_same_numbers_twice(name: str) -> None:
    config = config_of(name)
    crew = {"collector": 2, "learner": 1}
    first, second = (Fleet(RECIPES[name][0], config, crew).run() for _ in range(2))
    np.testing.assert_array_equal(weights(first.policy), weights(second.policy))
    timed = {"exchange/queue_seconds"}
    for one, other in zip(first.rows, second.rows, strict=True):
        assert {k: v for k, v in one.items() if k not in timed} == {
            k: v for k, v in other.items() if k not in timed
        }
    assert {row["exchange/items"] for row in first.rows} == {2}


@pytest.mark.parametrize("name", ["ppo", "impala", "dqn"])
def test_overlapped_in_roles_the_learner_receives_while_it_learns(name: str) -> None:
    config = config_of(name, "async_mode=true")
    crew = {"collector": 2, "learner": 1}
    first, second = (Fleet(RECIPES[name][0], config, crew).run() for _ in range(2))
    np.testing.assert_array_equal(weights(first.policy), weights(second.policy))
    assert weights(first.policy).any()
    assert first.rows[-1]["env_step"] >= config.stop.env_step
    assert first.rows[-1]["train_iter"] > 1


@pytest.mark.parametrize(
    "words", [["train.prioritized.initial_priority=td_error"], ["collect.epsilon_alpha=7"]]
)
def test_each_option_of_ape_x_changes_the_numbers(words: list[str]) -> None:
    usual = ["train.prioritized.alpha=0.6", "collect.epsilon_start=0.4"]
    policy, _ = alone("dqn", config_of("dqn", *usual))
    other, _ = alone("dqn", config_of("dqn", *usual, *words))
    assert not np.array_equal(weights(policy), weights(other))


def test_overlapped_with_first_errors_the_same_seed_gives_the_same_numbers() -> None:
    config = config_of("apex", "async_mode=true")
    (policy, rows), (again, _) = alone("apex", config), alone("apex", config)
    np.testing.assert_array_equal(weights(policy), weights(again))
    assert rows[-1]["train_iter"] == 160 - 32


def test_the_ladder_goes_over_all_environments_of_all_collectors() -> None:
    config = config_of("apex", "env.num_envs=2")
    rungs = [0.4 ** (1 + 7 * i / 3) for i in range(4)]
    network = Network()
    with ExitStack() as stack:
        hub = host(network.transport(), run="r", roles=("collector",), crew={"collector": 2})
        stack.callback(hub.close)
        buses = []
        for peer in ("collector_0", "collector_1", None, None):  # two of the crew, and two that join it
            at = {"at": hub.address, "run": "r", "role": "collector", "peer": peer}
            buses.append(join(network.transport(), **at))
            stack.callback(buses[-1].close)
        found = [epsilons(config, bus)(12_345).tolist() for bus in buses]
    assert [bus.peer for bus in buses] == [f"collector_{n}" for n in range(4)]
    assert found[:2] == [pytest.approx(rungs[:2]), pytest.approx(rungs[2:])]
    assert found[2:] == found[:2], "those that join later take the rungs again from the first"


def test_one_process_climbs_the_whole_ladder_with_its_environments() -> None:
    rungs = [0.4 ** (1 + 7 * i / 4) for i in range(5)]
    assert epsilons(config_of("apex", "env.num_envs=5"))(0).tolist() == pytest.approx(rungs)
    assert epsilons(config_of("apex", "env.num_envs=1"))(0).tolist() == [0.4]
    assert epsilons(config_of("dqn"))(5_000) == 0.525, "all alike unless configured"


def test_the_collectors_of_a_run_explore_by_the_ladder() -> None:
    fleet = Fleet(dqn, config_of("apex"), {"collector": 2, "learner": 1}).run()
    mean = sum(0.4 ** (1 + 7 * i / 3) for i in range(4)) / 4
    assert {round(row["collect/epsilon"], 12) for row in fleet.rows} == {round(mean, 12)}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("collect.epsilon_alpha=-1", "'epsilon_alpha' of CollectConfig must be a number >= 0"),
        ("collect.epsilon_alpha=.inf", "epsilon_alpha must be a finite number, not inf"),
        ("train.prioritized.initial_priority=max", "must be one of largest, td_error, got 'max'"),
    ],
)
def test_senseless_options_of_ape_x_are_refused(word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of("dqn", word)


def test_collectors_see_episodes_of_their_own() -> None:
    config = config_of("ppo")
    with make_training_env(config, 0) as first, make_training_env(config, 1) as second:
        assert not np.array_equal(first.obs, second.obs)


@pytest.mark.parametrize("name", ["impala", "dqn", "apex"])
def test_without_lockstep_every_env_step_that_was_taken_is_counted_once(name: str) -> None:
    config = config_of(name, "exchange.lockstep=false", "stop.env_step=400")
    fleet = Fleet(RECIPES[name][0], config, {"collector": 2, "learner": 1}).run()
    assert fleet.rows[-1]["env_step"] >= 400
    assert fleet.contexts["learner_0"].env_step == fleet.rows[-1]["env_step"]
    assert all("exchange/behind_sending" in row for row in fleet.rows)
    assert all("train/staleness_mean" in row for row in fleet.rows if "train/loss_policy" in row)


def test_a_learner_without_collectors_says_who_is_missing() -> None:
    config = config_of("ppo", "exchange.patience=0.2")
    with pytest.raises(DeadlineExceeded, match=r"1 of role 'collector' were expected within 0\.2 s"):
        Fleet(ppo, config, {"learner": 1}).run()


def test_a_collector_without_a_learner_says_who_is_missing() -> None:
    config = config_of("ppo", "exchange.patience=0.2")
    with pytest.raises(DeadlineExceeded, match=r"1 of role 'learner' were expected within 0\.2 s"):
        Fleet(ppo, config, {"collector": 1}).run()


def test_a_role_that_a_recipe_does_not_have_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'collector'"):
        ppo(config_of("ppo"), roles=frozenset({"colector"}))
