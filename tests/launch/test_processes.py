"""Processes as they are started and waited for, whatever becomes of them."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from engine.launch.backend import Ended, Order
from engine.launch.processes import KEY_FILE, ORDER, TCP, Process, Processes

LONG = 60.0
NOBODY = {"ENGINE_PARENT": "0"}
"""It ends at once, as its parent is another."""


class Ends:
    """Waits to be told how a process ended."""

    def __init__(self) -> None:
        self.how: list[Ended] = []
        self._told = threading.Event()

    def __call__(self, how: Ended) -> None:
        self.how.append(how)
        self._told.set()

    def wait(self) -> Ended:
        assert self._told.wait(LONG)
        (how,) = self.how
        return how


@pytest.fixture
def ended() -> Ends:
    return Ends()


def start(lines: list[str] | None = None) -> Process:
    return Process({**NOBODY, ORDER: "nowhere"}, on_line=[].append if lines is None else lines.append)


def test_the_end_of_a_process_is_told_with_its_code(ended: Ends) -> None:
    start().watch(ended)
    assert ended.wait() == Ended(1, "left with exit code 1")


def test_the_end_of_a_process_that_somebody_else_reaped_is_told(ended: Ends) -> None:
    process = start()
    assert process.pid is not None
    os.waitpid(process.pid, 0)
    process.watch(ended)
    ended.wait()
    process.join(LONG)


def test_a_process_that_has_ended_is_left_for_its_waiter_when_it_is_asked_to_end(ended: Ends) -> None:
    process = start()
    assert process.pid is not None
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    process.terminate()
    assert not process.kill()
    process.watch(ended)
    assert ended.wait().code == 1


def test_who_is_killed_was_not_at_its_end(ended: Ends) -> None:
    process = start()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    process.watch(ended)
    assert process.kill()
    assert ended.wait() == Ended(-9, "killed by SIGKILL")
    assert not process.kill()


def test_a_process_of_a_run_is_not_told_what_its_launcher_was_told_by_another(
    ended: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TCP, "10.0.0.7")
    monkeypatch.setenv(KEY_FILE, "theirs.key")
    backend = Processes()
    transport = backend.open()
    try:
        process = backend.start(
            Order(run="r", address="ipc://x", role="actor"), on_end=ended, on_line=lambda line: None
        )
        environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        assert any(line.startswith(b"ENGINE_ORDER=") for line in environment)
        assert not any(line.startswith((b"ENGINE_TCP=", b"ENGINE_KEY_FILE=")) for line in environment)
    finally:
        transport.close()
        backend.close()
    assert ended.wait().code == -9
