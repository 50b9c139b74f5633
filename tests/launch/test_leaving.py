"""Processes that leave while the run goes on, and signals to a launcher and its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launched import ENDLESS, Start
from surviving import logged, until

from engine.bus.memory import Network
from engine.errors import PeerLost
from engine.launch import launcher
from engine.launch.attach import find, observing
from engine.launch.backend import Ended, Order, cause
from engine.launch.card import read_card
from engine.launch.start import launch
from engine.runs.folder import Run

pytestmark = pytest.mark.timeout(200)


class Seated:
    """A process that only ends, as the test says or when it is killed."""

    pid = None

    def __init__(self, on_end: Callable[[Ended], None]) -> None:
        self._on_end: Callable[[Ended], None] | None = on_end

    def end(self, code: int) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(Ended(code, cause(code)))

    def terminate(self) -> None:
        self.end(-signal.SIGTERM)

    def kill(self) -> bool:
        self.end(-signal.SIGKILL)
        return True


class Ends:
    """A backend that starts nothing: ``script(ends)`` says, on a thread, which process ends how, and when."""

    def __init__(self, script: Callable[[Ends], None]) -> None:
        self.started: dict[str, list[Seated]] = {}
        self._script = threading.Thread(target=script, args=(self,), daemon=True)

    def open(self) -> Any:
        self._script.start()
        return Network().transport()

    def start(self, order: Order, *, on_end: Any, on_line: Any) -> Seated:
        process = Seated(on_end)
        self.started.setdefault(str(order.seat), []).append(process)
        return process

    def process(self, seat: str, turn: int = 0) -> Seated:
        """The process that took a seat, for the first time or a later one."""
        until(lambda: len(self.started.get(seat, ())) > turn, 30)
        return self.started[seat][turn]

    def close(self) -> None:
        self._script.join(30)


def run(script: Callable[[Ends], None], *on_loss: str) -> tuple[Run, BaseException | None]:
    """Launch two collectors and a learner that end by a script; return the run, and what it raised."""
    try:
        launch(
            "programs:add",
            {"collector": 2},
            backend=Ends(script),
            run_dir="run",
            progress="plain",
            on_loss=on_loss,
        )
    except PeerLost as error:
        return Run.open("run"), error
    return Run.open("run"), None


def stop(*processes: Seated) -> None:
    """End all by one signal."""
    os.kill(os.getpid(), signal.SIGTERM)
    for process in processes:
        process.end(143)


@pytest.mark.parametrize(("code", "words"), [(0, "exit code 0"), (7, "exit code 7"), (-10, "SIGUSR1")])
def test_a_process_that_leaves_while_the_run_goes_on_is_lost(
    code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(ends: Ends) -> None:
        others = [ends.process(seat) for seat in ("collector_0", "learner_0")]
        ends.process("collector_1").end(code)
        stop(ends.process("collector_1", turn=1), *others)

    ended, error = run(script, "collector=restart:3")
    assert error is None
    assert ended.state == "interrupted"
    said = [line for line in capsys.readouterr().err.splitlines() if "collector_1 " in line]
    assert len(said) == 1, said
    assert words in said[0]
    assert "it is started again in 0.5 s" in said[0]


@pytest.mark.parametrize("code", [143, 129, -signal.SIGTERM])
def test_a_process_that_a_signal_made_leave_is_lost_once_the_launcher_could_have_got_it_too(
    code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launcher, "SIGNAL_SECONDS", 0.5)
    begin: list[float] = []

    def script(ends: Ends) -> None:
        processes = [ends.process(seat) for seat in ("collector_0", "collector_1", "learner_0")]
        begin.append(time.monotonic())
        processes[0].end(code)
        processes[1].end(code)

    ended, error = run(script)
    assert time.monotonic() - begin[0] >= 0.5
    assert ended.state == "failed"
    name = "SIGHUP" if code == 129 else "SIGTERM"
    assert name in str(error)
    assert "none is left of role collector, which needs 1" in str(error)
    assert "the run goes on" not in capsys.readouterr().err
    assert error is not None
    assert getattr(error, "exit_code", None) == 1


def test_a_signal_to_all_processes_with_the_launcher_last_is_the_stop_of_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    begin: list[float] = []

    def script(ends: Ends) -> None:
        processes = [ends.process(seat) for seat in ("collector_0", "collector_1", "learner_0")]
        for process in processes:
            process.end(143)
        begin.append(time.monotonic())
        time.sleep(0.5)  # the launcher's own comes later; that it can is what is tested
        os.kill(os.getpid(), signal.SIGTERM)

    ended, error = run(script, "collector=restart:3")
    assert error is None
    assert time.monotonic() - begin[0] < 2.0
    assert (ended.state, ended.info["stop_reason"]) == ("interrupted", "sigterm")
    said = capsys.readouterr().err
    assert "collector_" not in said, said
    card = read_card(ended)
    assert card is not None
    assert {row["state"] for row in card.status["seats"]} == {"finished"}


def test_a_kill_is_not_waited_with() -> None:
    begin: list[float] = []

    def script(ends: Ends) -> None:
        processes = [ends.process(seat) for seat in ("collector_0", "collector_1", "learner_0")]
        begin.append(time.monotonic())
        for process in processes[:2]:
            process.end(-signal.SIGKILL)

    ended, error = run(script)
    assert time.monotonic() - begin[0] < 2.0
    assert "was killed by SIGKILL; none is left of role collector" in str(error)
    assert ended.state == "failed"


def test_a_run_that_failed_before_it_was_stopped_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ends: Ends) -> None:
        for seat in ("collector_0", "collector_1"):
            ends.process(seat).end(-signal.SIGKILL)
        ends.process("learner_0")
        os.kill(os.getpid(), signal.SIGTERM)  # before the learner is ended, which takes 0.3 s

    ended, error = run(script)
    assert "none is left of role collector" in str(error)
    assert ended.state == "failed"
    assert ended.info["stop_reason"] == str(error)
    assert "SIGTERM: the run has failed and is ending" in capsys.readouterr().err


# --- real processes ---------------------------------------------------------------------------


def said(err: str) -> list[str]:
    """What the launcher said, one text a line."""
    rows = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    return [str(row["text"]) for row in rows if row["event"] == "message"]


@pytest.mark.parametrize(
    "order",
    ["launcher last", pytest.param("launcher first", marks=pytest.mark.slow)],
)
def test_one_signal_to_every_process_of_a_run_stops_it(start: Start, order: str) -> None:
    launched = start(*ENDLESS, "--on-loss", "collector=restart:3")
    pids = launched.wait_until_running()
    everybody = [*pids.values(), launched.process.pid]
    for pid in everybody if order == "launcher last" else reversed(everybody):
        os.kill(pid, signal.SIGTERM)
    begin = time.monotonic()
    code, out, err = launched.end()
    assert time.monotonic() - begin < 5.0
    assert code == 143, err
    assert json.loads(out)["exit_code"] == 143
    assert not any("collector_" in text or "learner_" in text for text in said(err)), err
    ended = Run.open("run")
    assert (ended.state, ended.info["stop_reason"]) == ("interrupted", "sigterm")
    assert int(ended.result["env_step"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_launcher_that_is_signalled_ends_every_process_in_order(
    start: Start, number: int, expected: int
) -> None:
    launched = start(*ENDLESS)
    launched.wait_until_running()
    begin = time.monotonic()
    launched.process.send_signal(number)
    code, _, err = launched.end()
    assert time.monotonic() - begin < 5.0
    assert code == expected, err
    assert Run.open("run").info["stop_reason"] == signal.Signals(number).name.lower()


@pytest.mark.slow
def test_a_second_sigterm_stops_at_once(start: Start) -> None:
    launched = start(*ENDLESS, "hang=learner")
    until(lambda: "learner_0 hangs" in logged("learner_0"))
    launched.process.send_signal(signal.SIGTERM)
    until(lambda: "once more stops at once" in logged("launcher"))
    begin = time.monotonic()
    launched.process.send_signal(signal.SIGTERM)
    code, _, err = launched.end()
    assert time.monotonic() - begin < 5.0
    assert code == 143, err
    ended = Run.open("run")
    assert (ended.state, ended.info["stop_reason"]) == ("interrupted", "sigterm")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_collector_that_a_signal_made_leave_is_told_and_started_again(start: Start, number: int) -> None:
    launched = start(*ENDLESS, "--on-loss", "collector=restart:3")
    pids = launched.wait_until_running()
    os.kill(pids["collector_1"], number)
    until(lambda: "collector_1" in logged("launcher"), 30)
    until(lambda: launched.wait_until_running()["collector_1"] != pids["collector_1"])
    with observing(find("run"), timeout=60) as bus:
        bus.call("launcher_stop_run", timeout=60)
    code, _, err = launched.end()
    assert code == 130, err
    told = [text for text in said(err) if "collector_1" in text]
    assert len(told) == 1, told
    assert signal.Signals(number).name in told[0]
    assert "it is started again in 0.5 s, for the first time" in told[0]


@pytest.mark.slow
def test_a_run_whose_collectors_were_all_made_to_leave_ends_at_once(start: Start) -> None:
    launched = start(*ENDLESS)
    pids = launched.wait_until_running()
    for seat in ("collector_0", "collector_1"):
        os.kill(pids[seat], signal.SIGTERM)
    begin = time.monotonic()
    code, _, err = launched.end()
    assert time.monotonic() - begin < 10.0
    assert code == 1, err
    error = "collector_0 left after SIGTERM (exit code 143); none is left of role collector"
    assert error in err
    assert "Traceback" not in err
    assert Run.open("run").state == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_attached_worker_that_leaves_is_told_and_not_started_again(start: Start, number: int) -> None:
    launched = start("until=1_000_000_000", "pause=0.01", "--on-loss", "collector=restart:3")
    pids = launched.wait_until_running()
    command = [sys.executable, "-m", "engine.cli.main", "worker", "--role", "collector", "--attach", "run"]
    worker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: "collector_1 has joined" in logged("launcher"), 60)
    launched.wait_until_running()
    worker.send_signal(number)
    assert worker.communicate(timeout=60)[1] == "joined as collector_1; Ctrl-C leaves\n"
    assert worker.returncode == 128 + number
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    sentence = f"collector_1 has left on {name}; the run goes on with 1 collector"
    until(lambda: sentence in logged("launcher"), 60)
    with observing(find("run"), timeout=60) as bus:
        bus.call("launcher_stop_run", timeout=60)
    code, _, err = launched.end()
    assert code == 130, err
    assert pids["collector_0"] in {row["pid"] for row in read_rows()}
    assert "started again" not in err


@pytest.mark.slow
def test_a_run_ends_when_the_last_worker_that_was_attached_has_left(start: Start) -> None:
    launched = start("until=1_000_000_000", "pause=0.01", "--role", "collector=0", "--tcp", "127.0.0.1")
    until(lambda: Path("run/launch.json").exists(), 60)
    command = [sys.executable, "-m", "engine.cli.main", "worker", "--role", "collector", "--attach", "run"]
    worker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    launched.wait_until_running("collector_0")
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=60)
    assert worker.returncode == 143
    begin = time.monotonic()
    code, _, err = launched.end()
    assert time.monotonic() - begin < 10.0
    assert code == 1, err
    assert "collector_0 has left on SIGTERM; none is left of role collector, which needs 1" in err
    assert "Traceback" not in err


def read_rows() -> list[dict[str, Any]]:
    card = read_card(Run.open("run"))
    assert card is not None
    rows: list[dict[str, Any]] = card.status["seats"]
    return rows
