"""What `wait_for` returns: the same in order and overlapped, whatever happens to be quick."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Context, Task, parallel, repeat, serial
from engine.bus import backlog
from engine.bus.bus import Bus
from engine.errors import DeadlineExceeded
from engine.testing import jitter

EVENTS = ("task_red", "task_green", "task_blue")
LONG = 60.0


# --- random pipelines -------------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """What one station does."""

    emits: tuple[int, int, int]
    """How many occurrences of each event an iteration has."""
    waits: str
    """The event that it waits for; empty for none."""
    times: int
    every: int
    phase: int
    """It waits so many times, in iterations whose number leaves this rest."""
    half: str
    form: str
    keeps_state: bool


specs = st.builds(
    Spec,
    emits=st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 1)),
    waits=st.sampled_from(["", *EVENTS]),
    times=st.integers(1, 3),
    every=st.integers(1, 4),
    phase=st.integers(0, 3),
    half=st.sampled_from(["first", "first", "second"]),
    form=st.sampled_from(["plain", "serial", "repeat", "parallel", "class"]),
    keeps_state=st.booleans(),
)


def arranged(members: list[Spec]) -> list[Spec]:
    """Let nothing be emitted behind a first half that waits for it: overlapped, that comes later."""
    before: list[Spec] = []
    for spec in members:
        waited = {one.waits for one in before if one.half == "first"}
        emits = [0 if event in waited else count for event, count in zip(EVENTS, spec.emits, strict=True)]
        before.append(replace(spec, emits=(emits[0], emits[1], emits[2])))
    return before


def due(spec: Spec, step: int) -> int:
    return spec.times if spec.waits and step % spec.every == spec.phase % spec.every else 0


def expected(members: list[Spec], steps: int) -> list[list[Any]]:
    """What each station is given, by the law: the oldest occurrence that no wait of it has returned."""
    got: list[list[Any]] = [[] for _ in members]
    unseen: list[deque[Any]] = [deque() for _ in members]

    def wait(index: int, step: int) -> None:
        for _ in range(due(members[index], step)):
            got[index].append((step, unseen[index].popleft() if unseen[index] else None))

    for step in range(steps):
        for index, spec in enumerate(members):
            for event, count in zip(EVENTS, spec.emits, strict=True):
                for one in (one for one in range(len(members)) if members[one].waits == event):
                    unseen[one].extend((step, index, number) for number in range(count))
            if spec.half == "first":
                wait(index, step)
        for index, spec in enumerate(members):
            if spec.half == "second":
                wait(index, step)
    return got


def station(task: Task, index: int, spec: Spec, got: list[Any], states: list[Any]) -> Any:
    def emit(ctx: Context) -> None:
        for event, count in zip(EVENTS, spec.emits, strict=True):
            for number in range(count):
                task.emit(event, (ctx.total_step, index, number))
        if spec.keeps_state:
            task.emit(f"task_state_{index}", -1)
            task.emit(f"task_state_{index}", ctx.total_step)

    def wait(ctx: Context) -> None:
        for _ in range(due(spec, ctx.total_step)):
            try:
                got.append((ctx.total_step, task.wait_for(spec.waits, timeout=0)))
            except DeadlineExceeded:
                got.append((ctx.total_step, None))
        for earlier in range(index) if ctx.total_step % spec.every == 0 else ():
            try:
                states.append((ctx.total_step, task.wait_for(f"task_state_{earlier}", timeout=0)))
            except DeadlineExceeded:
                states.append((ctx.total_step, None))

    def second(ctx: Context) -> Iterator[None]:
        emit(ctx)
        yield
        wait(ctx)

    class Member:
        def __init__(self) -> None:
            self.pipeline = serial(emit, wait)

        def __call__(self, ctx: Any) -> None:
            self.pipeline(ctx)

    if spec.half == "second":
        return second
    forms: dict[str, Callable[[], Any]] = {
        "plain": lambda: lambda ctx: (emit(ctx), wait(ctx))[0],
        "serial": lambda: serial(emit, wait),
        "repeat": lambda: serial(emit, repeat(wait, times=1)),
        "parallel": lambda: serial(emit, parallel(wait, lambda ctx: None)),
        "class": Member,
    }
    return forms[spec.form]()


def values(members: list[Spec], runs: list[int], *, seed: int | None = None, **mode: Any) -> list[Any]:
    got: list[list[Any]] = [[] for _ in members]
    states: list[list[Any]] = [[] for _ in members]
    with Task(**mode) as task:
        for index in range(len(members)):
            task.bus.declare(f"task_state_{index}", "state")
        for index, spec in enumerate(members):
            task.use(station(task, index, spec, got[index], states[index]), name=f"s{index}")
        if seed is not None:
            jitter(task, seed=seed)
        for steps in runs:
            task.run(max_step=steps)
    return [got, states]


@given(
    st.lists(specs, min_size=2, max_size=4).map(arranged),
    st.lists(st.integers(0, 7), min_size=1, max_size=3),
    st.sampled_from([None, 0, 1, 2, 3]),
    st.integers(0, 2**16),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.timeout(300)
def test_waits_for_what_earlier_stations_emit_return_the_same_in_both_modes(
    members: list[Spec], runs: list[int], max_lag: int | None, seed: int
) -> None:
    in_order = values(members, runs)
    assert in_order[0] == expected(members, sum(runs))
    assert values(members, runs, seed=seed, async_mode=True, max_lag=max_lag) == in_order


@given(
    st.lists(specs, min_size=2, max_size=4),
    st.integers(1, 10),
    st.sampled_from([None, 1, 2]),
    st.lists(st.integers(0, 2**16), min_size=2, max_size=2, unique=True),
)
@settings(max_examples=40, deadline=None)
@pytest.mark.timeout(300)
def test_wherever_emitters_stand_waits_do_not_depend_on_which_station_is_quicker(
    members: list[Spec], steps: int, max_lag: int | None, seeds: list[int]
) -> None:
    first, second = (values(members, [steps], seed=seed, async_mode=True, max_lag=max_lag) for seed in seeds)
    assert first == second
    assert values(members, [steps], async_mode=True, max_lag=0)[0] == values(members, [steps])[0]


# --- one by one -------------------------------------------------------------------------


MODES: list[dict[str, Any]] = [{}, {"async_mode": True}, {"async_mode": True, "max_lag": 1}]
both_modes = pytest.mark.parametrize("mode", MODES, ids=["in order", "overlapped", "max_lag=1"])


def waiting(task: Task, event: str, got: list[Any], *, timeout: float = LONG) -> Callable[[Context], None]:
    """A middleware that waits for one occurrence, and notes when there is none."""

    def wait(ctx: Context) -> None:
        try:
            got.append((ctx.total_step, task.wait_for(event, timeout=timeout)))
        except DeadlineExceeded:
            got.append((ctx.total_step, None))

    return wait


@both_modes
def test_iteration_i_waits_for_what_iteration_i_emitted(mode: dict[str, Any]) -> None:
    got: list[Any] = []
    with Task(**mode) as task:
        task.use(lambda ctx: task.emit("task_said", ctx.total_step), waiting(task, "task_said", got))
        for _ in range(3):
            task.run(max_step=4)
    assert got == [(step, step) for step in range(12)]


@both_modes
def test_every_station_is_given_all_and_members_of_one_station_share(mode: dict[str, Any]) -> None:
    first: list[Any] = []
    second: list[Any] = []
    third: list[Any] = []

    def emit(ctx: Context) -> None:
        task.emit("task_said", 2 * ctx.total_step)
        task.emit("task_said", 2 * ctx.total_step + 1)

    with Task(**mode) as task:
        task.use(emit, waiting(task, "task_said", first))
        task.share(second).use(
            waiting(task, "task_said", second),
            repeat(waiting(task, "task_said", second), times=1),
            name="two",
        )
        task.use(waiting(task, "task_said", third)).run(max_step=5)
    assert first == third == [(step, step) for step in range(5)]
    assert second == [(step // 2, step) for step in range(10)]


@both_modes
def test_members_of_a_parallel_group_share_the_occurrences_of_their_station(mode: dict[str, Any]) -> None:
    got: list[set[int]] = []

    def emit(ctx: Context) -> None:
        for number in range(2):
            task.emit("task_said", 2 * ctx.total_step + number)

    def take(field: str) -> Callable[[Any], None]:
        return lambda ctx: setattr(ctx, field, task.wait_for("task_said", timeout=LONG))

    with Task(**mode) as task:
        task.use(emit, parallel(take("one"), take("other")))
        task.use(lambda ctx: got.append({ctx.one, ctx.other})).run(max_step=4)
    assert got == [{2 * step, 2 * step + 1} for step in range(4)]


@both_modes
def test_what_no_wait_has_returned_waits_though_handlers_had_it(mode: dict[str, Any]) -> None:
    got: list[Any] = []
    heard: list[int] = []

    def wait_sometimes(ctx: Context) -> None:
        if ctx.total_step in (3, 4, 7):
            got.append(task.wait_for("task_said", timeout=LONG))

    with Task(**mode) as task:
        task.on("task_said", heard.append)
        task.once("task_said", heard.append)
        task.use(lambda ctx: task.emit("task_said", ctx.total_step), wait_sometimes).run(max_step=9)
    assert got == [0, 1, 2]
    assert heard == [0, 0, *range(1, 9)]


@both_modes
def test_a_station_is_given_what_came_before_the_run_between_runs_and_from_handlers(
    mode: dict[str, Any],
) -> None:
    got: list[Any] = []
    with Task(**mode) as task:
        task.on("task_asked", lambda: task.emit("task_said", "handler"))
        task.emit("task_said", "before")
        assert task.wait_for("task_said", timeout=0) == "before", "this thread is none of the stations"
        task.use(waiting(task, "task_said", got)).run(max_step=1)
        task.emit("task_said", "between")
        task.emit("task_asked")
        for _ in range(2):
            task.run(max_step=1)
        assert [task.wait_for("task_said", timeout=0) for _ in range(2)] == ["between", "handler"]
    assert [value for _, value in got] == ["before", "between", "handler"]


@both_modes
def test_what_another_thread_emits_has_no_iteration(mode: dict[str, Any]) -> None:
    got: list[Any] = []
    asked = threading.Event()

    def answer() -> None:
        assert asked.wait(LONG)
        task.emit("task_said", "it")

    def wait(ctx: Context) -> None:
        asked.set()
        got.append(task.wait_for("task_said", timeout=LONG))

    with Task(**mode) as task:
        thread = threading.Thread(target=answer)
        thread.start()
        task.use(lambda ctx: None, wait, lambda ctx: None).run(max_step=1)
        thread.join(LONG)
    assert got == ["it"]


def test_a_later_stations_events_come_lag_iterations_later() -> None:
    def waits(seed: int = 0, **mode: Any) -> list[Any]:
        got: list[Any] = []
        with Task(**mode) as task:
            task.use(waiting(task, "task_said", got, timeout=0.0), lambda ctx: None)
            task.use(lambda ctx: task.emit("task_said", ctx.total_step))
            jitter(task, seed=seed)
            task.run(max_step=8)
        return got

    def late(lag: int) -> list[Any]:
        return [(step, None if step < 1 + lag else step - 1 - lag) for step in range(8)]

    assert waits() == late(0)
    for seed in range(5):
        assert waits(seed, async_mode=True) == late(2)
        assert waits(seed, async_mode=True, max_lag=0) == late(0)


def test_a_wait_in_vain_says_that_what_there_is_comes_later() -> None:
    emitted = threading.Event()

    def early(ctx: Context) -> None:
        if ctx.total_step == 1:
            assert emitted.wait(LONG)
            task.wait_for("task_said", timeout=0)

    def late(ctx: Context) -> None:
        task.emit("task_said")
        emitted.set()

    with Task(async_mode=True) as task:
        task.use(early, late)
        with pytest.raises(DeadlineExceeded, match="a later one in this slot, which comes with the next"):
            task.run(max_step=3)


@both_modes
def test_after_a_failure_waits_and_emits_go_together_again(mode: dict[str, Any]) -> None:
    got: list[Any] = []
    failed: list[int] = []

    def fail(ctx: Context) -> None:
        if ctx.total_step == 3 and not failed:
            failed.append(1)
            raise ValueError("once")

    with Task(**mode) as task:
        task.use(lambda ctx: task.emit("task_said", ctx.total_step), waiting(task, "task_said", got))
        task.use(fail, lambda ctx: None)
        with pytest.raises(ValueError, match="once"):
            task.run(max_step=9)
        before = len(got)
        task.run(max_step=5)
    assert got[:4] == [(step, step) for step in range(4)]
    assert got[before:] == [(step, step) for step in range(3, 8)], "what was abandoned is returned by no wait"


def test_after_an_interrupt_the_next_run_goes_on_with_what_is_in_flight() -> None:
    got: list[Any] = []

    def emit(ctx: Context) -> None:
        task.emit("task_said", ctx.total_step)
        if ctx.total_step % 3 == 1:
            task.interrupt()

    with Task(async_mode=True) as task:
        task.use(emit, lambda ctx: None, waiting(task, "task_said", got))
        while task.ctx.total_step < 10:
            task.run(max_step=4)
    assert got == [(step, step) for step in range(len(got))]
    assert len(got) >= 10


def test_the_next_task_of_a_bus_is_given_what_the_last_one_has_not_delivered() -> None:
    bus, got = Bus(), []
    bus.declare("task_model", "state")

    def emit(ctx: Context) -> None:
        if ctx.total_step == 3:
            bus.emit("task_said", "last")
            bus.emit("task_model", "last")

    def fail(ctx: Context) -> None:
        if ctx.total_step == 2:
            raise ValueError

    with Task(bus=bus, async_mode=True) as task, pytest.raises(ValueError):
        task.use(emit, fail).run()
    with Task(bus=bus, async_mode=True) as task:
        task.use(waiting(task, "task_said", got), waiting(task, "task_model", got), name="wait").run(
            max_step=1
        )
    assert got == [(0, "last"), (0, "last")]


def test_what_a_wait_may_not_see_yet_is_looked_at_once_a_slot() -> None:
    looked = 0

    class Said:
        weight = 1

        def __init__(self, number: int) -> None:
            self.number = number

        @property
        def origin(self) -> backlog.Origin:
            nonlocal looked
            looked += 1
            return 5, -2, 3

    waits, line = backlog.Backlog("task_said", "station 'a'", in_time=True), backlog.NoLine()
    for number in range(100):
        waits.add(Said(number))
        assert waits.take((5, -1, 4), line) is None, f"{number} were emitted by a later station in this slot"
    assert looked <= 4 * 100
    assert waits.take((6, -1, 5), line) is not None
    assert len(waits) == 99


def test_a_state_is_the_one_of_the_iteration_that_waits() -> None:
    got: list[Any] = []
    with Task(async_mode=True) as task:
        task.bus.declare("task_model", "state")
        task.emit("task_model", "before")

        def publish(ctx: Context) -> None:
            if ctx.total_step % 2:
                task.emit("task_model", ctx.total_step)

        task.use(publish, lambda ctx: None, waiting(task, "task_model", got, timeout=0.0)).run(max_step=6)
    assert got == [(0, "before"), (1, 1), (2, None), (3, 3), (4, None), (5, 5)]


# --- memory -----------------------------------------------------------------------------


class Thing:
    pass


def living(task: Task, waits: Callable[[Context], None], steps: int) -> int:
    """How many of the things that were emitted are alive after the last boundary."""
    kept: list[weakref.ref[Thing]] = []

    def emit(ctx: Context) -> None:
        thing = Thing()
        kept.append(weakref.ref(thing))
        task.emit("task_said", thing)

    task.share(kept).use(emit, waits).run(max_step=steps)
    gc.collect()
    return sum(one() is not None for one in kept)


@both_modes
def test_what_no_station_waits_for_does_not_pile_up(
    mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "MOST_RECENT", 50)
    with Task(**mode) as task:
        assert living(task, lambda ctx: None, 400) <= 60
    gc.collect()


@both_modes
def test_of_large_values_fewer_are_kept(mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MOST_RECENT_BYTES", 4000)
    with Task(**mode) as task:
        assert living(task, lambda ctx: None, 100) <= 25


def test_values_that_grow_are_noticed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MOST_RECENT_BYTES", 1 << 20)
    kept: list[weakref.ref[Any]] = []

    def emit(ctx: Context) -> None:
        grown = np.zeros(1 << 20, np.uint8) if ctx.total_step >= 300 else np.zeros(1)
        kept.append(weakref.ref(grown))
        task.emit("task_said", {"grown": grown})

    with Task() as task:
        task.share(kept).use(emit).run(max_step=400)
        assert sum(one() is not None for one in kept[300:]) <= 18


@both_modes
def test_a_station_that_waits_too_seldom_is_told_and_given_the_latest(
    mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backlog, "MOST_WAITING", 20)
    monkeypatch.setattr(backlog, "MOST_RECENT", 10)
    got: list[Any] = []

    def seldom(ctx: Context) -> None:
        if ctx.total_step in (0, 99):
            got.append(task.wait_for("task_said", timeout=LONG))

    with Task(**mode) as task:
        assert living(task, seldom, 100) <= 25
    (line,) = [record.getMessage() for record in caplog.records]
    assert "station 'seldom' waits for 'task_said' less often than it is emitted" in line
    assert "declare 'task_said' a state" in line
    assert len(got) == 2


def test_no_bound_takes_away_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_RECENT", "MOST_RECENT_BYTES", "MOST_WAITING", "MOST_WAITING_BYTES"):
        monkeypatch.setattr(backlog, name, 1)
    got: list[Any] = []
    with Task(async_mode=True) as task:
        task.use(lambda ctx: task.emit("task_said", ctx.total_step), lambda ctx: None, lambda ctx: None)
        task.use(waiting(task, "task_said", got)).run(max_step=20)
    assert got == [(step, step) for step in range(20)]


def test_a_station_that_was_removed_keeps_nothing() -> None:
    with Task() as task:
        task.use(waiting(task, "task_said", []), name="gone")
        task.emit("task_said", 0)
        task.run(max_step=1)
        task.remove("gone")
        thing = Thing()
        kept = weakref.ref(thing)
        task.emit("task_said", thing)
        del thing
        for number in range(backlog.MOST_RECENT * 2):
            task.emit("task_said", number)
        task.use(lambda ctx: None).run(max_step=1)
        gc.collect()
        assert kept() is None


def test_a_thread_that_has_ended_keeps_nothing() -> None:
    bus = Bus()
    bus.emit("task_said", 0)
    thread = threading.Thread(target=lambda: bus.wait_for("task_said", timeout=LONG))
    thread.start()
    thread.join(LONG)
    thing = Thing()
    kept = weakref.ref(thing)
    bus.emit("task_said", thing)
    del thing
    bus.deliver()
    for number in range(backlog.MOST_RECENT * 2):
        bus.emit("task_said", number)
    bus.deliver()
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (1, 1, 200),
        ("x" * 5000, 5000, 6000),
        (np.zeros(1000), 8000, 9000),
        ({"obs": {"image": np.zeros((10, 1000), np.uint8)}, "action": np.zeros(10)}, 10_000, 12_000),
        ([np.zeros(100)] * 10_000, 5_000_000, 25_000_000),
        (torch.zeros(1000), 4000, 5000),
        (torch.nn.Linear(100, 100), 40_000, 60_000),
        ((Thing(),) * 3, 100, 2000),
    ],
)
def test_a_value_is_weighed_by_what_it_holds(value: Any, least: int, most: int) -> None:
    assert least <= backlog.weigh(value) <= most


def test_something_that_holds_itself_is_weighed() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert backlog.weigh(ring) < 10_000
