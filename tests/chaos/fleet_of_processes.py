"""Starts launchers and workers on a leash, does them harm, and looks at what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.launch.attach import find, observing
from engine.launch.card import read_card
from engine.runs.folder import Run

HERE = Path(__file__).parent
MOST_SECONDS = 120
"""After these a process that a test started is killed by the kernel."""

ENDS_SECONDS = 10.0
"""So long after a fault may it take until the run has failed, or goes on."""

SILENT_SECONDS = 14.0
"""The same where nothing tells of the fault but that nobody answers, on a loaded machine."""


def until(condition: Callable[[], object], seconds: float = 40.0, what: str = "") -> float:
    """Wait for something that other processes do; return how long it took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() < begin + seconds, f"not within {seconds:g} s: {what or condition}"
        time.sleep(0.02)
    return time.monotonic() - begin


def processes_of(folder: Path) -> list[int]:
    """The processes that live of those that were started for a test, by what stands in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                environment = (process / "environ").read_bytes()
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"TEST_RUN={folder}\0".encode() in environment and state not in "ZX":
                found.append(int(process.name))
    return found


def named_memory() -> set[Path]:
    """Shared memory with a name, of a kind that Python, torch or engine could leave there."""
    kinds = ("engine", "psm_", "sem.", "torch_")
    return {path for path in Path("/dev/shm").iterdir() if path.name.startswith(kinds)}


def abandoned(files: set[Path]) -> set[Path]:
    """Those of some files that nobody uses: other tests may run at the same time."""
    used = ""
    for process in Path("/proc").iterdir() if files else ():
        try:
            used += (process / "maps").read_text() if process.name.isdigit() else ""
        except OSError:
            continue
    return {file for file in files if file.exists() and f"{file}\n" not in used}


def own_slots(pid: int) -> set[int]:
    """The shared memory that a process made and writes, by inode."""
    return _mapped_slots(pid, "rw")


def foreign_slots(pid: int) -> set[int]:
    """The shared memory of others that a process has mapped to read, by inode."""
    return _mapped_slots(pid, "r-")


def _mapped_slots(pid: int, access: str) -> set[int]:
    lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {
        int(words[4])
        for words in lines
        if words[1].startswith(access) and words[5:6] == ["/memfd:engine-slot"]
    }


def resident(pid: int) -> int:
    """The memory of a process, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Launched:
    """A launcher in a process of its own, its output in files."""

    def __init__(self, number: int, command: list[str], run: str) -> None:
        self.run, self._out, self._err = run, Path(f"out-{number}"), Path(f"err-{number}")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "leash.py"), str(os.getpid()), str(MOST_SECONDS), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        self.pids: dict[str, int] = {}

    @property
    def said(self) -> str:
        """What it printed on stderr."""
        return self._err.read_text()

    @property
    def printed(self) -> str:
        """What it printed on stdout."""
        return self._out.read_text()

    def status(self) -> dict[str, Any]:
        """Ask the launcher."""
        with observing(find(self.run), timeout=30) as bus:
            answer: dict[str, Any] = bus.call("launcher_get_status", timeout=30)
            return answer

    def seats(self) -> dict[str, dict[str, Any]]:
        """The rows of its processes by seat."""
        return {row["seat"]: row for row in self.status()["seats"]}

    def wait_until_running(self) -> dict[str, int]:
        """Wait until every process of it works; return their ids by seat."""

        def running() -> bool:
            assert self.process.poll() is None, self.said
            if not Path(self.run, "launch.json").exists():
                return False
            rows = self.seats()
            self.pids = {seat: row["pid"] for seat, row in rows.items()}
            return all(row["state"] == "running" and (row.get("env_step") or 0) > 0 for row in rows.values())

        until(running, 60, "every process works")
        return self.pids

    def wait_until_learning(self, more: int = 200) -> float:
        """Wait until the learner has learned from some more env steps; return how long it took."""
        begin = self.learned()
        return until(lambda: self.learned() >= begin + more, 30, f"{more} more env steps are learned from")

    def learned(self) -> int:
        """The env steps that the learner has learned from."""
        return int(next(row["env_step"] or 0 for row in self.seats().values() if row["role"] == "learner"))

    def stop(self) -> int:
        """End the run in order; return the exit code."""
        with observing(find(self.run), timeout=30) as bus:
            bus.call("launcher_stop_run", timeout=30)
        return self.end(30)

    def end(self, seconds: float) -> int:
        """Wait for its end by itself; return the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended after {seconds:g} s; it said:\n{self.said}") from None

    def kill(self, seat: str) -> None:
        """Send a SIGKILL to one of its processes."""
        os.kill(self.pids[seat], signal.SIGKILL)


class Fleet:
    """Starts what a test needs; `close` kills all of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Launched] = []

    def launch(self, *words: str, program: str = "storm:storm", run: str = "run") -> Launched:
        """Start a launcher."""
        command = [sys.executable, "-m", "engine.cli.main", "launch", program, *words]
        return self._start([*command, "--run-dir", run, "--progress", "plain"], run)

    def worker(self, role: str, *where: str) -> Launched:
        """Start a worker that attaches itself."""
        command = [sys.executable, "-m", "engine.cli.main", "worker", "--role", role]
        return self._start([*command, "--attach", *(where or ("run",))], "run")

    def script(self, name: str, *words: str) -> Launched:
        """Start a script of this folder."""
        return self._start([sys.executable, str(HERE / name), *words], "run")

    def _start(self, command: list[str], run: str) -> Launched:
        one = Launched(len(self._started), command, run)
        self._started.append(one)
        return one

    def close(self) -> None:
        """Kill everything."""
        for one in self._started:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait(30)
        for pid in processes_of(self._folder):
            if pid != os.getpid():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


def accounts(run: str = "run") -> dict[str, dict[str, int]]:
    """What became of the env steps of each collector, once the run is over; everything must add up."""
    folder = Run.open(run)
    totals: dict[str, dict[str, int]] = folder.info["exchange"]
    assert folder.info["exchange_mismatch"] is None
    for name, one in totals.items():
        rest = one["received"] + one["unlearned"] + one["waiting"] + one["dropped"]
        assert one["stepped"] == rest + one["held"] + one["collecting"], (name, one)
        assert min(one.values()) >= 0, (name, one)
    if "env_step" in folder.result:
        assert sum(one["received"] for one in totals.values()) == folder.result["env_step"], totals
    return totals


def ended(run: str = "run") -> dict[str, Any]:
    """How the processes of a run ended, by seat."""
    card = read_card(Run.open(run))
    assert card is not None
    assert card.address is None
    return {row["seat"]: row["state"] for row in card.status["seats"]}
