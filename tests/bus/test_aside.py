"""Handlers on the service thread, alone and between processes."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from engine import OnlineContext, Task
from engine.bus import mailbox
from engine.bus.aside import ServiceThread
from engine.bus.bus import Bus, host, join
from engine.bus.gate import Gate
from engine.bus.memory import Network
from engine.errors import UsageError

LONG = 60.0


def eventually(ready: Callable[[], Any], what: str = "it") -> Any:
    return Gate().until(lambda: ready() or None, LONG, lambda: f"{what} did not happen", what=what)


@pytest.fixture
def bus() -> Iterator[Bus]:
    bus = Bus()
    yield bus
    bus.close()


@pytest.fixture
def pair() -> Iterator[tuple[Bus, Bus]]:
    """A learner and a collector that knows what the learner listens to."""
    net = Network()
    learner = host(net.transport(), run="r", role="learner")
    collector = join(net.transport(), at=learner.address, run="r", role="collector", timeout=LONG)
    yield learner, collector
    collector.close(linger=0.2)
    learner.close(linger=0.2)


def listens(sender: Bus, event: str) -> None:
    peers = sender._network
    assert peers is not None
    eventually(lambda: event in peers.router.listeners)


def test_it_is_called_on_the_service_thread_while_the_task_works(bus: Bus) -> None:
    called: list[tuple[int, str]] = []
    done = threading.Event()

    def handler(number: int) -> None:
        called.append((number, threading.current_thread().name))
        if number == 99:
            done.set()

    bus.on("league_news", handler, thread="service")
    for number in range(100):
        bus.emit("league_news", number)
    assert done.wait(LONG)  # nobody delivers meanwhile
    assert called == [(number, "engine-service") for number in range(100)]
    bus.deliver()
    assert len(called) == 100


def test_handlers_of_both_threads_are_called_each_in_its_place(bus: Bus) -> None:
    aside, here = threading.Event(), list[str]()
    bus.on("league_news", lambda: aside.set(), thread="service")
    bus.on("league_news", lambda: here.append(threading.current_thread().name))
    bus.emit("league_news")
    assert aside.wait(LONG)
    assert here == []
    bus.deliver()
    assert here == [threading.current_thread().name]


def test_its_error_ends_the_task_with_its_own_traceback() -> None:
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise KeyError("no such player")

    with Task(OnlineContext()) as task:
        task.on("league_news", fail, thread="service")
        task.emit("league_news")
        assert failed.wait(LONG)
        task.use(lambda ctx: None)
        eventually(lambda: task.bus.pending)
        with pytest.raises(KeyError, match="no such player") as caught:
            task.run(max_step=1)
    assert any("raised in handler" in note for note in caught.value.__notes__)
    assert caught.traceback[-1].name == "fail"


def test_who_leaves_the_interpreter_ends_no_thread(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    later = threading.Event()

    def leave() -> None:
        raise SystemExit(3)

    bus.on("league_news", leave, thread="service")
    bus.on("league_end", later.set, thread="service")
    bus.emit("league_news")
    bus.emit("league_end")
    assert later.wait(LONG)
    eventually(lambda: caplog.records)
    assert "SystemExit(3)" in caplog.text


def test_an_error_after_the_last_boundary_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    go_on, failed = threading.Event(), threading.Event()

    def fail() -> None:
        assert go_on.wait(LONG)
        failed.set()
        raise KeyError("no such player")

    with Task(OnlineContext()) as task:
        task.on("league_news", fail, thread="service")
        task.use(lambda ctx: None)
        task.emit("league_news")
        task.run(max_step=1)
        go_on.set()
        assert failed.wait(LONG)
        eventually(lambda: task.bus.pending)
    assert "no such player" in caplog.text


def test_of_very_many_errors_the_first_ends_the_task_and_the_last_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = threading.Event()
    with Task(OnlineContext()) as task:
        task.on("league_news", lambda text: int(text), thread="service")
        task.on("league_end", done.set, thread="service")
        task.use(lambda ctx: None)
        for number in range(300):
            task.emit("league_news", f"number {number}")
        task.emit("league_end")
        assert done.wait(LONG)
        with pytest.raises(ValueError, match="'number 0'"):
            task.run(max_step=1)
    assert caplog.text.count("a handler on the service thread failed") == 200


def test_errors_that_no_boundary_raises_are_logged_and_not_kept(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()
    bus.on("league_news", lambda number: 1 // number, thread="service")
    bus.on("league_end", done.set, thread="service")
    for _ in range(300):
        bus.emit("league_news", 0)
    bus.emit("league_end")
    assert done.wait(LONG)
    assert caplog.text.count("ZeroDivisionError: integer") == 300
    assert bus._mailbox._errors == []


def test_of_a_state_it_gets_the_latest_and_each_version_once(bus: Bus) -> None:
    bus.declare("learner_model", "state")
    seen: list[int] = []
    first, go_on, last = threading.Event(), threading.Event(), threading.Event()

    def slow(version: int) -> None:
        seen.append(version)
        first.set()
        assert go_on.wait(LONG)
        if version == 50:
            last.set()

    bus.on("learner_model", slow, thread="service")
    bus.emit("learner_model", 0)
    assert first.wait(LONG)
    for version in range(1, 51):
        bus.emit("learner_model", version)
    go_on.set()
    assert last.wait(LONG)
    bus.deliver()
    assert seen == [0, 50]


def test_who_comes_late_gets_the_current_state_there(bus: Bus) -> None:
    bus.declare("learner_model", "state")
    bus.emit("learner_model", 7)
    bus.deliver()
    got: list[int] = []
    bus.on("learner_model", got.append, thread="service")
    eventually(lambda: got)
    bus.deliver()
    assert got == [7]


def test_who_comes_before_the_boundary_gets_the_state_that_waits_for_it(bus: Bus) -> None:
    bus.declare("learner_model", "state")
    bus.emit("learner_model", 7)
    got: list[int] = []
    bus.on("learner_model", got.append, thread="service")
    eventually(lambda: got)
    bus.deliver()
    assert got == [7]


class Value:
    """Something that a weak reference can be had of."""


def test_a_slow_handler_of_a_state_keeps_no_more_than_two_versions(bus: Bus) -> None:
    bus.declare("learner_model", "state")
    busy, go_on = threading.Event(), threading.Event()

    def slow(model: Value) -> None:
        busy.set()
        assert go_on.wait(LONG)

    bus.on("learner_model", slow, thread="service")
    kept = []
    for number in range(50):
        value = Value()
        kept.append(weakref.ref(value))
        bus.emit("learner_model", value)
        del value
        if number == 0:
            assert busy.wait(LONG)
    gc.collect()
    assert sum(one() is not None for one in kept) <= 2
    go_on.set()


def test_what_it_was_called_with_is_let_go_of(bus: Bus) -> None:
    bus.on("league_news", lambda _: None, thread="service")
    value = Value()
    kept = weakref.ref(value)
    bus.emit("league_news", value)
    del value
    bus.deliver()
    eventually(lambda: gc.collect() >= 0 and kept() is None)


def test_off_ends_it(bus: Bus) -> None:
    seen: list[int] = []
    later = threading.Event()
    bus.on("league_news", seen.append, thread="service")
    bus.on("league_end", later.set, thread="service")
    bus.off("league_news", seen.append)
    bus.emit("league_news", 1)
    bus.emit("league_end")
    assert later.wait(LONG)
    bus.deliver()
    assert seen == []


def test_a_wait_for_the_event_sees_it_as_well(bus: Bus) -> None:
    bus.on("league_news", lambda _: None, thread="service")
    timer = threading.Timer(0.01, lambda: bus.emit("league_news", 5))
    timer.start()
    assert bus.wait_for("league_news", timeout=LONG) == 5
    timer.join()


def test_no_other_thread_is_known(bus: Bus) -> None:
    with pytest.raises(UsageError, match="on takes thread='task' or 'service', not 'inline'"):
        bus.on("league_news", print, thread="inline")  # type: ignore[arg-type]


def test_events_and_states_of_other_processes_reach_it_without_a_boundary(pair: tuple[Bus, Bus]) -> None:
    learner, collector = pair
    news: list[int] = []
    copied: list[int] = []
    looked: list[int] = []
    learner.on("collector_news", news.append, thread="service")
    learner.on("collector_model", lambda model: copied.append(int(model[-1])), thread="service")
    learner.on("collector_model", lambda model: looked.append(int(model[-1])), thread="service", view=True)
    collector.declare("collector_model", "state")
    listens(collector, "collector_news")
    listens(collector, "collector_model")
    for number in range(1000):
        collector.emit("collector_news", number)
    for version in range(20):
        collector.emit("collector_model", np.full(50_000, version))
    eventually(lambda: len(news) == 1000 and copied[-1:] == looked[-1:] == [19])
    assert news == list(range(1000))
    assert copied == sorted(set(copied))
    assert not learner.pending


def test_what_waits_for_it_is_bounded_and_what_is_more_is_counted(
    pair: tuple[Bus, Bus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "MOST_PENDING", 10)
    learner, collector = pair
    missed: list[int] = []
    news: list[int] = []
    busy, go_on = threading.Event(), threading.Event()

    def slow(number: int) -> None:
        news.append(number)
        busy.set()
        assert go_on.wait(LONG)

    learner.on("collector_news", slow, thread="service")
    learner.on("task_events_missed", lambda **about: missed.append(about["count"]))
    listens(collector, "collector_news")
    collector.emit("collector_news", 0)
    assert busy.wait(LONG)
    for number in range(1, 31):
        collector.emit("collector_news", number)

    def told() -> bool:
        learner.deliver()
        return sum(missed) == 20

    eventually(told, "20 events counted as missed")
    go_on.set()
    eventually(lambda: len(news) == 11)
    assert news == list(range(11))


def test_an_event_that_neither_thread_has_room_for_is_missed_once(
    pair: tuple[Bus, Bus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "MOST_PENDING", 2)
    learner, collector = pair
    missed: list[int] = []
    go_on = threading.Event()
    learner.on("collector_news", lambda _: go_on.wait(LONG), thread="service")
    learner.on("collector_news", lambda _: None)
    learner.on("collector_end", lambda: None)
    learner.on("task_events_missed", lambda **about: missed.append(about["count"]))
    listens(collector, "collector_news")
    for number in range(10):
        collector.emit("collector_news", number)

    def told() -> bool:
        counted = sum(learner._mailbox._missed.values())
        return counted >= 7

    eventually(told, "the rest counted")
    learner.deliver()
    assert sum(missed) in (7, 8)  # the handler had begun with the first of them, or not yet
    go_on.set()


def test_a_closed_thread_does_nothing_more_and_can_be_closed_again() -> None:
    thread, done = ServiceThread(), list[int]()
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(LONG)
        done.append(1)

    thread.do(work)
    thread.do(lambda: done.append(2))
    assert begun.wait(LONG)
    closing = threading.Thread(target=thread.close)
    closing.start()
    eventually(lambda: thread._closed)
    go_on.set()
    closing.join(LONG)
    thread.do(lambda: done.append(3))
    thread.close()
    assert done == [1]
