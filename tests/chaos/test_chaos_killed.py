"""Processes of a run are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fleet_of_processes import (
    ENDS_SECONDS,
    Fleet,
    accounts,
    ended,
    foreign_slots,
    own_slots,
    processes_of,
    until,
)

from engine.runs.folder import Run

TWO = ("--role", "collector=2")


def test_a_killed_collector_is_named_its_loss_counted_and_the_other_goes_on(fleet: Fleet) -> None:
    run = fleet.launch(*TWO)
    run.wait_until_running()
    run.kill("collector_1")
    sentence = "collector_1 was killed by SIGKILL; the run goes on with 1 collector; "
    until(lambda: sentence in run.said, ENDS_SECONDS, "the loss is told")
    run.wait_until_learning()
    assert run.stop() == 130, run.said
    totals = accounts()
    assert totals["collector_1"]["stepped"] > 0
    assert totals["collector_0"]["lost"] == 0
    assert ended() == {"collector_0": "finished", "collector_1": "lost", "learner_0": "finished"}
    told = re.search(r"of its ([\d,]+) env steps ", run.said)
    assert told is not None, run.said
    # By what it had said when its end was noticed; more may have been under way.
    assert 0 < int(told[1].replace(",", "")) <= totals["collector_1"]["stepped"]


def test_the_memory_of_a_killed_collector_is_let_go_of(fleet: Fleet) -> None:
    run = fleet.launch(*TWO)
    pids = run.wait_until_running()
    its_memory, learner = own_slots(pids["collector_1"]), pids["learner_0"]
    assert foreign_slots(learner) & its_memory
    run.kill("collector_1")
    until(lambda: "collector_1 was killed by SIGKILL" in run.said, ENDS_SECONDS, "the loss is told")
    run.wait_until_learning()
    until(
        lambda: not foreign_slots(learner) & its_memory, 20, "the learner lets go of the memory of the dead"
    )
    assert run.stop() == 130, run.said


def test_a_lockstep_run_goes_on_when_a_collector_is_killed(fleet: Fleet) -> None:
    run = fleet.launch("lockstep=true", *TWO)
    run.wait_until_running()
    run.kill("collector_1")
    until(lambda: "collector_1 was killed by SIGKILL; the run goes on with 1 collector" in run.said)
    run.wait_until_learning()
    assert run.stop() == 130, run.said
    totals = accounts()
    assert totals["collector_1"]["received"] > 0
    assert totals["collector_1"]["unlearned"] + totals["collector_1"]["lost"] <= 32


def test_a_lockstep_run_begins_without_a_collector_that_was_killed_at_once(fleet: Fleet) -> None:
    run = fleet.launch("lockstep=true", "--role", "collector=3")
    until(lambda: Path("run/launch.json").exists(), what="the launcher is there")
    pids = {seat: row["pid"] for seat, row in run.seats().items()}
    os.kill(pids["collector_1"], signal.SIGKILL)
    until(lambda: "collector_1 was killed by SIGKILL; the run goes on with 2 collectors" in run.said)
    run.wait_until_learning()
    assert run.stop() == 130, run.said
    assert accounts().keys() == {"collector_0", "collector_2"}


def test_a_killed_collector_that_is_started_again_loses_no_count(fleet: Fleet) -> None:
    run = fleet.launch(*TWO, "--on-loss", "collector=restart:2")
    run.wait_until_running()
    run.kill("collector_1")
    until(lambda: "collector_1 was killed by SIGKILL; it is started again in 0.5 s" in run.said)
    run.wait_until_running()
    run.wait_until_learning()
    assert run.stop() == 130, run.said
    assert accounts()["collector_1"]["received"] > 0


def test_without_the_last_collector_the_run_fails_and_says_so(fleet: Fleet) -> None:
    run = fleet.launch()
    run.wait_until_running()
    run.kill("collector_0")
    assert run.end(ENDS_SECONDS) == 1
    assert "error: collector_0 was killed by SIGKILL; none is left of role collector" in run.said
    assert Run.open("run").state == "failed"
    assert accounts()["collector_0"]["lost"] <= 64


def test_a_killed_learner_ends_the_run_and_is_named(fleet: Fleet) -> None:
    run = fleet.launch(*TWO)
    run.wait_until_running()
    run.kill("learner_0")
    assert run.end(ENDS_SECONDS) == 1
    assert "error: learner_0 was killed by SIGKILL; the run cannot go on without its learner" in run.said
    assert Run.open("run").state == "failed"
    accounts()


def test_everything_ends_with_a_killed_launcher(fleet: Fleet, tmp_path: Path) -> None:
    run = fleet.launch(*TWO)
    run.wait_until_running()
    worker = fleet.worker("collector")
    until(lambda: "joined as collector_2" in worker.said, what="the worker has joined")
    until(lambda: "collector_2" in run.seats())
    os.kill(run.process.pid, signal.SIGKILL)
    begin = time.monotonic()
    assert worker.end(ENDS_SECONDS) == 1, worker.said
    assert "launcher_0, which holds the run together, was lost" in worker.said
    left = ENDS_SECONDS - (time.monotonic() - begin)
    until(lambda: set(processes_of(tmp_path)) <= {os.getpid()}, max(left, 0.1), "all processes end")
    assert run.end(5) == -signal.SIGKILL
    assert Run.open("run").state == "died"


def test_a_killed_league_ends_the_run_and_a_killed_actor_does_not(fleet: Fleet) -> None:
    words = ("stop.env_step=1000000000", "--role", "actor=2")
    run = fleet.launch(*words, program="league/rock_paper_scissors")
    run.wait_until_running()
    run.kill("actor_1")
    until(lambda: "actor_1 was killed by SIGKILL; the run goes on with 1 actor" in run.said, ENDS_SECONDS)
    run.kill("league_0")
    assert run.end(ENDS_SECONDS) == 1
    assert "error: league_0 was killed by SIGKILL; the run cannot go on without its league" in run.said


def test_a_process_that_stands_still_ends_with_a_killed_launcher_and_janitor(
    fleet: Fleet, tmp_path: Path
) -> None:
    run = fleet.launch(*TWO)
    pids = run.wait_until_running()
    os.kill(pids["collector_1"], signal.SIGSTOP)
    others = set(processes_of(tmp_path)) - {os.getpid(), run.process.pid, *pids.values()}
    assert len(others) == 1, "the janitor"
    for pid in (*others, run.process.pid):
        os.kill(pid, signal.SIGKILL)
    assert run.end(5) == -signal.SIGKILL
    until(lambda: set(processes_of(tmp_path)) <= {os.getpid()}, ENDS_SECONDS, "all processes end")
    # Nobody is left who could remove it: this is the one thing that may remain, until the next run.
    (folder,) = Path(os.environ["TMPDIR"]).iterdir()
    os.utime(folder, (0, 0))
    again = fleet.launch(run="again")
    until(lambda: not folder.exists(), ENDS_SECONDS, "the next launcher removes what was left")
    again.wait_until_running()
    assert again.stop() == 130, again.said


def test_without_its_janitor_a_run_ends_as_ever(fleet: Fleet, tmp_path: Path) -> None:
    run = fleet.launch(*TWO)
    pids = run.wait_until_running()
    for pid in set(processes_of(tmp_path)) - {os.getpid(), run.process.pid, *pids.values()}:
        os.kill(pid, signal.SIGKILL)
    run.wait_until_learning()
    assert run.stop() == 130, run.said
    accounts()


@pytest.mark.parametrize("moment", ["joining", "joined", "working"])
def test_a_worker_leaves_quietly_when_the_run_ends_whatever_it_is_doing(fleet: Fleet, moment: str) -> None:
    run = fleet.launch()
    run.wait_until_running()
    worker = fleet.worker("collector")
    if moment == "joined":
        until(lambda: "joined as collector_1" in worker.said)
    elif moment == "working":
        until(lambda: (run.seats().get("collector_1", {}).get("env_step") or 0) > 0)
    assert run.stop() == 130, run.said
    if moment == "joining":
        # The run may have been over before it looked (2), or have closed its door while it knocked (1).
        assert worker.end(ENDS_SECONDS) in (0, 1, 2), worker.said
    else:
        assert worker.end(ENDS_SECONDS) == 0, worker.said
        assert worker.said == "joined as collector_1; Ctrl-C leaves\n"


def test_the_tests_leave_nothing_when_they_are_killed(fleet: Fleet, tmp_path: Path) -> None:
    # A test process that starts a launcher, and is killed.
    code = """
import os, sys, time
from fleet_of_processes import Fleet
from pathlib import Path
Fleet(Path(os.environ["TEST_RUN"])).launch("--role", "collector=2").wait_until_running()
print("running", flush=True)
time.sleep(1000)
"""
    test = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert test.stdout is not None
        assert test.stdout.readline() == "running\n"
    finally:
        test.kill()
    test.communicate(timeout=30)
    until(lambda: set(processes_of(tmp_path)) <= {os.getpid()}, ENDS_SECONDS, "all processes end")
