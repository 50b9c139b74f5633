"""(g) The overlapped mode beside the same pipeline in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import msgspec
from benchmarks.loops import Side, recipe
from benchmarks.measure import Goal, Section, Sides, take_turns

NAP = 0.005


class Simulator(gymnasium.Wrapper):  # type: ignore[misc,type-arg,unused-ignore]
    """CartPole that takes a millisecond a step without computing, as a simulator elsewhere does."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        time.sleep(0.001)
        return self.env.step(action)


def line(stations: int, nap: float, iterations: int, async_mode: bool) -> Side:
    """Iterations per second of stations that only wait, filling and emptying of the line included."""
    from engine import OnlineContext, Task

    def station() -> Callable[[Any], None]:
        def work(ctx: Any) -> None:
            if nap:
                time.sleep(nap)

        return work

    def side(_: int) -> float:
        with Task(OnlineContext(), async_mode=async_mode) as task:
            for _ in range(stations):
                task.use(station())
            start = time.perf_counter()
            task.run(max_step=iterations)
            return iterations / (time.perf_counter() - start)

    return side


def trained(name: str, async_mode: bool, *words: str) -> Side:
    """Env steps per second of a shipped configuration, without evaluations."""
    from engine import config as configs
    from engine.recipes import dqn, ppo

    kind, build = (ppo.PPORun, ppo.ppo) if name.startswith("ppo") else (dqn.DQNRun, dqn.dqn)
    words = (*words, "evaluate.every=1000000000")
    config: Any = configs.convert(configs.override(configs.load(name), list(words)), kind)
    config = msgspec.structs.replace(config, async_mode=async_mode)
    warm_up = config.train.warm_up if isinstance(config, dqn.DQNRun) else 0

    def make(seed: int) -> Any:
        return build(msgspec.structs.replace(config, seed=seed))

    return recipe(make, warm_up=warm_up)


def pair(make: Callable[[bool], Side], rounds: int, unit: str) -> Sides:
    """Time both modes in turns, after a round of each that is thrown away."""
    sides = {"in order": make(False), "overlapped": make(True)}
    for side in sides.values():
        side(0)
    return take_turns(sides, rounds, unit)


def run(quick: bool) -> Section:
    """Compare the modes where it pays and where it does not."""
    rounds, share = (3, 4) if quick else (7, 1)
    section = Section(
        "Overlapped",
        "The same pipeline in order and with `async_mode=True`. *waiting*: stations that sleep "
        f"{NAP * 1e3:g} ms, the line's filling and emptying included. *empty slot*: what handing over costs. "
        "The recipes are the shipped configurations of CartPole-v1, without evaluations, one torch thread; "
        "*processes*: environments in processes of their own; *simulator*: there, each step takes 1 ms "
        "without computing, and the net is 2 x 256, so that both stations have about as much to do.",
    )
    for stations, limit in ((2, 1.8), (3, 2.5)):
        sides = pair(
            lambda mode, count=stations: line(count, NAP, 100 // share, mode), rounds, "iterations/s"
        )
        ratio = sides.ratio("overlapped", "in order")
        section.goals.append(Goal(f"{stations} waiting stations", ratio, limit, True))
        section.sides.append(sides)
    large = ("policy.hidden=[256, 256]",)
    processes = "env.vectorization=process"
    simulator = "env.id=benchmarks.overlapped:Simulator", processes
    for what, name, words in (
        ("PPO, native environments", "ppo/cartpole", (f"stop.env_step={60_000 // share}",)),
        ("PPO, processes", "ppo/cartpole", (f"stop.env_step={20_000 // share}", processes)),
        ("PPO, simulator", "ppo/cartpole", (f"stop.env_step={20_000 // share}", *simulator, *large)),
        ("DQN", "dqn/cartpole", (f"stop.env_step={6_000 // share + 1_000}",)),
        ("DQN, 4 steps an iteration", "dqn/cartpole",
         (f"stop.env_step={6_000 // share + 1_000}", "collect.num_steps=4")),
    ):  # fmt: skip
        sides = pair(
            lambda mode, name=name, words=words: trained(name, mode, *words), rounds, f"env steps/s: {what}"
        )
        section.goals.append(Goal(what, sides.ratio("overlapped", "in order")))
        section.sides.append(sides)
    slots = take_turns({"empty slot": _slot_cost(5_000 // share)}, rounds, "µs")
    section.sides.append(slots)
    section.notes.append(
        "Small nets and quick environments are Python and numpy, which take turns at one interpreter: "
        "there overlapping costs more than it brings. It pays where a station waits for something else."
    )
    return section


def _slot_cost(iterations: int) -> Side:
    side = line(2, 0.0, iterations, True)
    return lambda number: 1e6 / side(number)
