"""The bus in memory."""

from __future__ import annotations

from typing import Any

import pytest

from engine.bus.bus import Bus
from engine.errors import Finishing, UnknownName, UsageError


@pytest.mark.parametrize(
    "name", ["model", "Learner_model", "learner-model", "_model", "a__b", "a_", "", "1_a", 3]
)
def test_malformed_event_names_are_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="cannot name an event"):
        Bus().emit(name)


@pytest.mark.parametrize("name", ["learner_model", "league_job_actor_0", "a1_2"])
def test_names_of_the_law_are_accepted(name: str) -> None:
    Bus().emit(name)


def test_emit_never_runs_a_handler_itself() -> None:
    bus, log = Bus(), []
    bus.on("a_b", log.append)
    bus.emit("a_b", 1)
    assert log == []
    bus.deliver()
    assert log == [1]


def test_order_is_by_emission_then_by_subscription() -> None:
    bus: Bus = Bus()
    log: list[tuple[str, int]] = []
    bus.on("a_b", lambda value: log.append(("first", value)))
    bus.on("a_b", lambda value: log.append(("second", value)))
    bus.emit("a_b", 1)
    bus.emit("a_b", 2)
    bus.deliver()
    assert log == [("first", 1), ("second", 1), ("first", 2), ("second", 2)]


def test_once_is_called_once_for_two_queued_events() -> None:
    bus, log = Bus(), []
    bus.once("a_b", log.append)
    bus.emit("a_b", 1)
    bus.emit("a_b", 2)
    bus.deliver()
    assert log == [1]


def test_off_during_delivery_holds_at_once_and_what_handlers_emit_waits() -> None:
    bus: Bus = Bus()
    log: list[str] = []

    def second() -> None:
        log.append("second")

    def first() -> None:
        log.append("first")
        bus.off("a_b", second)
        bus.emit("a_b")

    bus.on("a_b", first)
    bus.on("a_b", second)
    bus.emit("a_b")
    bus.deliver()
    assert log == ["first"]
    assert bus.pending


def test_off_of_what_is_not_on_is_an_error() -> None:
    bus = Bus()
    bus.on("a_b", print)
    with pytest.raises(UnknownName, match="did you mean 'a_b'"):
        bus.off("a_bb")
    with pytest.raises(UnknownName, match="len"):
        bus.off("a_b", len)
    bus.off("a_b")
    with pytest.raises(UnknownName):
        bus.off("a_b")


def test_an_interrupt_in_a_handler_leaves_the_rest_queued() -> None:
    bus, log = Bus(), []

    def interrupt(value: int) -> None:
        if value == 1:
            raise KeyboardInterrupt
        log.append(value)

    bus.on("a_b", interrupt)
    bus.emit("a_b", 1)
    bus.emit("a_b", 2)
    with pytest.raises(KeyboardInterrupt):
        bus.deliver()
    assert bus.pending
    bus.deliver()
    assert log == [2]


def test_no_handler_error_is_lost_to_an_interrupt_or_to_finishing() -> None:
    def boom() -> None:
        raise ValueError("boom")

    def end(error: BaseException) -> None:
        raise error

    bus = Bus()
    bus.on("a_b", boom)
    bus.once("a_b", lambda: end(KeyboardInterrupt()))
    bus.emit("a_b")
    with pytest.raises(KeyboardInterrupt) as caught:
        bus.deliver()
    assert "ValueError: boom" in caught.value.__notes__[0]
    bus.once("c_d", lambda: end(Finishing("the wait ends")))
    bus.on("c_d", boom)
    bus.emit("c_d")
    with pytest.raises(ValueError, match="boom"):
        bus.deliver()
