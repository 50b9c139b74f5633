"""What an experiment shows and leaves behind, in order and overlapped, however it ends."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest

from engine import OnlineContext, Task, seeding
from engine.envs.config import EnvConfig
from engine.errors import UsageError
from engine.policies.config import DQNConfig, PPOConfig
from engine.recipes import ppo as ppo_recipe
from engine.recipes.config import EvaluateConfig, StopConfig
from engine.recipes.dqn import DQNRun, dqn
from engine.recipes.experiment import built, run_experiment
from engine.recipes.ppo import PPORun, ppo
from engine.runs.folder import Run
from engine.runs.summary import summary
from engine.signals import REASONS, Terminated

MODES = pytest.mark.parametrize("async_mode", [False, True], ids=["in order", "overlapped"])
HEADER = "overlapped: 2 stations, at most 2 iterations in flight"


def short(async_mode: bool, env: str = "CartPole-v1") -> PPORun:
    return PPORun(
        env=EnvConfig(id=env, num_envs=4),
        policy=PPOConfig(epochs=1, hidden=(8,)),
        collect=ppo_recipe.CollectConfig(num_steps=16),
        evaluate=EvaluateConfig(every=128, episodes=2),
        stop=StopConfig(env_step=256),
        async_mode=async_mode,
    )


def folder(path: Path) -> Run:
    return Run.create(env="x", algo="ppo", seed=0, run_dir=path)


@MODES
def test_an_experiment_says_its_mode_once_and_how_busy_its_stations_were(
    async_mode: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_experiment(ppo, short(async_mode), run=folder(tmp_path / "run"), progress="json")
    rows = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    told = [row["text"] for row in rows if row["event"] == "message"]
    assert told.count(HEADER) == async_mode
    last = rows[-1].get("stations", [])
    assert [station["name"] for station in last] == (["collect", "learn"] if async_mode else [])
    assert sum(station["bounds"] for station in last) == async_mode
    pipeline = (run.path / "pipeline.mmd").read_text()
    assert ("station 2: learn" in pipeline) == async_mode
    assert (run.path / "plots" / "timing.png").stat().st_size > 10_000
    assert run.state == "finished"
    assert run.result["episodes"] == 20


@MODES
def test_an_error_in_the_pipeline_is_told_and_leaves_a_failed_run(async_mode: bool, tmp_path: Path) -> None:
    run = folder(tmp_path / "run")
    with pytest.raises(Exception, match=r"\S") as caught:
        run_experiment(ppo, short(async_mode, "engine.envs.toy:CrashEnv"), run=run, progress="off")
    assert any("collector.step" in note for note in caught.value.__notes__)
    assert Run.open(run.path).state == "failed"


class Mine(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration of one's own, without stop conditions."""

    interrupt_at: int | None = None
    async_mode: bool = True


def mine(config: Mine, *, watch: Any) -> Task:
    """Ten env steps an iteration; Ctrl-C, or the end, comes while one is learned from."""

    def collect(ctx: OnlineContext) -> None:
        ctx.env_step += 10
        ctx.metrics["collect/return_mean"] = float(ctx.env_step)
        if config.interrupt_at == ctx.total_step:
            os.kill(os.getpid(), signal.SIGINT)

    def learn(ctx: OnlineContext) -> None:
        ctx.train_iter += 1
        ctx.metrics["train/loss"] = 1.0 / ctx.train_iter
        if ctx.total_step == 3:
            ctx.finish("three are done")

    task = Task(OnlineContext(), async_mode=config.async_mode)
    return task.use(collect, name="collect").use(learn, watch(None), name="learn")


def test_an_interrupted_run_tells_of_its_last_complete_iteration(tmp_path: Path) -> None:
    run = run_experiment(mine, Mine(interrupt_at=2), run=folder(tmp_path / "run"), progress="off")
    assert run.state == "interrupted"
    assert run.result == {"env_step": 20, "train_iter": 2}, "iteration 2 was collected and not learned from"
    assert [row["env_step"] for row in run.metrics().rows] == [10, 20]
    drawn = {path.name for path in (run.path / "plots").iterdir()}
    assert drawn == {"learning_curve.png", "losses.png", "timing.png"}


def test_a_run_interrupted_before_anything_is_complete_leaves_what_there_is(tmp_path: Path) -> None:
    run = run_experiment(mine, Mine(interrupt_at=0), run=folder(tmp_path / "run"), progress="off")
    assert run.state == "interrupted"
    assert run.metrics().rows == []
    assert {path.name for path in (run.path / "plots").iterdir()} == {"nothing-to-draw.txt", "timing.png"}


