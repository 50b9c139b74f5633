"""Training in order beside an earlier commit of this repository: the speed of both, in turns."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import Goal, Section, Sides

ROOT = Path(__file__).resolve().parents[2]
TITLE = "In order, beside an earlier commit"
WORKER = Path(__file__).with_name("training.py")
LEAST = 0.97
"""What the speed now may be of the speed then: the room that such a measurement needs."""

CASES = {  # a configuration, overrides, the iterations of its warm-up, the iterations of a turn
    "PPO": ("ppo/cartpole", (), 2, 4),
    "DQN": ("dqn/cartpole", ("policy.n_step=1",), 1_000, 500),
    "DQN, n-step 3": ("dqn/cartpole", (), 1_000, 500),
}


class Side:
    """A process that trains with the engine of one source tree, a turn at a time."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
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
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the side of {self._tree} ended at {words}; its own message stands above")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def git(*words: str) -> str | None:
    """Return what a git command prints; None if it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout.strip()


def find(name: str) -> str | None:
    """Return the full hash of a commit of this repository; None if there is no such commit."""
    return git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")


def the_one_before() -> str | None:
    """Return the commit before the working tree: the last one, or its parent if nothing has changed since."""
    return find("HEAD" if git("status", "--porcelain", "--untracked-files=no") else "HEAD~1")


@contextmanager
def files_of(commit: str) -> Iterator[Path]:
    """The files of a commit, in a temporary folder."""
    archive = ["git", "-C", str(ROOT), "archive", commit]
    packed = subprocess.run(archive, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder)


def compare(
    earlier: Path, now: Path, *, rounds: int, turns: int, what: str, cases: Mapping[str, Any] = CASES
) -> Section:
    """Train with two source trees in turns; a round gives one ratio for each case."""
    section = Section(
        TITLE,
        f"Beside {what}: two processes train the same run from the same seed, each with the engine of one "
        f"source tree, in turns of some iterations, {turns} turns a round. {rounds} rounds, each with "
        "new processes: two processes of the same code differ by hundredths. Shipped configurations, and "
        "DQN with single steps, without evaluations, in order, one torch thread; seconds of the processor.",
    )
    trees = {"earlier": earlier, "now": now}
    speeds: dict[str, dict[str, list[float]]] = {case: {label: [] for label in trees} for case in cases}
    ends: dict[str, set[str]] = {case: set() for case in cases}
    for number in range(rounds):
        with ExitStack() as stack:
            sides = {label: stack.enter_context(closing(Side(tree))) for label, tree in trees.items()}
            for case, (name, words, warm_up, iterations) in cases.items():
                seconds, steps = dict.fromkeys(sides, 0.0), dict.fromkeys(sides, 0)
                for side in sides.values():
                    side.ask("start", name, words, warm_up)
                for turn in range(turns):
                    for label in sides if (number + turn) % 2 == 0 else reversed(sides):
                        took, stepped = sides[label].ask("turn", iterations)
                        seconds[label] += took
                        steps[label] += stepped
                ends[case] |= {side.ask("end") for side in sides.values()}
                for label in sides:
                    speeds[case][label].append(steps[label] / seconds[label])
    for case, numbers in speeds.items():
        compared = Sides(f"env steps/s of the processor: {case}", numbers)
        section.goals.append(Goal(f"{case}: now / earlier", compared.ratio("now", "earlier"), LEAST, True))
        section.sides.append(compared)
        same = "the same weights, bit for bit" if len(ends[case]) == 1 else "DIFFERENT WEIGHTS"
        section.notes.append(f"{case}: the rounds of both sides ended with {same}.")
    return section


def run(quick: bool, commit: str | None = None) -> Section:
    """Compare the working tree with `commit` (default: the one before)."""
    found = the_one_before() if commit is None else find(commit)
    if found is None:
        missing = (
            "The history here has no commit before this one" if commit is None else f"No commit {commit}"
        )
        return Section(TITLE, "", notes=[f"{missing}: not compared."])
    what = git("show", "--no-patch", "--format=%h (%s)", found) or found
    with files_of(found) as earlier:
        return compare(earlier, ROOT, rounds=4 if quick else 15, turns=4 if quick else 12, what=what)
