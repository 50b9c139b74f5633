"""The accounts of launched runs: of what environments made, against what was received, lost or waits."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from launched import Launched, Start
from surviving import logged, until

from engine.cli.main import call
from engine.errors import RemoteError
from engine.launch.start import launch
from engine.runs.folder import Run

pytestmark = pytest.mark.timeout(200)
TERMS = ("received", "unlearned", "dropped", "waiting", "held", "collecting")


def accounts() -> dict[str, dict[str, Any]]:
    """What became of the env steps of each, where everything adds up."""
    run = Run.open("run")
    assert run.info["exchange_mismatch"] is None
    found: dict[str, dict[str, Any]] = run.info["exchange"]
    for name, one in found.items():
        assert one["exact"], name
        assert one["stepped"] == sum(one[term] for term in TERMS), (name, one)
    return found


def run(*words: str) -> Run:
    return launch(
        "exchanging:exchange", {"collector": 2}, words, backend="threads", run_dir="run", progress="plain"
    )


def test_every_env_step_of_a_run_is_accounted_for(capsys: pytest.CaptureFixture[str]) -> None:
    ended = run()
    found = accounts()
    assert found.keys() <= {"collector_0", "collector_1"}  # one may have joined when it was over
    assert sum(one["received"] for one in found.values()) == ended.result["env_step"] >= 800
    assert "add up" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lose", "sentence"),
    [
        ("learner", "env steps were pushed, and"),
        ("collector", "env steps were made until it last sent some, and"),
    ],
)
def test_an_item_that_is_lost_on_purpose_is_told_by_the_run_and_its_last_lines(
    lose: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["exchanging:exchange", f"lose={lose}", "--on", "threads", "--run-dir", "run"]
    assert call(["launch", *words, "--progress", "plain"]) == 0
    printed = capsys.readouterr()
    assert "the env steps do not add up: of collector_0 " in printed.err
    assert sentence in printed.err
    assert "warning: the env steps do not add up: of collector_0 " in printed.out
    info = Run.open("run").info
    assert sentence in info["exchange_mismatch"]
    one = info["exchange"]["collector_0"]
    assert one["stepped"] - sum(one[term] for term in TERMS) == 16


def test_a_run_that_fails_at_once_has_its_accounts() -> None:
    with pytest.raises(RemoteError, match="the learner failed at once"):
        run("fail=true")
    found = accounts()
    assert sum(one["unlearned"] + one["received"] for one in found.values()) == 16
    assert sum(one["stepped"] for one in found.values()) >= 16


def test_a_league_has_accounts_of_its_jobs_and_games() -> None:
    ended = launch(
        "league/rock_paper_scissors",
        {"actor": 2},
        ["stop.env_step=3000"],
        backend="threads",
        run_dir="run",
        progress="off",
    )
    found = accounts()
    assert set(found) == {"actor_0", "actor_1"}
    for one in found.values():
        assert one["jobs_given"] == one["jobs_counted"] + one["jobs_open"] + one["jobs_lost"]
        assert one["jobs_counted"] > 0
        assert one["jobs_open"] <= 1
    assert sum(one["received"] for one in found.values()) == ended.result["env_step"]


# --- processes --------------------------------------------------------------------------------


def lengths(folder: Path) -> dict[int, int]:
    """The env steps that each process has written down, by its id."""
    return {int(file.name): file.stat().st_size for file in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("vectorization", ["sync", "process"])
def test_a_killed_collector_has_made_what_its_environment_wrote_down(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectorization: str
) -> None:
    monkeypatch.setenv("COUNT_FOLDER", str(tmp_path / "counted"))
    (tmp_path / "counted").mkdir()
    launched = Launched(
        *("env.id=counting:Counting", f"env.vectorization={vectorization}", "env.num_envs=4"),
        *("stop.env_step=100_000_000", "evaluate.every=100_000_000", "--role", "collector=2"),
        program="impala/cartpole",
    )
    try:
        pids = launched.wait_until_running()
        os.kill(pids["collector_1"], signal.SIGKILL)
        until(lambda: "collector_1 was killed" in logged("launcher"), 60)
        launched.process.send_signal(signal.SIGTERM)
        code, _, err = launched.end()
        assert code == 143, err
    finally:
        launched.process.kill()
        launched.process.communicate(timeout=60)
    found = accounts()
    made = sum(one["stepped"] for one in found.values())
    written = sum(lengths(tmp_path / "counted").values())
    if vectorization == "sync":
        assert abs(found["collector_1"]["stepped"] - lengths(tmp_path / "counted")[pids["collector_1"]]) <= 1
        assert abs(made - written) <= 1
    else:  # its environments may have done what they were asked for, or not
        assert abs(made - written) <= 4
    assert found["collector_1"]["lost"] == sum(
        found["collector_1"][term] for term in ("waiting", "held", "collecting")
    )
    assert sum(one["received"] for one in found.values()) == Run.open("run").result["env_step"]


@pytest.mark.slow
def test_the_jobs_of_a_killed_actor_are_lost(start: Start) -> None:
    launched = Launched(
        *("stop.env_step=1_000_000_000", "--role", "actor=2", "--on-loss", "actor=restart:3"),
        program="league/rock_paper_scissors",
    )
    try:
        pids = launched.wait_until_running()
        os.kill(pids["actor_1"], signal.SIGKILL)
        until(lambda: launched.wait_until_running()["actor_1"] != pids["actor_1"], 60)
        launched.process.send_signal(signal.SIGTERM)
        code, _, err = launched.end()
        assert code == 143, err
    finally:
        launched.process.kill()
        launched.process.communicate(timeout=60)
    for one in accounts().values():
        assert one["jobs_given"] == one["jobs_counted"] + one["jobs_open"] + one["jobs_lost"]
    assert accounts()["actor_1"]["jobs_lost"] <= 2
    assert accounts()["actor_0"]["jobs_lost"] == 0
