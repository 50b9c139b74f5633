"""Connections break, peers do not read, or send more than anybody can take."""

from __future__ import annotations

import pytest
from fleet_of_processes import (
    ENDS_SECONDS,
    SILENT_SECONDS,
    Fleet,
    accounts,
    ended,
    resident,
    until,
)
from storm import STEPS

from engine.errors import DeadlineExceeded
from engine.launch.attach import find, observing
from engine.runs.folder import Run

TWO = ("--role", "collector=2")


@pytest.mark.parametrize("size", [60_000, 1 << 17], ids=["by socket", "by shared memory"])
def test_nothing_is_lost_nor_comes_twice_when_connections_break(fleet: Fleet, size: int) -> None:
    # The learner itself fails the run where an env step is missing or comes again.
    run = fleet.launch(f"size={size}", "--tcp", "127.0.0.1")
    run.wait_until_running()
    worker = fleet.script("cut_off.py", "collector", "0.25", "32")
    until(lambda: "cut off" in worker.printed, 60, "it was cut off often enough")
    assert int(worker.printed.split()[2]) >= 32
    assert "collector_1 was lost" not in run.said
    assert run.seats()["collector_1"]["state"] == "running"
    begin = run.seats()["collector_1"]["env_step"]
    until(lambda: run.seats()["collector_1"]["env_step"] > begin + 200, 30, "it goes on")
    assert run.stop() == 130, run.said
    assert worker.end(ENDS_SECONDS) == 0, worker.said
    totals = accounts()
    assert totals["collector_1"]["received"] > 200
    assert totals["collector_1"]["lost"] == 0


def stare(role: str) -> None:
    """Make the bus of a process, which serves this, stand still."""
    with observing(find("run"), timeout=30) as bus, pytest.raises(DeadlineExceeded):
        bus.call(f"{role}_stare", timeout=1)


def test_a_collector_that_reads_nothing_is_lost_and_the_other_goes_on(fleet: Fleet) -> None:
    run = fleet.launch("deaf=collector_1", *TWO)
    pids = run.wait_until_running()
    before = {seat: resident(pids[seat]) for seat in ("learner_0", "collector_0")}
    stare("collector")
    until(lambda: "collector_1 was lost: it has not answered" in run.said, SILENT_SECONDS)
    assert "the run goes on with 1 collector" in run.said
    run.wait_until_learning()
    for seat, bytes_before in before.items():
        assert resident(pids[seat]) < bytes_before + (64 << 20), seat
    assert run.stop() == 130, run.said
    accounts()


def test_a_learner_that_reads_nothing_fails_the_run(fleet: Fleet) -> None:
    run = fleet.launch("deaf=learner", *TWO)
    run.wait_until_running()
    stare("learner")
    assert run.end(SILENT_SECONDS) == 1
    assert "error: learner_0 was lost: it has not answered" in run.said
    accounts()


def test_a_learner_that_takes_nothing_is_named_by_those_who_wait(fleet: Fleet) -> None:
    run = fleet.launch("hang=learner", "patience=4", *TWO)
    assert run.end(40) == 1
    assert "nobody took an item of 'collector_trajectories' within 4 s" in run.said
    assert "wait for learner_0" in run.said
    assert Run.open("run").state == "failed"
    accounts()


def test_a_collector_that_sends_nothing_is_named_by_a_lockstep_learner(fleet: Fleet) -> None:
    run = fleet.launch("hang=collector_1", "patience=4", "lockstep=true", *TWO)
    assert run.end(40) == 1
    assert "no item of 'collector_trajectories' of collector_1 came within 4 s" in run.said
    accounts()


def test_a_flood_drowns_nobody(fleet: Fleet) -> None:
    run = fleet.launch("flood=collector_1", "pause=0.002", *TWO)
    pids = run.wait_until_running()
    before = {seat: resident(pids[seat]) for seat in pids}
    slowest = max(run.wait_until_learning(400) for _ in range(5))
    assert slowest < ENDS_SECONDS
    grown = {seat: (resident(pids[seat]) - before[seat]) >> 20 for seat in pids}
    assert max(grown.values()) < 256, grown
    assert run.stop() == 130, run.said
    assert {one["lost"] for one in accounts().values()} == {0}
    assert set(ended().values()) == {"finished"}


def test_what_an_unfinished_iteration_took_is_told(fleet: Fleet) -> None:
    run = fleet.launch("hang=collector_1", "lockstep=true", *TWO)
    run.wait_until_running()
    # Collector 1 hangs after 20 items; the learner has the 21st of the other, and waits.

    def waits() -> bool:
        totals = run.status()["exchange"]
        one, other = totals["collector_0"], totals["collector_1"]
        return one["pushed"] == 21 * STEPS and other["received"] == one["received"] == 20 * STEPS

    until(waits, what="the learner waits for the 21st")
    assert run.stop() == 130, run.said
    totals = accounts()
    assert totals["collector_0"]["unlearned"] == STEPS
    assert f"{STEPS} of collector_0 were taken in an iteration that did not finish" in run.said
