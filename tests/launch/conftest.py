"""Programs can be imported by tests and by the processes that they launch; nothing survives a test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import Launched, Start
from surviving import survivors, until

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a fresh folder, with sockets in another; afterwards no process and no socket may be left."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parents[1]}")
    monkeypatch.chdir(tmp_path)
    sockets = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(sockets))
    monkeypatch.setattr(tempfile, "tempdir", str(sockets))
    for name in ("ENGINE_RUNS", "ENGINE_PROGRESS", "ENGINE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEST_RUN", str(tmp_path))
    yield
    until(lambda: set(survivors(tmp_path)) <= {os.getpid()}, 30)
    until(lambda: list(sockets.iterdir()) == [], 30)
    sockets.rmdir()


@pytest.fixture
def start(clean: None) -> Iterator[Start]:
    """Start the command; what a failing test leaves running is killed."""
    started: list[Launched] = []

    def start(*words: str) -> Launched:
        started.append(Launched(*words))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate(timeout=60)
