"""(a) What calling a middleware costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.measure import Goal, Ratio, Section, take_turns

from engine import Context, OnlineContext, Task, serial

COUNTS = (1, 5, 20)
LIMITS = {"plain": 0.4, "yielding": 1.0}


def plain() -> Callable[[Any], None]:
    """A middleware that does nothing, a new one each time."""

    def plain(ctx: Context) -> None:
        pass

    return plain


def yielding() -> Callable[[Any], Iterator[None]]:
    """A middleware with two halves that do nothing, a new one each time."""

    def yielding(ctx: Context) -> Iterator[None]:
        yield

    return yielding


def through_task(members: list[Any], steps: int) -> Callable[[int], float]:
    """Microseconds of one iteration of a task with these members."""

    def side(_: int) -> float:
        with Task(OnlineContext()) as task:
            if members:
                task.use(*members)
            start = time.perf_counter()
            task.run(max_step=steps)
            return (time.perf_counter() - start) / steps * 1e6

    return side


def through_group(members: list[Any], steps: int) -> Callable[[int], float]:
    """Microseconds of one call of a group with these members on one context."""

    def side(_: int) -> float:
        group, ctx = serial(*members), Context()
        group(ctx)
        start = time.perf_counter()
        for _ in range(steps):
            group(ctx)
        return (time.perf_counter() - start) / steps * 1e6

    return side


def empty_loop(steps: int) -> Callable[[int], float]:
    """Microseconds of one turn of a loop that does nothing."""

    def side(_: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            pass
        return (time.perf_counter() - start) / steps * 1e6

    return side


def run(quick: bool) -> Section:
    """Compare tasks and groups of 1, 5 and 20 members with an empty loop."""
    rounds, steps = (5, 1_000) if quick else (11, 5_000)
    section = Section(
        "Cost of a middleware",
        "Members that do nothing, one thread. *task of k*: an iteration of `task.run` with k members, less "
        "an iteration of the same loop with none, over k. *group of k*: the same for calling `serial(...)` "
        "on one context. *iteration*: what an iteration of a task costs before it has any member (a new "
        "context, the boundary), less a turn of a bare Python loop. *all included*: a task of k less the "
        "bare loop, over k.",
    )
    for kind, make in (("plain", plain), ("yielding", yielding)):
        sides: dict[str, Callable[[int], float]] = {
            "bare loop": empty_loop(steps),
            "task, none": through_task([], steps),
            "group, none": through_group([], steps),
        }
        for count in COUNTS:
            members = [make() for _ in range(count)]
            sides[f"task, {count} {kind}"] = through_task(members, steps)
            sides[f"group, {count} {kind}"] = through_group(members, steps)
        measured = take_turns(sides, rounds, "µs an iteration")
        section.sides.append(measured)
        numbers, limit = measured.numbers, LIMITS[kind]
        for way in ("task", "group"):
            for count in COUNTS:
                pairs = zip(numbers[f"{way}, {count} {kind}"], numbers[f"{way}, none"], strict=True)
                cost = Ratio([(a - b) / count for a, b in pairs])
                section.goals.append(Goal(f"{kind}, {way} of {count}", cost, limit, unit=" µs"))
        for count in COUNTS:
            pairs = zip(numbers[f"task, {count} {kind}"], numbers["bare loop"], strict=True)
            cost = Ratio([(a - b) / count for a, b in pairs])
            section.goals.append(Goal(f"{kind}, task of {count}, all included", cost, unit=" µs"))
    pairs = zip(numbers["task, none"], numbers["bare loop"], strict=True)
    section.goals.append(Goal("iteration", Ratio([a - b for a, b in pairs]), unit=" µs"))
    return section
