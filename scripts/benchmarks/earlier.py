"""Training in order beside an earlier commit of this repository: which of the two is quicker."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import Goal, Section, Sides

ROOT = Path(__file__).resolve().parents[2]
TITLE = "In order, beside an earlier commit"
WORKER = Path(__file__).with_name("training.py")
BEFORE_OVERLAPPED = "103d70b16750c9ca33f0fbefa6cbef48ead1f1e7"
"""The last commit without the overlapped mode."""

CASES = {  # a configuration, words laid over it, and how many iterations make a turn
    "PPO": ("ppo/cartpole", (), 4),
    "DQN": ("dqn/cartpole", ("policy.n_step=1",), 500),
    "DQN, n-step 3": ("dqn/cartpole", (), 500),
}


class Side:
    """A process that trains with the engine of one source tree, a turn at a time."""

    def __init__(self, tree: Path) -> None:
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), str(tree)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env={**os.environ, **threads},
        )

    def ask(self, *words: Any) -> Any:
        """Have it do something and wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def commit(name: str) -> Iterator[Path]:
    """The files of a commit, in a folder for the time being."""
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", name], capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder)


def against(earlier: Path, now: Path, rounds: int, turns: int, cases: Mapping[str, Any] = CASES) -> Section:
    """Compare two source trees."""
    section = Section(
        TITLE,
        f"Beside {BEFORE_OVERLAPPED[:7]}, the last commit without the overlapped mode: two processes train "
        "the same run from the same seed, each with the engine of one commit, in turns of some iterations. "
        "Shipped configurations of CartPole-v1, and DQN with single steps, without evaluations, in order, "
        f"one torch thread; seconds of the processor. {rounds} rounds do the same {turns} turns once more: "
        "as a turn is the same work each time, the quickest of its rounds is taken, and a figure is "
        "over the turns. The goal leaves room for what such a measurement cannot tell.",
    )
    with ExitStack() as stack:
        sides = {"earlier": Side(earlier), "now": Side(now)}
        for side in sides.values():
            stack.callback(side.close)
        for what, (name, words, iterations) in cases.items():
            best = {label: [math.inf] * turns for label in sides}
            steps = [0] * turns
            ends = set()
            for number in range(rounds):
                for side in sides.values():
                    side.ask("start", name, words, 1)
                for turn in range(turns):
                    for label in sides if (number + turn) % 2 == 0 else reversed(sides):
                        seconds, steps[turn] = sides[label].ask("turn", iterations)
                        best[label][turn] = min(best[label][turn], seconds)
                ends |= {side.ask("end") for side in sides.values()}
            speeds = {
                label: [count / seconds for count, seconds in zip(steps, took, strict=True)]
                for label, took in best.items()
            }
            compared = Sides(f"env steps/s of the processor: {what}", speeds)
            section.goals.append(Goal(f"{what}: now / earlier", compared.ratio("now", "earlier"), 0.98, True))
            section.sides.append(compared)
            same = "the same weights, bit for bit" if len(ends) == 1 else "DIFFERENT WEIGHTS"
            section.notes.append(f"{what}: every round ended with {same}.")
    return section


def run(quick: bool) -> Section:
    """Compare the working tree with the last commit before the overlapped mode."""
    known = ["git", "-C", str(ROOT), "cat-file", "-e", BEFORE_OVERLAPPED]
    if subprocess.run(known, capture_output=True, check=False).returncode:
        missing = f"{BEFORE_OVERLAPPED[:7]} is not in the history here: not compared."
        return Section(TITLE, "", notes=[missing])
    with commit(BEFORE_OVERLAPPED) as earlier:
        return against(earlier, ROOT, 4 if quick else 10, 8 if quick else 12)
