"""Letters, listeners, waits and boundaries of one task, without a network."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from engine.bus import mailbox
from engine.bus.backlog import Origin
from engine.bus.gate import Gate
from engine.bus.mailbox import (
    MOST_PENDING,
    MOST_PENDING_BYTES,
    Handler,
    Letter,
    Mailbox,
    Subscription,
    add_others,
    raise_first,
)
from engine.bus.names import MISSED
from engine.bus.router import Arrived
from engine.bus.slots import Torn, Unattachable
from engine.errors import Abandoned, CodecError, DeadlineExceeded, Finishing, UnknownName, UsageError

MOMENT = 0.05  # for waits that end without what they wait for


class Shelf:
    """An `Opener`: values by what stands for them; those that are struck off were overwritten."""

    def __init__(self, box: Mailbox) -> None:
        self.values: dict[bytes, Any] = {}
        self.overwritten: set[bytes] = set()
        self.newer: list[Letter] = []
        """What a pull brings, one after the other."""
        self.said: list[tuple[str, str]] = []
        self._box = box
        box.opener = self

    def put(self, value: Any, *, offered: bool = False, size: int = 0) -> Arrived:
        name = str(len(self.values)).encode()
        self.values[name] = value
        return Arrived(name, size, offer=(1,) if offered else None)

    def load(self, arrived: Arrived) -> Any:
        self.said.append(("load", arrived.skeleton.decode()))
        return self._found(arrived)

    def load_call(self, arrived: Arrived) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.said.append(("load_call", arrived.skeleton.decode()))
        args, kwargs = self._found(arrived)
        return tuple(args), kwargs

    def view(self, arrived: Arrived) -> tuple[Any, Callable[[], bool]]:
        return self._found(arrived), lambda: arrived.skeleton not in self.overwritten

    def read(self, sender_id: str, name: str) -> None:
        self.said.append(("read", name))

    def pull(self, sender_id: str, name: str) -> None:
        self.said.append(("pull", name))
        if self.newer:
            self._box.post(self.newer.pop(0))

    def dropped(self) -> None:
        self.said.append(("dropped", ""))

    def _found(self, arrived: Arrived) -> Any:
        if arrived.skeleton in self.overwritten:
            raise Torn("it was overwritten")
        value = self.values[arrived.skeleton]
        if isinstance(value, Exception):
            raise value
        return value


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def box(gate: Gate) -> Mailbox:
    return Mailbox(gate)


@pytest.fixture
def shelf(box: Mailbox) -> Shelf:
    return Shelf(box)


def on(box: Mailbox, event: str, handler: Handler, *, once: bool = False, view: bool = False) -> None:
    box.subscribe(Subscription(event, handler, once=once, view=view))


def event(name: str, *args: Any, origin: Origin = (0, 0, -1)) -> Letter:
    return Letter(name, args, {}, origin=origin)


def state(name: str, value: Any, version: int = 1) -> Letter:
    return Letter(name, (value,), version=version, state=True)


def sent(name: str, arrived: Arrived, *, sender: str = "peer_1") -> Letter:
    """An event of another process."""
    return Letter(name, sender=sender, sender_id=f"{sender}:id", arrived=arrived)


def published(name: str, arrived: Arrived, version: int = 1) -> Letter:
    """A state of another process."""
    return Letter(name, (), None, "peer_1", "peer_1:id", version, arrived=arrived, state=True)


def deliver(box: Mailbox) -> list[Exception]:
    errors: list[Exception] = []
    box.deliver(errors)
    return errors


def wait(
    box: Mailbox, name: str, timeout: float | None = MOMENT, announce: Callable[[], None] = lambda: None
) -> Any:
    return box.wait_for(name, timeout, lambda: "", announce)


# --- order --------------------------------------------------------------------------------------


def test_letters_reach_handlers_in_the_order_of_posting(box: Mailbox) -> None:
    log: list[Any] = []
    on(box, "a_b", log.append)
    on(box, "c_d", log.append)
    for letter in (event("a_b", 1), event("c_d", 2), event("a_b", 3)):
        box.post(letter)
    assert deliver(box) == []
    assert log == [1, 2, 3]


def test_letters_of_threads_at_the_same_time_come_by_their_origin(box: Mailbox) -> None:
    log: list[Any] = []
    on(box, "a_b", log.append)
    for origin, value in (
        ((2, 0, -1), "late"),
        ((1, 1, -1), "second"),
        ((1, 0, -1), "first"),
        ((1, 1, -1), "third"),
    ):
        box.post(event("a_b", value, origin=origin))
    deliver(box)
    assert log == ["first", "second", "third", "late"]


def test_a_boundary_is_needed_while_something_waits_for_it(box: Mailbox) -> None:
    told: list[str] = []
    box.notify = lambda: told.append("told")
    assert not box.pending
    box.post(event("a_b"))
    assert (box.pending, told) == (True, ["told"])
    deliver(box)
    assert not box.pending


def test_what_handlers_post_waits_for_the_next_boundary(box: Mailbox) -> None:
    log: list[int] = []

    def again(value: int) -> None:
        log.append(value)
        box.post(event("a_b", value + 1))

    on(box, "a_b", again)
    box.post(event("a_b", 1))
    deliver(box)
    assert (log, box.pending) == ([1], True)
    deliver(box)
    assert log == [1, 2]


def test_an_interrupt_leaves_what_was_not_delivered_queued(box: Mailbox) -> None:
    log: list[int] = []

    def interrupt(value: int) -> None:
        if value == 1:
            raise KeyboardInterrupt
        log.append(value)

    on(box, "a_b", interrupt)
    for value in (1, 2):
        box.post(event("a_b", value))
    with pytest.raises(KeyboardInterrupt):
        deliver(box)
    assert box.pending
    deliver(box)
    assert log == [2]


# --- listeners ----------------------------------------------------------------------------------


def test_who_listens_before_the_boundary_gets_the_events_that_wait_for_it(box: Mailbox) -> None:
    log: list[int] = []
    box.post(event("a_b", 1))
    on(box, "a_b", log.append)
    deliver(box)
    assert log == [1]


def test_who_listens_after_the_boundary_gets_no_event_of_before(box: Mailbox) -> None:
    log: list[int] = []
    box.post(event("a_b", 1))
    deliver(box)
    on(box, "a_b", log.append)
    deliver(box)
    assert log == []


def test_a_handler_that_is_added_by_a_handler_gets_the_next_event_first(box: Mailbox) -> None:
    log: list[tuple[str, int]] = []

    def first(value: int) -> None:
        log.append(("first", value))
        if value == 1:
            on(box, "a_b", lambda value: log.append(("added", value)))

    on(box, "a_b", first)
    for value in (1, 2):
        box.post(event("a_b", value))
    deliver(box)
    assert log == [("first", 1), ("first", 2), ("added", 2)]


def test_a_handler_that_takes_itself_off_is_called_no_more_and_the_others_are(box: Mailbox) -> None:
    log: list[str] = []

    def leaving() -> None:
        log.append("leaving")
        box.unsubscribe("a_b", leaving)

    on(box, "a_b", leaving)
    on(box, "a_b", lambda: log.append("staying"))
    for _ in range(2):
        box.post(event("a_b"))
    deliver(box)
    assert log == ["leaving", "staying", "staying"]


def test_once_is_off_before_its_handler_runs(box: Mailbox) -> None:
    wanted: list[bool] = []
    on(box, "a_b", lambda: wanted.append(box.wanted("a_b")), once=True)
    for _ in range(2):
        box.post(event("a_b"))
    deliver(box)
    assert wanted == [False]


def test_off_takes_the_last_of_two_subscriptions_of_one_handler(box: Mailbox) -> None:
    log: list[int] = []
    on(box, "a_b", log.append)
    on(box, "a_b", log.append, once=True)
    box.unsubscribe("a_b", log.append)
    for value in (1, 2):
        box.post(event("a_b", value))
    deliver(box)
    assert log == [1, 2]


def test_off_without_a_handler_takes_all_and_then_there_is_none(box: Mailbox) -> None:
    on(box, "a_b", print)
    on(box, "a_b", len)
    with pytest.raises(UnknownName, match=r"event 'a_bb' has no handler to take off; did you mean 'a_b'\?"):
        box.unsubscribe("a_bb", None)
    with pytest.raises(UnknownName, match="event 'a_b' has not 'repr' to take off"):
        box.unsubscribe("a_b", repr)
    box.unsubscribe("a_b", None)
    assert not box.wanted("a_b")
    with pytest.raises(UnknownName, match="no handler"):
        box.unsubscribe("a_b", None)


def test_what_cannot_be_called_is_no_handler(box: Mailbox) -> None:
    with pytest.raises(UsageError, match="the handler of 'a_b' must be callable, not int"):
        on(box, "a_b", 3)  # type: ignore[arg-type]


def test_every_handler_is_called_though_others_fail_and_the_errors_say_whose_they_are(box: Mailbox) -> None:
    log: list[int] = []

    def boom(value: int) -> None:
        raise ValueError(value)

    on(box, "a_b", boom)
    on(box, "a_b", log.append)
    for value in (1, 2):
        box.post(event("a_b", value))
    errors = deliver(box)
    assert log == [1, 2]
    assert [str(error) for error in errors] == ["1", "2"]
    assert "boom' of event 'a_b'" in errors[0].__notes__[0]


def test_the_foremost_error_is_raised_with_the_others_as_notes() -> None:
    raise_first([])
    with pytest.raises(KeyError) as caught:
        raise_first([Finishing("the wait ends"), KeyError("k"), ValueError("v")])
    assert caught.value.__notes__ == [
        "another handler raised Finishing: the wait ends",
        "another handler raised ValueError: v",
    ]
    first = KeyboardInterrupt()
    add_others(first, [ValueError("v")])
    assert first.__notes__ == ["another handler raised ValueError: v"]


# --- states -------------------------------------------------------------------------------------


def test_of_a_state_the_latest_before_the_boundary_is_delivered_alone(box: Mailbox) -> None:
    log: list[int] = []
    on(box, "a_b", log.append)
    for value in (1, 2, 3):
        box.post(state("a_b", value, version=value))
    deliver(box)
    assert log == [3]
    box.post(state("a_b", 4, version=4))
    deliver(box)
    assert log == [3, 4]


def test_a_late_listener_gets_the_current_state_and_the_others_do_not_get_it_again(box: Mailbox) -> None:
    early: list[int] = []
    late: list[int] = []
    on(box, "a_b", early.append)
    box.post(state("a_b", 1))
    deliver(box)
    on(box, "a_b", late.append)
    assert box.pending
    deliver(box)
    assert (early, late) == ([1], [1])


def test_who_listens_while_a_state_waits_gets_it_once(box: Mailbox) -> None:
    log: list[int] = []
    box.post(state("a_b", 1))
    on(box, "a_b", log.append)
    for _ in range(2):
        deliver(box)
    assert log == [1]


def test_a_late_listener_ends_with_the_newest_state(box: Mailbox) -> None:
    late: list[int] = []
    box.post(state("a_b", 1))
    deliver(box)
    on(box, "a_b", late.append)
    box.post(state("a_b", 2, version=2))
    deliver(box)
    assert late[-1] == 2
    assert late == sorted(set(late))


def test_a_late_listener_that_went_before_the_boundary_gets_nothing(box: Mailbox) -> None:
    late: list[int] = []
    box.post(state("a_b", 1))
    deliver(box)
    on(box, "a_b", late.append)
    box.unsubscribe("a_b", late.append)
    deliver(box)
    assert late == []


def test_once_takes_the_state_that_is_there_and_no_later_one(box: Mailbox) -> None:
    log: list[int] = []
    box.post(state("a_b", 1))
    deliver(box)
    on(box, "a_b", log.append, once=True)
    deliver(box)
    box.post(state("a_b", 2, version=2))
    deliver(box)
    assert log == [1]


def test_a_state_from_elsewhere_is_decoded_once_for_all_who_want_it(box: Mailbox, shelf: Shelf) -> None:
    log: list[Any] = []
    for _ in range(2):
        on(box, "a_b", log.append)
    box.post(published("a_b", shelf.put("weights")))
    deliver(box)
    assert wait(box, "a_b") == "weights"
    assert log == ["weights", "weights"]
    assert shelf.said.count(("load", "0")) == 1


def test_a_state_that_was_pulled_may_be_pulled_again_once_it_was_used(box: Mailbox, shelf: Shelf) -> None:
    on(box, "a_b", print)
    box.post(published("a_b", shelf.put("pulled")))
    assert shelf.said == []
    box.post(published("a_b", shelf.put("offered", offered=True), version=2))
    assert shelf.said == [("read", "a_b")], "the pulled one has made way"
    deliver(box)
    assert shelf.said == [("read", "a_b"), ("load", "1")], "an offer was not pulled"
    box.post(published("a_b", shelf.put("pulled too"), version=3))
    deliver(box)
    assert shelf.said[2:] == [("load", "2"), ("read", "a_b")], "it was delivered"
    assert wait(box, "a_b") == "pulled too"
    assert shelf.said[4:] == [("read", "a_b")], "it was waited for"


def test_a_state_that_was_overwritten_is_pulled_and_the_newer_one_delivered(
    box: Mailbox, shelf: Shelf
) -> None:
    log: list[Any] = []
    old = shelf.put("old", offered=True)
    shelf.overwritten.add(old.skeleton)
    shelf.newer = [published("a_b", shelf.put("new"), version=2)]
    on(box, "a_b", log.append, once=True)
    box.post(published("a_b", old))
    assert deliver(box) == []
    assert log == []
    assert box.wanted("a_b"), "once has not had its time yet"
    assert deliver(box) == []
    assert log == ["new"]
    assert not box.wanted("a_b")


# --- views --------------------------------------------------------------------------------------


def test_a_view_is_looked_at_where_it_lies(box: Mailbox, shelf: Shelf) -> None:
    log: list[Any] = []
    on(box, "a_b", log.append, view=True)
    box.post(published("a_b", shelf.put("there", offered=True)))
    deliver(box)
    assert log == ["there"]
    assert shelf.said == []


def test_a_view_of_a_state_of_this_process_is_its_value(box: Mailbox) -> None:
    log: list[Any] = []
    on(box, "a_b", log.append, view=True)
    box.post(state("a_b", 1))
    deliver(box)
    assert log == [1]


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_a_handler_whose_view_was_overwritten_is_called_with_the_newer_before_anything_else(
    fails: bool, box: Mailbox, shelf: Shelf
) -> None:
    log: list[Any] = []
    old = shelf.put("old", offered=True)
    shelf.newer = [published("a_b", shelf.put("new"), version=2)]

    def look(value: str) -> None:
        log.append(value)
        if value == "old":
            shelf.overwritten.add(old.skeleton)
            if fails:
                raise ValueError("half old, half new: nobody published that")

    on(box, "a_b", look, view=True)
    on(box, "c_d", log.append)
    box.post(published("a_b", old))
    box.post(event("c_d", "after"))
    assert deliver(box) == []
    assert log == ["old", "new", "after"]
    assert deliver(box) == []
    assert log == ["old", "new", "after"], "the newer one was shown again at the next boundary"


def test_a_view_that_cannot_be_had_any_more_is_replaced_by_the_newer(box: Mailbox, shelf: Shelf) -> None:
    log: list[Any] = []
    shelf.newer = [published("a_b", shelf.put("new"), version=2)]
    on(box, "a_b", log.append, view=True)
    box.post(published("a_b", shelf.put(Unattachable("its memory is elsewhere"), offered=True)))
    assert deliver(box) == deliver(box) == []
    assert log == ["new"]


def test_an_error_of_a_handler_whose_view_was_whole_is_told(box: Mailbox, shelf: Shelf) -> None:
    def look(value: str) -> None:
        raise ValueError(value)

    on(box, "a_b", look, view=True)
    box.post(published("a_b", shelf.put("whole", offered=True)))
    assert [str(error) for error in deliver(box)] == ["whole"]


def test_an_overwritten_view_that_nothing_newer_follows_is_told_after_its_time(
    box: Mailbox, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "_NEWER_SECONDS", MOMENT)
    old = shelf.put("old", offered=True)
    shelf.overwritten.add(old.skeleton)
    on(box, "a_b", print, view=True)
    box.post(published("a_b", old, version=7))
    (error,) = deliver(box)
    assert isinstance(error, DeadlineExceeded)
    assert "version 7 of 'a_b' was overwritten and no newer one came" in str(error)


# --- what came from other processes -------------------------------------------------------------


def test_an_event_from_elsewhere_is_called_with_its_arguments(box: Mailbox, shelf: Shelf) -> None:
    log: list[Any] = []
    on(box, "a_b", lambda *args, **kwargs: log.append((args, kwargs)))
    box.post(sent("a_b", shelf.put([[1, 2], {"x": 3}])))
    assert deliver(box) == []
    assert log == [((1, 2), {"x": 3})]


def test_nonsense_from_elsewhere_is_counted_and_calls_nobody(box: Mailbox, shelf: Shelf) -> None:
    on(box, "a_b", lambda *args, **kwargs: pytest.fail("it was called"))
    box.post(sent("a_b", shelf.put(CodecError("no arguments"))))
    assert deliver(box) == []
    assert ("dropped", "") in shelf.said


def test_what_a_handler_of_this_process_cannot_send_is_an_error(box: Mailbox) -> None:
    def send() -> None:
        raise CodecError("a lambda cannot be sent")

    on(box, "a_b", send)
    box.post(event("a_b"))
    assert [str(error) for error in deliver(box)] == ["a lambda cannot be sent"]


def test_an_event_from_elsewhere_that_nobody_wants_any_more_is_not_kept(box: Mailbox, shelf: Shelf) -> None:
    box.post(sent("a_b", shelf.put([[1], {}])))
    assert not box.pending
    assert not box.wanted("a_b")


def test_events_of_one_peer_beyond_a_number_are_counted_and_told(box: Mailbox, shelf: Shelf) -> None:
    got: dict[str, int] = {"peer_1": 0, "peer_2": 0}
    told: list[tuple[str, int]] = []

    def count(name: str) -> None:
        got[name] += 1

    on(box, "a_b", count)
    on(box, MISSED, lambda peer, count: told.append((peer, count)))
    first, second = shelf.put([["peer_1"], {}]), shelf.put([["peer_2"], {}])
    for _ in range(MOST_PENDING + 3):
        box.post(sent("a_b", first))
    box.post(sent("a_b", second, sender="peer_2"))
    deliver(box)
    assert got == {"peer_1": MOST_PENDING, "peer_2": 1}
    assert told == [("peer_1", 3)]
    box.post(sent("a_b", first))
    deliver(box)
    assert got["peer_1"] == MOST_PENDING + 1, "there is room again"
    assert told == [("peer_1", 3)], "it is told once"


def test_events_of_one_peer_beyond_so_many_bytes_are_counted_and_told(box: Mailbox, shelf: Shelf) -> None:
    got: list[int] = []
    told: list[int] = []
    on(box, "a_b", got.append)
    on(box, MISSED, lambda peer, count: told.append(count))
    large = shelf.put([[1], {}], size=MOST_PENDING_BYTES // 4)
    for _ in range(6):
        box.post(sent("a_b", large))
    deliver(box)
    assert (len(got), told) == (4, [2])


def test_events_of_this_process_and_states_are_not_bounded(
    box: Mailbox, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "MOST_PENDING", 0)
    log: list[Any] = []
    on(box, "a_b", log.append)
    on(box, "c_d", log.append)
    box.post(event("a_b", 1))
    box.post(published("c_d", shelf.put(2)))
    deliver(box)
    assert log == [1, 2]


def test_what_a_peer_could_not_send_is_told_as_one_sum_for_each(box: Mailbox) -> None:
    told: list[tuple[str, int]] = []
    on(box, MISSED, lambda peer, count: told.append((peer, count)))
    for peer, count in (("peer_1", 2), ("peer_2", 1), ("peer_1", 3)):
        box.missed(peer, count)
    assert box.pending
    deliver(box)
    assert told == [("peer_1", 5), ("peer_2", 1)]


# --- waits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("letter", "value"),
    [
        (Letter("a_b", (1,)), 1),
        (Letter("a_b", (1, 2)), (1, 2)),
        (Letter("a_b", (), {"x": 1}), {"x": 1}),
        (Letter("a_b"), None),
    ],
)
def test_a_wait_returns_what_the_event_brought(letter: Letter, value: Any, box: Mailbox) -> None:
    box.post(letter)
    assert wait(box, "a_b") == value


def test_an_event_that_was_waited_for_reaches_the_handlers_too(box: Mailbox) -> None:
    log: list[int] = []
    on(box, "a_b", log.append)
    box.post(event("a_b", 1))
    assert wait(box, "a_b") == 1
    deliver(box)
    assert log == [1]


def test_waits_of_one_thread_return_each_event_once_and_in_order(box: Mailbox) -> None:
    for value in (1, 2):
        box.post(event("a_b", value))
    assert [wait(box, "a_b"), wait(box, "a_b")] == [1, 2]
    with pytest.raises(DeadlineExceeded):
        wait(box, "a_b")


def test_each_thread_waits_for_itself(box: Mailbox) -> None:
    found: list[Any] = []
    box.post(event("a_b", 1))
    assert wait(box, "a_b") == 1
    other = threading.Thread(target=lambda: found.append(wait(box, "a_b")))
    other.start()
    other.join(60)
    assert found == [1]


def test_a_wait_for_a_state_returns_the_current_one_and_the_next_a_newer_one(box: Mailbox) -> None:
    box.post(state("a_b", 1))
    deliver(box)
    assert wait(box, "a_b") == 1
    with pytest.raises(DeadlineExceeded):
        wait(box, "a_b")
    box.post(state("a_b", 2, version=2))
    assert wait(box, "a_b") == 2


def test_a_wait_gets_its_event_though_a_boundary_delivers_it_before_the_thread_wakes(box: Mailbox) -> None:
    waits = threading.Event()
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(wait(box, "a_b", 60, waits.set)))
    waiter.start()
    assert waits.wait(60)
    box.post(event("a_b", "first"))
    deliver(box)
    box.post(event("a_b", "second"))
    deliver(box)
    waiter.join(60)
    assert found == ["first"]


def test_what_is_waited_for_is_announced_once_and_wanted_from_then_on(box: Mailbox) -> None:
    announced: list[bool] = []
    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            wait(box, "a_b", 0.0, lambda: announced.append(box.wanted("a_b")))
    assert announced == [True]


def test_a_wait_that_is_late_names_the_nearest_event_and_who_was_expected(box: Mailbox) -> None:
    on(box, "learner_model", print)
    with pytest.raises(DeadlineExceeded) as caught:
        box.wait_for("learner_modle", 0.0, lambda: "; no learner is in the run", lambda: None)
    assert str(caught.value) == (
        "no 'learner_modle' was emitted within 0 s; an event 'learner_model' is known: is that the one?; "
        "no learner is in the run"
    )


def test_only_a_wait_without_a_bound_ends_when_the_task_is_to_finish(gate: Gate, box: Mailbox) -> None:
    gate.finishing = lambda: True
    with pytest.raises(Finishing, match="the wait for 'a_b' ends"):
        wait(box, "a_b", None)
    with pytest.raises(DeadlineExceeded):
        wait(box, "a_b", 0.0)
    box.post(event("a_b", 1))
    assert wait(box, "a_b", None) == 1, "what is there is returned"


def test_every_wait_ends_when_the_run_has_failed_or_the_network_broke(gate: Gate, box: Mailbox) -> None:
    gate.failed = lambda: True
    with pytest.raises(Abandoned, match="'a_b'"):
        wait(box, "a_b", 60)
    gate.failed, gate.broken = lambda: False, ConnectionError("the hub is gone")
    with pytest.raises(ConnectionError, match="the hub is gone"):
        wait(box, "a_b", 60)


def meanwhile(gate: Gate, act: Callable[[], None]) -> None:
    """Let something happen once, while this thread waits."""
    left = [act]

    def answer() -> bool:
        if left:
            left.pop()()
        return False

    gate.runner, gate.answer = threading.get_ident(), answer


def test_a_wait_gets_the_newer_of_a_state_that_still_waits_for_its_boundary(gate: Gate, box: Mailbox) -> None:
    box.post(state("a_b", 1))
    assert wait(box, "a_b") == 1
    meanwhile(gate, lambda: box.post(state("a_b", 2, version=2)))
    assert wait(box, "a_b", 60) == 2


def test_what_a_late_listener_gets_again_ends_no_wait_for_something_newer(gate: Gate, box: Mailbox) -> None:
    box.post(state("a_b", 1))
    deliver(box)
    assert wait(box, "a_b") == 1
    meanwhile(gate, lambda: on(box, "a_b", print))
    with pytest.raises(DeadlineExceeded):
        wait(box, "a_b")
    assert box.pending, "the late listener is to get it"


def test_a_wait_that_ended_in_vain_is_handed_nothing_and_the_next_gets_what_comes(box: Mailbox) -> None:
    with pytest.raises(DeadlineExceeded):
        wait(box, "a_b", 0.0)
    box.post(event("a_b", 1))
    assert wait(box, "a_b") == 1


def test_a_wait_goes_on_for_the_newer_where_a_state_was_overwritten(box: Mailbox, shelf: Shelf) -> None:
    old, newer = shelf.put("old", offered=True), shelf.put("newer", offered=True)
    shelf.overwritten |= {old.skeleton, newer.skeleton}
    shelf.newer = [published("a_b", newer, version=2), published("a_b", shelf.put("newest"), version=3)]
    box.post(published("a_b", old))
    assert wait(box, "a_b") == "newest"
    assert shelf.said.count(("pull", "a_b")) == 2


def test_a_wait_for_what_is_overwritten_again_and_again_ends_at_its_deadline(
    box: Mailbox, shelf: Shelf
) -> None:
    old = shelf.put("old", offered=True)
    shelf.overwritten.add(old.skeleton)
    box.post(published("a_b", old))
    with pytest.raises(DeadlineExceeded, match=r"no 'a_b' was emitted within 0\.05 s"):
        wait(box, "a_b")


def test_of_a_sender_whose_state_another_overtook_newer_ones_are_asked_for(
    box: Mailbox, shelf: Shelf
) -> None:
    busy, go_on, last = threading.Event(), threading.Event(), threading.Event()

    def slow(value: str) -> None:
        busy.set()
        assert go_on.wait(60)
        if value == "b":
            last.set()

    box.subscribe(Subscription("a_b", slow, once=False, thread="service"))
    read: list[str] = []
    shelf.read = lambda sender_id, name: read.append(sender_id)  # type: ignore[method-assign]
    for sender in ("z", "a", "b"):
        letter = Letter("a_b", (), None, sender, sender, 1, arrived=shelf.put(sender), state=True)
        box.post(letter)
        assert busy.wait(60)
    go_on.set()
    assert last.wait(60)
    Gate().until(lambda: "b" in read or None, 60, lambda: f"only {read}", what="it")
    assert set(read) == {"z", "a", "b"}


@pytest.mark.parametrize("view", [False, True])
def test_a_version_that_comes_twice_is_handed_over_once(view: bool, box: Mailbox, shelf: Shelf) -> None:
    log: list[Any] = []
    on(box, "a_b", log.append, view=view)
    for what, version in (("one", 1), ("two", 2), ("two again", 2), ("three", 3)):
        box.post(published("a_b", shelf.put(what), version=version))
        assert deliver(box) == []
    assert log == ["one", "two", "three"]
