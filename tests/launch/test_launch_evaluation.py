"""An evaluation without end in the learner of a launched run: every stop reaches all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from engine.launch import launch
from engine.runs.folder import Run

PROGRAM = "engine.recipes.dqn:dqn"
ENDLESS = [
    "env.id=engine.envs.toy:ConstantRewardEnv",
    "env.kwargs={length: 1_000_000_000}",
    "env.num_envs=1",
    "policy.hidden=[4]",
    "evaluate.every=100",
    "evaluate.episodes=1",
    "evaluate.max_steps=1_000_000_000",
    "exchange.lockstep=true",
]


def played(run: Run) -> list[Any]:
    return [row for row in run.metrics() if "eval/return_mean" in row]


def test_the_time_ends_the_learners_evaluation_and_the_collector_that_waits_for_it() -> None:
    words = [*ENDLESS, "stop.seconds=1"]
    run = launch(PROGRAM, {"collector": 1}, words, backend="threads", run_dir="run", progress="off")
    assert (run.state, run.info["stop_reason"]) == ("finished", "1 seconds have passed")
    assert played(run) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_learners_evaluation_and_the_whole_run(number: int, code: int) -> None:
    words = [PROGRAM, "--role", "collector=2", *ENDLESS, "--run-dir", "run", "--progress", "json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.cli.main", "launch", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        row = json.loads(line) if line.startswith("{") else {}
        if "evaluating" in row.get("progress", {}).get("doing", ""):
            break
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    run = Run.open("run")
    assert run.state == "interrupted"
    assert played(run) == []
    assert os.path.isdir(run.path / "policies" / "last")
