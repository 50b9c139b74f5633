"""The command `engine launch`, started by tests in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from surviving import until

from engine.launch.attach import find, observing

ENDLESS = ("until=1_000_000_000", "pause=0.01", "--role", "collector=2")


class Launched:
    """`engine launch` in a process of its own."""

    def __init__(self, *words: str, program: str = "programs:add") -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "engine.cli.main",
                "launch",
                program,
                *words,
                "--run-dir",
                "run",
                "--progress",
                "json",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_until_running(self, *seats: str) -> dict[str, int]:
        """Wait until every process works, these among them; return their pids by seat."""
        until(lambda: Path("run/launch.json").exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()
        pids: dict[str, int] = {}
        with observing(find("run"), timeout=60) as bus:

            def running() -> bool:
                rows = bus.call("launcher_get_status", timeout=60)["seats"]
                pids.update({row["seat"]: row["pid"] for row in rows})
                return set(seats) <= set(pids) and all(
                    row["state"] == "running" and (row.get("env_step") or 0) > 0 for row in rows
                )

            until(running)
        return pids

    def end(self, timeout: float = 100) -> tuple[int, str, str]:
        """Wait for its end; return exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err


Start: TypeAlias = Callable[..., Launched]
