"""`engine launch` and its companions, as far as they go without starting a process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine.cli.main import call
from engine.launch.card import Card
from engine.runs.folder import Run

PROGRAM = """
import msgspec
from engine.recipes.roles import COLLECTOR, LEARNER
from engine.task import Task

ROLES = (COLLECTOR, LEARNER)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    size: int = 3


def split(config: Settings, *, roles=frozenset(), bus=None):
    if config.size > 9:
        raise ValueError("it cannot be built")
    return Task(bus=bus).use(*[push, send] if "collector" in roles else [take])


def push(ctx):
    raise AssertionError("nothing is run")


def send(ctx):
    raise AssertionError("nothing is run")


def take(ctx):
    raise AssertionError("nothing is run")




def whole(config: Settings):
    raise AssertionError("nothing is built")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("ENGINE_RUNS", "ENGINE_DEBUG", "ENGINE_PROGRESS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "two_roles.py").write_text(PROGRAM)
    return tmp_path


def test_a_dry_run_shows_processes_pipelines_and_configuration_and_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--role", "collector=2", "--on-loss", "collector=restart:4", "--dry-run", "size=5"]
    assert call(["launch", "two_roles:split", *words]) == 0
    shown = capsys.readouterr().out
    assert "collector  x 2  on loss: restart:4" in shown
    assert "learner    x 1  on loss: fail" in shown
    assert "collector_1    engine worker --attach RUN --role collector" in shown
    assert "\ncollector:\n├─ push\n└─ send\n\nlearner:\n└─ take\n" in shown
    assert "size: 5" in shown
    assert not (folder / "runs").exists()


def test_a_dry_run_of_what_cannot_be_built_shows_nothing_but_the_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="it cannot be built"):
        call(["launch", "two_roles:split", "--dry-run", "size=10"])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["two_roles:split", "--role", "colector=2"], 2, "no role 'colector'; did you mean 'collector'"),
        (["two_roles:split", "--role", "collector"], 2, "like --role collector=2"),
        (["two_roles:split", "--role", "collector=0"], 2, "needs at least 1 collector, not 0"),
        (["two_roles:split", "--on-loss", "learner=go_on"], 2, "cannot go on without it"),
        (["two_roles:whole", "--role", "collector=2"], 2, "whole has no roles"),
        (["two_roles:split", "--tcp", "0.0.0.0"], 2, "names no host that others could connect to"),
        (
            ["two_roles:split", "--tcp", "127.0.0.1", "--on", "threads"],
            2,
            "only where the roles run in processes",
        ),
        (["two_roles:split", "sise=2"], 3, "did you mean 'size'"),
        (["nothing/there"], 2, "nothing/there"),
    ],
)
def test_mistakes_are_one_screen_and_start_nothing(
    words: list[str], code: int, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["launch", *words]) == code
    assert sentence in capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_a_script_cannot_be_launched(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["launch", "two_roles.py"]) == 2
    assert "is a script, and has no roles" in capsys.readouterr().err


@pytest.fixture
def past(folder: Path) -> Run:
    """A run of two processes that is over."""
    run = Run.create(env="E", algo="split", seed=0, run_dir=folder / "runs" / "past")
    seats = [
        {"seat": "collector_0", "role": "collector", "state": "lost", "pid": 7, "restarts": 2},
        {"seat": "learner_0", "role": "learner", "state": "finished", "pid": 8, "restarts": 0},
    ]
    status = {"stage": "finishing", "reason": "done", "seconds": 65.0, "progress": {}, "seats": seats}
    Card(run="x", pid=1, host="h", program="two_roles:split", address=None, status=status).write(run.path)
    rows = {
        "collector_0": [("2030-01-01T00:00:02.000+00:00", "warning", "late"), ("", "", "")],
        "learner_0": [("2030-01-01T00:00:01.000+00:00", "info", "early")],
        "main-0": [("2030-01-01T00:00:01.000+00:00", "info", "early")],
    }
    for seat, records in rows.items():
        lines = [json.dumps({"time": t, "level": level, "message": m}) for t, level, m in records if t]
        run.file(f"logs/{seat}.jsonl").write_text("".join(f"{line}\n" for line in lines) + '{"being wri')
    run.finish("finished", "done")
    return run


