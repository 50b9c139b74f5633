"""`engine worker` that reaches no run: what it says, when, and with which exit code."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.bus.bus import host
from engine.bus.keys import RunKeys, generate_keys
from engine.bus.zeromq import ZeroMQ
from engine.cli.main import call

LONG = 60.0

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def keys(tmp_path: Path) -> RunKeys:
    keys = generate_keys()
    keys.save(tmp_path / "run.key")
    return keys


def worker(folder: Path, at: str, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from engine.cli.main import main; main()", "worker", "--attach", at]
    command += ["--role", "collector", "--key-file", str(folder / "run.key"), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("keys")
def test_keys_of_another_run_end_it_with_exit_code_2(tmp_path: Path) -> None:
    hub = host(ZeroMQ(ipc=False, tcp="127.0.0.1", keys=generate_keys()), run="r")
    process = worker(tmp_path, hub.address)
    _, said = process.communicate(timeout=LONG)
    hub.close()
    assert process.returncode == 2
    assert said.startswith(
        f"error: the hub at {hub.address} was reached, but it refuses the keys of this process"
    )
    assert said.count("\n") == 1


@pytest.mark.usefixtures("keys")
def test_a_closed_port_is_told_in_a_line_and_tried_again(tmp_path: Path) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))  # and does not listen
        before = time.monotonic()
        process = worker(tmp_path, f"tcp://127.0.0.1:{one.getsockname()[1]}")
        assert process.stderr is not None
        giving_up = threading.Timer(LONG, process.kill)
        giving_up.start()
        line = process.stderr.readline()
        seconds = time.monotonic() - before
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LONG)
        giving_up.cancel()
    assert line.startswith("nothing listens at tcp://127.0.0.1:")
    assert "tried for another" in line
    assert seconds < 10  # on an idle machine one


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("listen", "match"),
    [
        ("192.0.2.7", "give the port that it passes on"),
        ("0.0.0.0", "names no host"),
        ("127.0.0.1:x", "no host:port"),
    ],
)
def test_a_listen_that_cannot_be_is_refused(
    tmp_path: Path, listen: str, match: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--attach", "tcp://127.0.0.1:9", "--role", "collector", "--key-file", str(tmp_path / "run.key")]
    assert call(["worker", *where, "--listen", listen]) == 2
    assert match in capsys.readouterr().err
