"""Chaos: real processes, killed, stopped, cut off; all of it slow, each bounded, nothing left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from fleet_of_processes import Fleet, abandoned, named_memory, processes_of, until

HERE = Path(__file__).parent
FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is slow."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(150))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember which tests failed."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """What starts processes; when the test is over none may be left, nor a file or a socket of theirs."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parents[1]}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEST_RUN", str(tmp_path))
    for name in ("ENGINE_RUNS", "ENGINE_PROGRESS", "ENGINE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    sockets = Path(tempfile.mkdtemp(prefix="c-", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(sockets))
    monkeypatch.setattr(tempfile, "tempdir", str(sockets))
    shared = named_memory()
    mine = Fleet(tmp_path)
    try:
        yield mine
        if request.node.stash.get(FAILED, False):
            return  # whatever is left follows from that
        # What the test did not end is to end by itself: nothing here is killed to make it so.
        until(lambda: set(processes_of(tmp_path)) <= {os.getpid()}, 10, "processes ended")
        until(lambda: list(sockets.iterdir()) == [], 10, "sockets are removed")
        assert abandoned(named_memory() - shared) == set()
    finally:
        mine.close()
        shutil.rmtree(sockets, ignore_errors=True)