def test_top_shows_how_a_past_run_ended(past: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["top"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "[1:05]  finishing: done",
        "seat         state     pid  restarts",
        "collector_0  lost      7    2",
        "learner_0    finished  8    0",
    ]
    assert call(["top", "latest", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seats"][0]["restarts"] == 2


def test_top_shows_a_run_in_one_process_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Run.create(env="E", algo="whole", seed=0)
    assert call(["top", "latest", "--once", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(row["seat"], row["state"]) for row in shown["seats"]] == [("main", "running")]


def test_top_names_the_processes_of_a_run_whose_launcher_was_killed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    assert killed.wait(timeout=60) == 0
    Run.create(env="E", algo="split", seed=0, roles={"collector": 1, "learner": 1}).update(pid=killed.pid)
    assert call(["top", "latest", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["reason"]) == ("died", "its launcher is gone, and its processes with it")
    assert [(row["seat"], row["state"]) for row in shown["seats"]] == [
        ("collector_0", "gone"),
        ("learner_0", "gone"),
    ]


def test_logs_of_all_processes_come_in_the_order_of_time(
    past: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["logs", "latest"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "00:00:01.000 learner_0   | early",
        "00:00:02.000 collector_0 | warning: late",
    ]


def test_logs_of_one_role_or_one_process(past: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("collector", "collector_0"):
        assert call(["logs", "latest", "--role", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["message"] == "late"
    assert call(["logs", "latest", "--role", "colector"]) == 2
    assert "did you mean 'collector'" in capsys.readouterr().err


def test_a_run_that_is_over_can_be_neither_stopped_nor_joined(
    past: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["stop", "latest"]) == 2
    assert "does not run: finished" in capsys.readouterr().err
    assert call(["worker", "--attach", "latest", "--role", "collector"]) == 2
    assert "is over: finished" in capsys.readouterr().err


def test_a_run_in_one_process_cannot_be_joined(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Run.create(env="E", algo="whole", seed=0)
    assert call(["worker", "--attach", "latest", "--role", "collector"]) == 2
    assert "runs in one process" in capsys.readouterr().err


def test_a_tcp_address_wants_the_keys(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["worker", "--attach", "tcp://10.0.0.7:41233", "--role", "collector"]) == 2
    assert "give --key-file" in capsys.readouterr().err


def test_keys_are_refused_where_nobody_asks_for_them(past: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["worker", "--attach", "latest", "--role", "collector", "--key-file", "run.key"]) == 2
    assert "--key-file goes with tcp://..., and latest is a run of this machine" in capsys.readouterr().err


def test_top_shows_a_launch_that_has_only_begun_as_starting(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Run.create(env="E", algo="split", seed=0, roles={"collector": 1, "learner": 1})
    assert call(["top", "latest", "--once"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["collector_0", "starting"],
        ["learner_0", "starting"],
    ]


def test_a_run_that_answers_no_more_is_over_once_it_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.cli import top

    run = Run.create(env="E", algo="split", seed=0)
    monkeypatch.setattr(top, "_END_SECONDS", 0.0)
    assert not top._ends(run)
    monkeypatch.setattr(top, "_END_SECONDS", 60.0)
    ends = threading.Thread(target=lambda: Run.open(run.path).finish("finished"))
    ends.start()
    assert top._ends(run)
    ends.join(60)


def test_nobody_waits_for_the_logs_of_a_role_that_a_run_has_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(env="E", algo="split", seed=0, roles={"collector": 1, "learner": 1})
    assert call(["logs", "latest", "-f", "--role", "colector"]) == 2
    assert "did you mean 'collector'" in capsys.readouterr().err
    run.finish("finished")
    run.file("logs/collector_0.jsonl").write_text('{"time": "", "level": "info", "message": "here"}\n')
    assert call(["logs", "latest", "-f", "--role", "collector_0"]) == 0
    assert "here" in capsys.readouterr().out


BUSY = """
import signal, sys

from engine.runs.folder import Run

run = Run.create(env="E", algo="busy", seed=0, run_dir="busy")
times = []
signal.signal(signal.SIGINT, lambda number, frame: times.append(number))
print("ready", flush=True)
while len(times) < 2:
    sum(range(1_000_000))  # in C: what comes meanwhile comes as one
run.finish("interrupted", "at once")
"""


def test_stop_at_once_interrupts_a_busy_process_twice(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [sys.executable, "-c", BUSY]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as busy:
        assert busy.stdout is not None
        try:
            assert busy.stdout.readline() == "ready\n"
            assert call(["stop", "busy", "--now"]) == 0
            assert busy.wait(30) == 0
        finally:
            busy.kill()
    assert capsys.readouterr().out == "busy was asked to stop at once\n"
    assert Run.open("busy").info["stop_reason"] == "at once"


def test_the_card_of_a_run_is_for_its_user_only(past: Run) -> None:
    assert (past.path / "launch.json").stat().st_mode & 0o777 == 0o600
