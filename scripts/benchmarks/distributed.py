"""(i) Recipes in roles: many collectors beside one, and two processes beside a single one."""

from __future__ import annotations

import importlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
from benchmarks.children import Child
from benchmarks.measure import Goal, Section, take_turns

NAP = 0.002
PATIENCE = 600.0
QUIET = "evaluate.every=1000000000"


class Napping(gymnasium.Wrapper):  # type: ignore[misc,type-arg,unused-ignore]
    """CartPole that takes two milliseconds a step without computing, as a simulator elsewhere does."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        """Sleep, then step."""
        time.sleep(NAP)
        return self.env.step(action)


def pace(run: Path, share: float) -> float:
    """Env steps per second in the last `share` of a run, by what it recorded itself.

    Starting, joining and the first weights are not in it, nor is what comes after the last update.
    """
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "time/sps" in row]
    last = rows[-1]
    first = next(row for row in rows if row["env_step"] >= (1 - share) * last["env_step"])
    if first is last:
        raise RuntimeError(f"{run} recorded too little to tell its pace: {len(rows)} rows")
    return float((last["env_step"] - first["env_step"]) / (last["time"] - first["time"]))


class Trainer:
    """Trains in this very process."""

    def run(self, name: str, words: list[str], folder: str) -> None:
        """Train a shipped configuration in a folder."""
        from engine import config as configs

        algo = name.partition("/")[0]
        recipe = importlib.import_module(f"engine.recipes.{algo}")
        kind = getattr(recipe, f"{algo.upper()}Run")
        config = configs.convert(configs.override(configs.load(name), words), kind)
        recipe.train(config=config, run_dir=folder, progress="off")

    def close(self) -> None:
        """Nothing is left."""


def launched(name: str, collectors: int, words: list[str], share: float = 0.7) -> Callable[[int], float]:
    """Env steps per second of a run in roles, launched as the command line does."""

    def side(number: int) -> float:
        from engine.launch import launch

        with tempfile.TemporaryDirectory() as folder:
            run = launch(
                name,
                {"collector": collectors},
                [*words, QUIET, f"seed={number}"],
                run_dir=f"{folder}/run",
                progress="off",
            )
            return pace(run.path, share)

    return side


def alone(name: str, words: list[str], share: float = 0.7) -> Callable[[int], float]:
    """Env steps per second of the same recipe in one process of its own."""

    def side(number: int) -> float:
        with tempfile.TemporaryDirectory() as folder, Child(Trainer) as child:
            child.ready().ask(
                "run", name, [*words, QUIET, f"seed={number}"], f"{folder}/run", timeout=PATIENCE
            )
            return pace(Path(folder) / "run", share)

    return side


def run(quick: bool) -> Section:
    """Compare runs in roles with fewer collectors, and with a single process."""
    rounds, share = (1, 4) if quick else (5, 1)
    section = Section(
        "Distributed",
        "Runs that are launched in roles, processes of their own each, without evaluations. *Collectors*: an "
        f"environment that sleeps {NAP * 1e3:g} ms in each step, one in each collector, and the IMPALA "
        "recipe. *CartPole-v1*: one collector and one learner beside the same configuration in one process; "
        "the machine's cores are what they share. Paces are env steps a second that the learner took, "
        "start-up left out.",
    )
    nap = ["env.id=benchmarks.distributed:Napping", "env.num_envs=1", "collect.num_steps=20"]
    sides = take_turns(
        {
            f"{count} collectors" if count > 1 else "1 collector": launched(
                "impala/cartpole", count, [*nap, f"stop.env_step={count * 4000 // share}"], 0.5
            )
            for count in (1, 4)
        },
        rounds,
        "env steps/s: sleeping environment",
    )
    ratio = sides.ratio("4 collectors", "1 collector")
    section.goals.append(Goal("4 collectors / 1, sleeping environment", ratio, 3.6, True))
    section.sides.append(sides)
    for name, steps in (("impala/cartpole", 300_000), ("ppo/cartpole", 100_000), ("dqn/cartpole", 20_000)):
        words = [f"stop.env_step={steps // share}"]
        sides = take_turns(
            {"one process": alone(name, words), "collector and learner": launched(name, 1, words)},
            rounds,
            f"env steps/s: {name}",
        )
        ratio = sides.ratio("collector and learner", "one process")
        section.goals.append(Goal(f"{name}, collector and learner / one process", ratio, 1.0, True))
        section.sides.append(sides)
    section.notes.append(
        "PPO's collector waits for the weights that come of its last batch, so with one collector nothing "
        "happens at the same time: processes bring nothing there but the exchange's cost."
    )
    return section
