"""(e) How long it takes to get going."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Goal, Ratio, Section, take_turns

ROOT = Path(__file__).parents[2]

PEERS = "import torch, gymnasium, treetensor"

FIRST_STEP = """
import os, sys
from engine.cli.main import main
import engine.envs.vector as vector
step = vector.VectorEnv.step
def first(self, action):
    step(self, action)
    os._exit(0)
vector.VectorEnv.step = first
sys.argv = ["engine", "run", "ppo/cartpole", "--run-dir", sys.argv[1], "--progress", "plain"]
main()
os._exit(1)
"""


def fresh(code: str, *arguments: str) -> float:
    """Seconds of a fresh interpreter running `code`, which must end well."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, check=True, capture_output=True, timeout=120
    )
    return time.perf_counter() - start


def side(code: str) -> Callable[[int], float]:
    """A side that starts an interpreter."""
    return lambda _: fresh(code)


def first_step(_: int) -> float:
    """Seconds until the command `engine run ppo/cartpole` has made its first env step."""
    with tempfile.TemporaryDirectory() as folder:
        return fresh(FIRST_STEP, str(Path(folder) / "run"))


def run(quick: bool) -> Section:
    """Time fresh interpreters."""
    rounds = 3 if quick else 7
    sides: dict[str, Callable[[int], float]] = {
        "python": side("pass"),
        "import engine": side("import engine"),
        "engine --help": side(
            "import sys; sys.argv = ['engine', '--help']; from engine.cli.main import main; main()"
        ),
        PEERS: side(PEERS),
        "first env step": first_step,
    }
    for call in sides.values():
        call(0)  # warm the disk's cache and the compiled files
    measured = take_turns(sides, rounds, "s")
    numbers = measured.numbers

    def beyond(a: str, b: str, factor: float = 1.0) -> Ratio:
        return Ratio([x - factor * y for x, y in zip(numbers[a], numbers[b], strict=True)])

    section = Section(
        "Getting going",
        "Fresh interpreters, files warm. *first env step*: from the start of `engine run ppo/cartpole` until "
        "the environments have made one step.",
        [measured],
    )
    section.goals = [
        Goal(
            "`import engine`, beyond an empty interpreter", beyond("import engine", "python"), 0.1, unit=" s"
        ),
        Goal("`engine --help`, the whole process", Ratio(numbers["engine --help"]), 0.15, unit=" s"),
        Goal(f"first env step, beyond 1.3 x `{PEERS}`", beyond("first env step", PEERS, 1.3), 1.0, unit=" s"),
    ]
    return section