class Killing(gymnasium.Env[Any, Any]):
    """Episodes of five steps; the one with the seed `at` sends its process a signal in its second step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, at: int, number: int, times: int = 1) -> None:
        self.at, self.number, self.times = at, number, times

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seed, self.steps = seed, 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.seed == self.at and self.steps == 2:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)
        return np.zeros(2, np.float32), 1.0, self.steps == 5, False, {}


def killed(path: Path, episode: int, number: int, *, role: str = "evaluate", times: int = 1) -> Run:
    at = seeding.integer(0, "episode", episode, role=role)
    config = msgspec.structs.replace(
        short(False),
        env=EnvConfig(
            id=f"{__name__}:Killing", num_envs=4, kwargs={"at": at, "number": number, "times": times}
        ),
        evaluate=EvaluateConfig(every=192, episodes=2),
    )
    return run_experiment(ppo, config, run=folder(path), progress="off")


COLLECTING, EVALUATING, CLOSING, EXAMINING = 3, 1, 1_000_003, 2_000_003


@pytest.mark.parametrize(
    ("number", "code", "episode", "env_step"),
    [
        (signal.SIGTERM, 143, COLLECTING, 64),
        (signal.SIGHUP, 129, EVALUATING, 192),
        (signal.SIGTERM, 143, CLOSING, 256),
        (signal.SIGINT, 130, EXAMINING, 256),
    ],
)
def test_a_signal_at_any_time_ends_the_run_with_everything_saved_and_nothing_more_played(
    number: int, code: int, episode: int, env_step: int, tmp_path: Path
) -> None:
    role = "main" if episode == COLLECTING else "evaluate"
    run = killed(tmp_path / "run", episode, number, role=role)
    assert (run.state, run.info["stop_reason"], run.exit_code) == ("interrupted", REASONS[number], code)
    assert run.result == {"env_step": env_step, "train_iter": env_step // 64}
    rows = run.metrics().rows
    assert rows[-1]["env_step"] == env_step
    played = [row["env_step"] for row in rows if "eval/return_mean" in row]
    assert played == {CLOSING: [192], EXAMINING: [192, 256]}.get(episode, [])
    assert (run.path / "policies" / "last" / "policy.safetensors").is_file()
    assert not (run.path / "videos").exists()
    assert (run.path / "plots").exists() == (number == signal.SIGINT)


class Losing(Killing):
    """What its signal raises is lost, as Python loses what is raised while an object is deleted."""

    render_mode = "rgb_array"

    def __init__(self, at: int, number: int, picture: int, render_mode: str | None = None) -> None:
        super().__init__(at, number)
        self.picture, self.drawn = picture, 0

    def step(self, action: Any) -> Any:
        self.times = 0
        if self.seed == self.at and self.steps == 1:
            Losing.Signal(self.number)
        return super().step(action)

    def render(self) -> Any:
        self.drawn += 1
        if self.drawn == self.picture:
            Losing.Signal(self.number)
        return np.zeros((32, 32, 3), np.uint8)

    class Signal:
        """Sends its process a signal at its end."""

        def __init__(self, number: int) -> None:
            self.number = number

        def __del__(self) -> None:
            os.kill(os.getpid(), self.number)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("filming", [False, True])
def test_a_signal_whose_exception_is_lost_ends_the_examination_and_the_film(
    filming: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    at = -1 if filming else seeding.integer(0, "episode", EXAMINING, role="evaluate")
    env = EnvConfig(
        id=f"{__name__}:Losing",
        num_envs=4,
        kwargs={"at": at, "number": int(signal.SIGINT), "picture": 7 if filming else 0},
    )
    evaluate = EvaluateConfig(every=192, episodes=2, video=3)
    config = msgspec.structs.replace(short(False), env=env, evaluate=evaluate)
    run = run_experiment(ppo, config, run=folder(tmp_path / "run"), progress="plain")
    assert (run.state, run.info["stop_reason"], run.exit_code) == ("interrupted", "interrupted", 130)
    assert run.result == {"env_step": 256, "train_iter": 4}
    films = [path.name for path in (run.path / "videos").iterdir()] if filming else []
    assert films == ["step_000000256-ep0-return+5.mp4"] * filming
    said = capfd.readouterr().err
    assert "rawvideo" not in said, "the encoder was ended between two pictures"
    assert said.count("the closing examination and its film are left out") == 1


def test_a_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    with pytest.raises(Terminated):
        killed(tmp_path / "run", 3, signal.SIGTERM, role="main", times=2)
    run = Run.open(tmp_path / "run")
    assert (run.state, run.exit_code) == ("interrupted", 143)
    assert run.info["stop_reason"].startswith("sigterm at once")
    assert not (run.path / "policies").exists()


def endless(async_mode: bool = False, **evaluate: Any) -> DQNRun:
    """Episodes that do not end, for the second that the run lasts at most."""
    return DQNRun(
        env=EnvConfig(id="engine.envs.toy:ConstantRewardEnv", num_envs=1, kwargs={"length": 10**9}),
        policy=DQNConfig(hidden=(4,)),
        evaluate=EvaluateConfig(**{"every": 50, "episodes": 1, "max_steps": 10**9} | evaluate),
        stop=StopConfig(env_step=200, seconds=1.0),
        async_mode=async_mode,
    )


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was said."""
    rows = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    return [row["text"] for row in rows if row["event"] == "message"]


