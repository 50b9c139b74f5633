"""What is left of the processes that a test started."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def survivors(folder: Path) -> list[int]:
    """The processes that were started for a run in `folder`, by what stands in their environment."""
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


def until(condition: Callable[[], object], seconds: float = 100.0) -> None:
    """Wait until something that other processes do has happened."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def logged(seat: str) -> str:
    """What a process of the run in ``run`` has said until now."""
    path = Path(f"run/logs/{seat}.jsonl")
    return path.read_text() if path.exists() else ""
