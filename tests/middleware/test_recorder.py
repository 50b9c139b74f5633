"""The recorder: which rows it writes and which policies it leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces

from engine import OnlineContext, Task, repeat, serial
from engine.middleware.functional.save import save_best_policy, save_policy
from engine.middleware.recorder import Recorder
from engine.policies.config import PPOConfig
from engine.policies.files import load_policy
from engine.policies.ppo import PPO
from engine.runs.folder import Run
from engine.runs.progress import Progress
from engine.testing import FakeClock


@pytest.fixture
def policy() -> Any:
    return PPO(spaces.Box(-1, 1, (2,)), spaces.Discrete(2), PPOConfig(hidden=(4,)))


def told(env_step: int, **metrics: float) -> OnlineContext:
    """A context at `env_step` with metrics; a__b stands for a/b."""
    ctx = OnlineContext(env_step=env_step, train_iter=env_step // 10)
    ctx.metrics.update({name.replace("__", "/"): value for name, value in metrics.items()})
    return ctx


def test_a_row_holds_the_means_since_the_row_before(tmp_path: Path) -> None:
    run = Run.create(env="x", algo="ppo", seed=0, run_dir=tmp_path / "run")
    clock = FakeClock()
    with Progress("off", None, "") as progress:
        recorder = Recorder(run, None, progress=progress, every=100, clock=clock)
        for env_step, loss in ((40, 1.0), (80, 2.0), (120, 6.0), (160, 5.0), (199, 7.0)):
            clock.advance(1.0)
            recorder(told(env_step, train__loss=loss))
        recorder(told(199, eval__return_mean=3.0))  # at every evaluation, with what has waited
        recorder.write(told(240))  # nothing was measured since
        recorder.close()
    rows = run.metrics().rows
    assert [(row["env_step"], row["train_iter"], row["train/loss"]) for row in rows] == [
        (120, 12, 3.0),
        (199, 19, 6.0),
    ]
    assert [row["time/sps"] for row in rows] == [120 / 3, 79 / 2]
    assert [row.get("eval/return_mean") for row in rows] == [None, 3.0]


def test_the_best_policy_is_that_of_the_best_evaluation_and_of_equals_the_later(
    tmp_path: Path, policy: Any
) -> None:
    run = Run.create(env="x", algo="ppo", seed=0, run_dir=tmp_path / "run")
    saved = []
    with Progress("off", None, "") as progress:
        recorder = Recorder(run, policy, progress=progress, every=1)
        for version, return_mean in enumerate([-5.0, 2.0, 1.0, 2.0, -1.0]):
            policy.version = version
            recorder(told(version, eval__return_mean=return_mean))
            saved.append([load_policy(run.path / "policies" / which).version for which in ("best", "last")])
        policy.version = 9
        recorder(told(9, train__loss=1.0))  # no evaluation: nothing is saved
        recorder.close()
    assert saved == [[0, 0], [1, 1], [1, 2], [3, 3], [3, 4]]
    assert load_policy(run.path / "policies" / "last").version == 4


class Crew:
    """A class that calls an inner group."""

    def __init__(self) -> None:
        self.pipeline = serial(work)

    def __call__(self, ctx: Any) -> None:
        self.pipeline(ctx)


def work(ctx: Any) -> None:
    """Take no time worth speaking of."""


@pytest.mark.parametrize("async_mode", [False, True])
def test_seconds_are_those_of_members_of_serial_groups_and_of_all_else_at_the_top(
    async_mode: bool, tmp_path: Path
) -> None:
    run = Run.create(env="x", algo="ppo", seed=0, run_dir=tmp_path / "run")
    recorder = Recorder(run, None, progress=Progress("off"), every=1)
    assert recorder.seconds() == {}
    with Task(OnlineContext(), async_mode=async_mode) as task:
        task.use(work, Crew(), serial(work, name="inner"), name="collect")
        task.use(repeat(work, times=2), name="again")
        task.use(Crew(), name="alone")
        recorder.watch(task.own(recorder).measure())
        task.run(max_step=2)
        shown = ["collect.work", "collect.crew", "collect.inner", "again", "alone"]
        assert recorder.seconds() == {name: task.timings[name].seconds for name in shown}
        assert {"collect", "collect.crew.work", "collect.inner.work"} < task.timings.keys()
        task.remove("again")
        assert "again" in recorder.seconds(), "what was taken out has cost what it cost"
        names = [station.name for station in recorder.stations()]
    assert names == (["collect", "again", "alone"] if async_mode else [])


def test_the_recorder_tells_progress_how_busy_the_stations_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(env="x", algo="ppo", seed=0, run_dir=tmp_path / "run")
    with (
        Progress("json") as progress,
        Task(OnlineContext(), async_mode=True) as task,
    ):
        recorder = Recorder(run, None, progress=progress, every=1)
        task.use(collect, recorder).own(recorder).measure()
        recorder.watch(task)
        task.run(max_step=3)
        progress.close()
    rows = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [[station["name"] for station in row["stations"]] for row in rows] == [["collect", "recorder"]] * 2


def collect(ctx: OnlineContext) -> None:
    """Stands in for a collector."""
    ctx.env_step += 1
    ctx.metrics["collect/x"] = 1.0


def test_policies_are_saved_in_a_rhythm_or_when_a_metric_is_the_best(tmp_path: Path, policy: Any) -> None:
    rhythm = save_policy(policy, tmp_path / "rhythm", every=100)
    best = save_best_policy(policy, tmp_path / "best")
    found = []
    for version, (env_step, metrics) in enumerate(
        [(50, {"eval__return_mean": 1.0}), (100, {}), (150, {"eval__return_mean": 0.0}), (320, {})]
    ):
        policy.version = version
        for middleware in (rhythm, best):
            middleware(told(env_step, **metrics))
        folders = (tmp_path / "rhythm", tmp_path / "best")
        found.append([load_policy(folder).version if folder.exists() else None for folder in folders])
    assert found == [[None, 0], [1, 0], [1, 0], [3, 0]]


def rows_of_a_collapse() -> list[OnlineContext]:
    """It learns, loses half of that while it still explores, and then everything for good."""
    story = [
        (20, 0.69),
        (300, 0.5),
        (120, 0.4),
        (480, 0.005),
        (300, 0.005),
        (40, 1e-5),
        (9.4, 1e-6),
        (9.4, 1e-6),
    ]
    return [
        told(100 * i, collect__return_mean=found, train__entropy=entropy)
        for i, (found, entropy) in enumerate(story, 1)
    ]


def test_entropy_that_vanishes_while_the_return_falls_is_warned_of_once(
    tmp_path: Path, policy: Any, caplog: Any
) -> None:
    run = Run.create(env="x", algo="ppo", seed=0, run_dir=tmp_path / "run")
    with Progress("off", None, "") as progress:
        recorder = Recorder(run, policy, progress=progress, every=100)
        for ctx in rows_of_a_collapse():
            recorder(ctx)
            if ctx.env_step <= 500:
                assert not caplog.records
        recorder.close()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "entropy has vanished (1e-05 nats) while the return fell from 480 to 40" in record.message


def test_an_entropy_of_continuous_actions_may_be_any_number(tmp_path: Path, caplog: Any) -> None:
    run = Run.create(env="x", algo="ppo", seed=0, run_dir=tmp_path / "run")
    box = PPO(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)), PPOConfig(hidden=(4,)))
    with Progress("off", None, "") as progress:
        recorder = Recorder(run, box, progress=progress, every=100)
        for ctx in rows_of_a_collapse():
            recorder(ctx)
        recorder.close()
    assert not caplog.records