@MODES
def test_an_evaluation_without_end_is_ended_by_the_time_and_nothing_more_is_played(
    async_mode: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = time.monotonic()
    run = run_experiment(dqn, endless(async_mode), run=folder(tmp_path / "run"), progress="json")
    assert time.monotonic() - begin < 30
    assert (run.state, run.info["stop_reason"]) == ("finished", "1 seconds have passed")
    assert "return_mean" not in run.result
    assert not any("eval/return_mean" in row for row in run.metrics())
    assert not (run.path / "videos").exists()
    assert sum("the last evaluation was cut: it is not repeated" in text for text in told(capsys)) == 1


def test_the_closing_evaluation_of_an_environment_that_may_not_end_gets_a_little_more_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = endless(every=1_000_000)
    config = msgspec.structs.replace(config, stop=StopConfig(env_step=10**9, seconds=0.5))
    run = run_experiment(dqn, config, run=folder(tmp_path / "run"), progress="json")
    assert (run.state, run.info["stop_reason"]) == ("finished", "0.5 seconds have passed")
    assert not any("eval/return_mean" in row for row in run.metrics())
    assert sum("the last evaluation was cut: it is not repeated" in text for text in told(capsys)) == 1


def test_the_examination_of_episodes_without_end_keeps_to_the_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = endless(max_steps=20, final_episodes=1_000_000_000)
    config = msgspec.structs.replace(config, stop=StopConfig(env_step=200, seconds=2.0))
    run = run_experiment(dqn, config, run=folder(tmp_path / "run"), progress="json")
    assert (run.state, run.info["stop_reason"]) == ("finished", "200 env steps are done")
    assert [row["eval/cut"] for row in run.metrics() if "eval/cut" in row] == [1.0] * 4
    assert "return_mean" not in run.result
    assert any("2 seconds have passed" in text and "closing examination" in text for text in told(capsys))


@pytest.mark.parametrize("episodes", [0, 3])
def test_the_closing_examination_has_as_many_episodes_as_it_is_told(episodes: int, tmp_path: Path) -> None:
    config = endless(max_steps=20, final_episodes=episodes)
    config = msgspec.structs.replace(config, stop=StopConfig(env_step=50))
    run = run_experiment(dqn, config, run=folder(tmp_path / "run"), progress="off")
    assert run.state == "finished"
    wanted = {"return_mean": 20.0, "return_std": 0.0, "episodes": 3, "cut": 3} if episodes else {}
    assert run.result == {"env_step": 50, "train_iter": 0, **wanted}
    assert ("3 of them cut" in summary(run)) == bool(episodes)


@MODES
def test_a_configuration_without_stop_conditions_is_drawn_all_the_same(
    async_mode: bool, tmp_path: Path
) -> None:
    run = run_experiment(mine, Mine(async_mode=async_mode), run=folder(tmp_path / "run"), progress="off")
    assert (run.state, run.info["stop_reason"]) == ("finished", "three are done")
    assert (run.path / "plots" / "learning_curve.png").is_file()


def test_a_recipe_that_drops_the_mode_its_configuration_asks_for_is_told() -> None:
    closed: list[bool] = []

    class Resource:
        def close(self) -> None:
            closed.append(True)

    def deaf(config: PPORun) -> Task:
        return Task(OnlineContext()).own(Resource())

    config = PPORun(env=EnvConfig(id="CartPole-v1"), async_mode=True)
    with pytest.raises(UsageError, match=r"deaf does not pass the mode on.*async_mode=config\.async_mode"):
        built(deaf, config)
    assert closed == [True]
