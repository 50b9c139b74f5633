"""Runs that end by time, by returns or by want of progress: without `stop.env_step`."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.cli.main import call
from engine.errors import ConfigError
from engine.launch.start import launch
from engine.recipes.experiment import run_experiment
from engine.recipes.target import resolve
from engine.runs.folder import Run

SMALL = [
    "env.num_envs=2",
    "evaluate.episodes=1",
    "evaluate.final_episodes=0",
    "evaluate.video=0",
    "policy.hidden=[8]",
]
SIZES = {
    "ppo/cartpole": [*SMALL, "collect.num_steps=16", "policy.epochs=1"],
    "dqn/cartpole_prioritized": [*SMALL, "train.warm_up=20", "train.batch_size=8"],
    "impala/cartpole": [*SMALL, "collect.num_steps=16"],
    "league/rock_paper_scissors": [],
}
DECAYING = {
    "ppo/cartpole": "policy.learning_rate_decay=linear",
    "dqn/cartpole_prioritized": "policy.learning_rate_decay=linear and train.prioritized.beta_start=0.4",
    "impala/cartpole": "policy.learning_rate_decay=linear",
}


def config(name: str, *words: str) -> Any:
    return resolve(name, ["stop.env_step=null", *words])


def run(name: str, folder: Path, *words: str, progress: str = "off") -> Run:
    target = config(name, *SIZES[name], *words)
    made = Run.create(env="x", algo=target.algo, seed=0, run_dir=folder)
    return run_experiment(target.recipe, target.config, run=made, progress=progress)


@pytest.mark.parametrize("name", SIZES)
def test_a_run_without_any_end_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"without env_step the run needs another end: seconds.*, stop\)"):
        config(name)


@pytest.mark.parametrize("stop", ["stop.return_mean=400", "stop.no_progress=1000"])
@pytest.mark.parametrize(
    ("name", "setting", "instead"),
    [
        ("ppo/cartpole", "policy.learning_rate_decay=linear", "policy.learning_rate_decay=none"),
        ("impala/cartpole", "policy.learning_rate_decay=linear", "policy.learning_rate_decay=none"),
        ("dqn/cartpole", "policy.learning_rate_decay=linear", "policy.learning_rate_decay=none"),
        ("dqn/cartpole_prioritized", "train.prioritized.beta_start=0.4", "train.prioritized.beta_start=1"),
    ],
)
def test_what_decays_until_an_end_that_is_not_known_is_refused_by_name(
    name: str, setting: str, instead: str, stop: str
) -> None:
    others = ["policy.learning_rate_decay=none"] if "beta" in setting else []
    with pytest.raises(ConfigError) as told:
        config(name, stop, *others)
    assert str(told.value).startswith(f"{setting} follows how far the run is")
    assert f"set stop.seconds, or {instead}" in str(told.value)
    assert config(name, stop, *others, instead).config.stop.env_step is None
    assert config(name, stop, *others, "stop.seconds=60").config.stop.env_step is None


SLOW = pytest.mark.slow
LONGER = ("ppo/cartpole", "impala/cartpole")


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW if name in LONGER else ()) for name in SIZES])
@pytest.mark.timeout(120)
def test_time_alone_ends_every_recipe_and_what_decays_follows_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run(name, tmp_path / "run", "stop.seconds=0.8", *_never(name), progress="json")
    assert (done.state, done.info["stop_reason"]) == ("finished", "0.8 seconds have passed")
    rows = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    told = [row["text"] for row in rows if row["event"] == "message" and "repeat" in row["text"]]
    expected = (
        [
            f"{setting} follows stop.seconds, so this run does not repeat exactly"
            for setting in DECAYING[name].split(" and ")
        ]
        if name in DECAYING
        else []
    )
    assert told == expected
    shown = [row for row in rows if row["event"] == "progress"]
    assert {row["total"] for row in shown} == {None}
    assert {row["limit"] for row in shown} == {0.8}
    assert shown[-1]["remaining"] == 0
    if name in DECAYING:
        rates = [row["train/learning_rate"] for row in done.metrics().rows if "train/learning_rate" in row]
        assert all(after <= before for before, after in pairwise(rates))
        assert rates[-1] < rates[0] / 2


def _never(name: str) -> list[str]:
    return [] if name.startswith("league") else ["evaluate.every=1_000_000_000"]


@pytest.mark.slow
@pytest.mark.parametrize("name", DECAYING)
@pytest.mark.timeout(120)
def test_a_return_alone_ends_a_run_and_it_repeats_exactly(name: str, tmp_path: Path) -> None:
    still = [
        "policy.learning_rate_decay=none",
        *(["train.prioritized.beta_start=1"] if "prior" in name else []),
    ]
    words = ["stop.return_mean=1", "evaluate.every=200", *still]
    first, second = (run(name, tmp_path / number, *words) for number in ("one", "two"))
    assert first.state == "finished"
    assert "the goal was 1" in first.info["stop_reason"]
    assert first.result["env_step"] >= 200
    timed = ("time", "time/sps")
    kept = [
        [{k: v for k, v in row.items() if k not in timed} for row in one.metrics().rows]
        for one in (first, second)
    ]
    assert kept[0] == kept[1]


@pytest.mark.timeout(120)
def test_want_of_progress_alone_ends_a_run_overlapped_too(tmp_path: Path) -> None:
    words = [
        "stop.no_progress=300",
        "evaluate.every=100",
        "policy.learning_rate_decay=none",
        "policy.learning_rate=1e-9",
    ]
    done = run("ppo/cartpole", tmp_path / "run", *words, "async_mode=true")
    assert done.state == "finished"
    assert "has not passed" in done.info["stop_reason"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SIZES)
def test_launched_in_threads_time_ends_every_recipe(name: str, tmp_path: Path) -> None:
    words = ["stop.env_step=null", "stop.seconds=3", *SIZES[name], *_never(name)]
    done = launch(name, overrides=words, backend="threads", run_dir=tmp_path / "run", progress="off")
    assert (done.state, done.info["stop_reason"]) == ("finished", "3 seconds have passed")
    assert done.metrics().rows


def test_a_dry_run_and_the_resolved_configuration_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["ppo/cartpole", "stop.env_step=null", "stop.seconds=60"]
    assert call(["run", *words, "--dry-run"]) == 0
    assert call(["launch", *words, "--dry-run"]) == 0
    assert "env_step: null" in capsys.readouterr().out
    assert call(["run", *words[:2]]) == 3
    assert "error: without env_step the run needs another end" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
