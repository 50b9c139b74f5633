"""Processes of a run stand still for a while: shorter, or longer, than the others wait for them."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

from fleet_of_processes import (
    ENDS_SECONDS,
    SILENT_SECONDS,
    Fleet,
    Launched,
    accounts,
    ended,
    processes_of,
    until,
)

from engine.runs.folder import Run

TWO = ("--role", "collector=2")
SHORT_SECONDS = 3.0
DEAF = r"(it has not answered for|the connection broke|nothing was heard)"


def told(pattern: str, run: Launched) -> bool:
    """Whether the launcher said something."""
    return re.search(pattern, run.said) is not None


def stand_still(pid: int) -> None:
    """Stop a process for a time that is shorter than others wait."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(SHORT_SECONDS)  # this is what is tested
    os.kill(pid, signal.SIGCONT)


def test_a_run_goes_on_as_if_nothing_was_when_its_processes_stand_still_for_a_moment(fleet: Fleet) -> None:
    run = fleet.launch("lockstep=true", *TWO)
    pids = run.wait_until_running()
    for pid in (pids["collector_1"], pids["learner_0"], run.process.pid):
        stand_still(pid)
        run.wait_until_learning()
    assert run.stop() == 130, run.said
    assert {one["lost"] for one in accounts().values()} == {0}
    assert set(ended().values()) == {"finished"}
    assert "was lost" not in run.said


def test_a_league_goes_on_when_its_processes_stand_still_for_a_moment(fleet: Fleet) -> None:
    words = ("stop.env_step=1000000000", "--role", "actor=2")
    run = fleet.launch(*words, program="league/rock_paper_scissors")
    pids = run.wait_until_running()
    for seat in ("actor_1", "league_0"):
        stand_still(pids[seat])
        before = {name: row["env_step"] for name, row in run.seats().items()}

        def on(before: dict[str, int] = before) -> bool:
            return all(row["env_step"] > before[name] for name, row in run.seats().items())

        until(on, 30, "everybody goes on")
    assert run.stop() == 130, run.said
    assert set(ended().values()) == {"finished"}


def test_a_collector_that_stands_still_is_lost_and_a_lockstep_run_goes_on(fleet: Fleet) -> None:
    run = fleet.launch("lockstep=true", *TWO)
    pids = run.wait_until_running()
    os.kill(pids["collector_1"], signal.SIGSTOP)
    until(lambda: told(f"collector_1 was lost: {DEAF}", run), SILENT_SECONDS, "the loss is told")
    assert "the run goes on with 1 collector" in run.said
    run.wait_until_learning()
    assert run.stop() == 130, run.said
    assert accounts()["collector_1"]["stepped"] > 0
    assert ended()["collector_1"] == "lost"


def test_a_worker_that_comes_back_too_late_is_told_that_it_is_out(fleet: Fleet) -> None:
    run = fleet.launch()
    run.wait_until_running()
    worker = fleet.worker("collector")
    until(lambda: (run.seats().get("collector_1", {}).get("env_step") or 0) > 0, what="the worker works")
    worker.process.send_signal(signal.SIGSTOP)
    until(lambda: told(f"collector_1 was lost: {DEAF}", run), SILENT_SECONDS, "the loss is told")
    run.wait_until_learning()
    worker.process.send_signal(signal.SIGCONT)
    assert worker.end(ENDS_SECONDS) == 1, worker.said
    assert "it had declared this process lost" in worker.said
    run.wait_until_learning()
    assert run.stop() == 130, run.said
    assert accounts()["collector_1"]["received"] > 0


def test_a_learner_that_stands_still_fails_the_run(fleet: Fleet) -> None:
    run = fleet.launch(*TWO)
    pids = run.wait_until_running()
    os.kill(pids["learner_0"], signal.SIGSTOP)
    assert run.end(SILENT_SECONDS) == 1
    assert told(f"error: learner_0 was lost: {DEAF}", run), run.said
    assert "the run cannot go on without its learner" in run.said
    assert Run.open("run").state == "failed"
    accounts()


def test_who_waits_in_vain_for_a_launcher_that_stands_still_ends(fleet: Fleet, tmp_path: Path) -> None:
    run = fleet.launch(*TWO)
    run.wait_until_running()
    run.process.send_signal(signal.SIGSTOP)
    left = {os.getpid(), run.process.pid}
    until(lambda: len(set(processes_of(tmp_path)) - left) <= 1, SILENT_SECONDS, "all but the janitor end")
    run.process.send_signal(signal.SIGCONT)
    assert run.end(ENDS_SECONDS) == 1
    assert "the launcher stood still for" in run.said
    assert "HubLost" in run.said
    assert Run.open("run").state == "failed"
