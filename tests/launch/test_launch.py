"""Programs launched in threads and in processes: how they end, and what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from launched import ENDLESS, Start
from surviving import logged, survivors, until

from engine.bus.memory import Network
from engine.errors import PeerLost, RemoteError, UsageError
from engine.launch.attach import Whereabouts, find, observing, work_for
from engine.launch.backend import Ended
from engine.launch.card import read_card
from engine.launch.start import launch
from engine.runs.folder import Run

pytestmark = pytest.mark.timeout(300)

BOTH = pytest.mark.parametrize("backend", ["threads", pytest.param("processes", marks=pytest.mark.slow)])


def summed(run: Run) -> int:
    return int(run.result["env_step"])


@BOTH
def test_a_program_runs_to_its_end_and_leaves_a_folder(backend: Any) -> None:
    run = launch(
        "programs:add", {"collector": 2}, ["until=50"], backend=backend, run_dir="run", progress="off"
    )
    assert (run.state, run.info["stop_reason"]) == ("finished", "the sum is reached")
    assert summed(run) == 50
    assert run.info["roles"] == {"collector": 2, "learner": 1}
    card = read_card(run)
    assert card is not None
    assert card.address is None
    assert {row["seat"]: row["state"] for row in card.status["seats"]} == {
        "collector_0": "finished",
        "collector_1": "finished",
        "learner_0": "finished",
    }


@BOTH
def test_the_first_failure_reaches_the_caller_with_its_traceback(backend: Any) -> None:
    with pytest.raises(
        RemoteError, match="learner_0 failed: ValueError: learner_0 does not like 5"
    ) as caught:
        launch("programs:add", None, ["fail=learner"], backend=backend, run_dir="run", progress="off")
    assert "in misbehave" in caught.value.__notes__[0]
    run = Run.open("run")
    assert run.state == "failed"
    assert "does not like 5" in run.info["stop_reason"]


@BOTH
def test_a_collector_that_fails_is_missed_by_nobody_while_another_is_left(
    backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = launch(
        "programs:add",
        {"collector": 2},
        ["until=60", "fail=collector_1", "said='the run goes on with 1 collector'"],
        backend=backend,
        run_dir="run",
        progress="plain",
    )
    assert run.state == "finished"
    assert summed(run) >= 60
    said = capsys.readouterr().err
    assert "collector_1 failed: ValueError: collector_1 does not like 5; the run goes on" in said


@BOTH
def test_the_last_collector_that_fails_fails_the_run(backend: Any) -> None:
    with pytest.raises(RemoteError, match=r"collector_0 failed: ValueError.*none is left of role collector"):
        launch("programs:add", None, ["fail=collector"], backend=backend, run_dir="run", progress="off")


def test_a_recipe_itself_can_be_launched() -> None:
    import programs

    run = launch(programs.add, overrides=["until=20"], backend="threads", run_dir="run", progress="off")
    assert summed(run) == 20


class Deaf:
    """A backend whose processes never join."""

    def open(self) -> Any:
        return Network().transport()

    def start(self, order: Any, *, on_end: Any, on_line: Any) -> Any:
        class Process:
            pid = 7

            def terminate(self) -> None:
                on_end(Ended(-15, "killed by SIGTERM"))

            def kill(self) -> bool:
                on_end(Ended(-9, "killed by SIGKILL"))
                return True

        return Process()

    def close(self) -> None:
        """Nothing was started."""


def test_who_does_not_join_in_time_is_named() -> None:
    with pytest.raises(PeerLost, match=r"collector_0 did not join within 0.1 s; none is left of role coll"):
        launch("programs:add", backend=Deaf(), run_dir="run", progress="off", join_timeout=0.1)


def test_mistakes_are_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'collector'"):
        launch("programs:add", {"colector": 1})
    with pytest.raises(UsageError, match="no backend 'proceses'"):
        launch("programs:add", backend="proceses", run_dir="run")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="only where the roles run in processes"):
        launch("programs:add", backend="threads", tcp="127.0.0.1", run_dir="run")
    with pytest.raises(UsageError, match="no progress mode 'plian'"):
        launch("programs:add", backend="threads", progress="plian", run_dir="run")
    assert list(tmp_path.iterdir()) == []


class Chatty(Deaf):
    """A backend whose process never joins, and prints all the time."""

    def start(self, order: Any, *, on_end: Any, on_line: Any) -> Any:
        ended = threading.Event()

        class Process:
            pid = 7

            def terminate(self) -> None:
                self.kill()

            def kill(self) -> bool:
                ended.set()
                on_end(Ended(-9, "killed by SIGKILL"))
                return True

        def chat() -> None:
            while not ended.is_set():
                on_line("still here " * 100)

        threading.Thread(target=chat, daemon=True).start()
        return Process()


def test_no_deadline_waits_behind_what_a_process_prints() -> None:
    with pytest.raises(PeerLost, match=r"did not join within 0.1 s"):
        launch("programs:add", backend=Chatty(), run_dir="run", progress="off", join_timeout=0.1)


def test_what_was_started_to_outlive_its_terminal_does() -> None:
    heeded: list[Any] = []

    class Looking(Deaf):
        def start(self, order: Any, *, on_end: Any, on_line: Any) -> Any:
            heeded.append(signal.getsignal(signal.SIGHUP))
            return super().start(order, on_end=on_end, on_line=on_line)

    before = signal.getsignal(signal.SIGHUP)
    try:
        for how in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signal.SIGHUP, how)
            with pytest.raises(PeerLost):
                launch("programs:add", backend=Looking(), progress="off", join_timeout=0.1)
            assert signal.getsignal(signal.SIGHUP) == how
    finally:
        signal.signal(signal.SIGHUP, before)
    ignored, default = heeded[0], heeded[-1]
    assert ignored == signal.SIG_IGN, "as nohup wants"
    assert callable(default), "the run ends in order"


class Here:
    """A run of two collectors and a learner in threads, and its place for who comes from elsewhere."""

    def __init__(self, *words: str) -> None:
        self.network = Network()
        self.done: list[Run] = []
        self._words = words
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: Path("run/launch.json").exists() or not self._thread.is_alive())
        found, network = find("run"), self.network

        class Place(Whereabouts):
            def transport(self) -> Any:
                return network.transport()

        self.place = Place(found.run, found.address)

    def _run(self) -> None:
        from engine.launch.threads import Threads

        self.done.append(
            launch(
                "programs:add",
                {"collector": 2},
                ["until=1_000_000", *self._words],
                backend=Threads(self.network),
                run_dir="run",
                progress="off",
            )
        )

    def rows(self) -> dict[str, dict[str, Any]]:
        """What is shown of each process."""
        with observing(self.place) as bus:
            return {row["seat"]: row for row in bus.call("launcher_get_status", timeout=30)["seats"]}

    def until_running(self) -> None:
        """Wait until every process has done something."""
        with observing(self.place) as bus:

            def running() -> bool:
                rows = bus.call("launcher_get_status", timeout=30)["seats"]
                return all(row["state"] == "running" and (row.get("env_step") or 0) > 0 for row in rows)

            until(running)

    def stop(self, **how: Any) -> Run:
        """Stop it; return what came of it."""
        with observing(self.place) as bus:
            bus.call("launcher_stop_run", timeout=30, **how)
        self._thread.join(100)
        return self.done[0]


def test_who_is_there_can_be_asked_and_the_run_stopped_from_elsewhere() -> None:
    here = Here()
    here.until_running()
    run = here.stop()
    assert run.state == "interrupted"
    assert summed(run) > 0


def test_a_run_that_is_stopped_at_once_is_interrupted_however_quick_its_processes_are() -> None:
    here = Here()
    here.until_running()
    run = here.stop(reason="engine stop", now=True)
    assert (run.state, run.info["stop_reason"]) == ("interrupted", "by engine stop")


def test_who_wants_to_join_in_the_role_that_records_is_refused_and_the_run_goes_on() -> None:
    here = Here("pause=0.001")
    here.until_running()
    heeded = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(
        UsageError,
        match=r"learner in: a learner cannot join this run from elsewhere; collector can$",
    ):
        work_for(here.place, "learner")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == heeded
    assert {name: row["state"] for name, row in here.rows().items()} == {
        "collector_0": "running",
        "collector_1": "running",
        "learner_0": "running",
    }
    assert here.stop().state == "interrupted"


def test_who_wants_to_join_in_no_role_of_the_run_is_told_the_nearest() -> None:
    here = Here("pause=0.001")
    with pytest.raises(UsageError, match=r"did not let colector in: .* did you mean 'collector'"):
        work_for(here.place, "colector")
    assert here.stop().state == "interrupted"


def test_a_mistake_of_a_worker_from_elsewhere_is_its_own_and_the_run_goes_on() -> None:
    here = Here("pause=0.001", "mistake=collector_2", "at=0")
    here.until_running()
    with pytest.raises(UsageError, match="collector_2 has not what it takes"):
        work_for(here.place, "collector")
    until(lambda: here.rows()["collector_2"]["state"] == "lost")
    assert here.rows()["learner_0"]["state"] == "running"
    assert here.stop().state == "interrupted"


def test_the_command_runs_a_program_in_processes_and_ends_in_order_on_ctrl_c(start: Start) -> None:
    launched = start(*ENDLESS)
    launched.wait_until_running()
    launched.process.send_signal(signal.SIGINT)
    code, out, err = launched.end()
    assert code == 130, err
    assert json.loads(out)["stop_reason"] == "interrupted"
    rows = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    said = [row["text"] for row in rows if row["event"] == "output"]
    assert "hello from collector_1" in said
    run = Run.open("run")
    assert run.state == "interrupted"
    assert summed(run) > 0


@pytest.mark.slow
def test_nothing_survives_the_kill_of_the_launcher(start: Start, tmp_path: Path) -> None:
    launched = start(*ENDLESS)
    launched.wait_until_running()
    launched.process.kill()
    launched.end()
    until(lambda: set(survivors(tmp_path)) <= {os.getpid()}, 20)
    assert Run.open("run").state == "died"


@pytest.mark.slow
def test_a_killed_learner_ends_the_run_and_is_named(start: Start) -> None:
    launched = start(*ENDLESS)
    os.kill(launched.wait_until_running()["learner_0"], signal.SIGKILL)
    code, _, err = launched.end()
    assert code == 1
    assert "learner_0 was killed by SIGKILL; the run cannot go on without its learner" in err
    assert Run.open("run").state == "failed"


@pytest.mark.slow
def test_a_killed_collector_is_started_again(start: Start) -> None:
    launched = start(
        "until=100",
        "pause=0.001",
        "kill=collector_1",
        "mark=mark",
        "said='hello again from collector_1'",
        "--role",
        "collector=2",
        "--on-loss",
        "collector=restart:2",
    )
    code, _, err = launched.end()
    assert code == 0, err
    assert "collector_1 was killed by SIGKILL; it is started again in 0.5 s" in err
    card = read_card(Run.open("run"))
    assert card is not None
    assert {row["seat"]: row["restarts"] for row in card.status["seats"]}["collector_1"] == 1


@pytest.mark.slow
def test_a_stopped_collector_is_lost_and_the_others_go_on(start: Start) -> None:
    launched = start(*ENDLESS)
    os.kill(launched.wait_until_running()["collector_1"], signal.SIGSTOP)
    with observing(find("run"), timeout=60) as bus:

        def lost() -> bool:
            rows = bus.call("launcher_get_status", timeout=60)["seats"]
            return {row["seat"]: row["state"] for row in rows}["collector_1"] == "lost"

        until(lost)
        bus.call("launcher_stop_run", timeout=60)
    code, _, err = launched.end()
    assert code == 130, err
    assert "collector_1 was lost: " in err


@pytest.mark.slow
def test_a_collector_that_does_not_listen_is_killed_at_the_end(start: Start) -> None:
    launched = start("until=100", "hang=collector_1", "said='collector_1 hangs'", "--role", "collector=2")
    code, _, err = launched.end()
    assert code == 0, err
    assert "collector_1 has not left yet" in err


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once(start: Start) -> None:
    launched = start(*ENDLESS, "hang=learner")
    until(lambda: "learner_0 hangs" in logged("learner_0"))
    launched.process.send_signal(signal.SIGINT)
    until(lambda: "once more stops at once" in logged("launcher"))
    launched.process.send_signal(signal.SIGINT)
    code, _, err = launched.end()
    assert code in (1, 130), err
    assert Run.open("run").state == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["run", "tcp"])
def test_a_worker_joins_a_running_program_and_leaves_with_it(start: Start, how: str) -> None:
    launched = start(*ENDLESS, *(["--tcp", "127.0.0.1"] if how == "tcp" else []))
    launched.wait_until_running()
    where = ["run"]
    if how == "tcp":
        card = read_card(Run.open("run"))
        assert card is not None
        assert card.address is not None
        place = next(part for part in card.address.split() if part.startswith("tcp://"))
        where = [place.partition("#")[0], "--key-file", "run/run.key"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "engine.cli.main", "worker", "--role", "collector", "--attach", *where],
        stderr=subprocess.PIPE,
        text=True,
    )
    with observing(find("run"), timeout=60) as bus:

        def joined() -> bool:
            rows = {row["seat"]: row for row in bus.call("launcher_get_status", timeout=60)["seats"]}
            return "collector_2" in rows and (rows["collector_2"].get("env_step") or 0) > 0

        until(joined)
        bus.call("launcher_stop_run", timeout=60)
    code, _, err = launched.end()
    assert code == 130, err
    assert "collector_2 has joined" in err
    assert worker.communicate(timeout=60)[1] == "joined as collector_2; Ctrl-C leaves\n"
    assert worker.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ppo/cartpole", "impala/cartpole", "dqn/cartpole"])
def test_a_shipped_recipe_is_trained_by_processes(target: str) -> None:
    run = launch(
        target,
        {"collector": 2},
        ["stop.env_step=3000", "evaluate.episodes=2", "evaluate.video=0"],
        run_dir="run",
        progress="off",
    )
    assert run.state == "finished"
    assert summed(run) >= 3000
    assert (run.path / "policies" / "best").is_dir()
