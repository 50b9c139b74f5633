"""Streams of one process: what is pushed, waits, and is taken, without a network; and who is not there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from engine.bus import slots
from engine.bus.bus import host, join
from engine.bus.gate import Gate
from engine.bus.memory import Network
from engine.bus.router import Arrived
from engine.bus.streams import CAPACITY, Streams, Taken, Waiting, WhenFull
from engine.bus.values import SHARED_FROM, Values
from engine.errors import Abandoned, DeadlineExceeded, Finishing, Overloaded, PeerLost, UsageError

LONG = 60.0
NAME = "collector_numbers"


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def streams(gate: Gate) -> Streams:
    return Streams(gate)


@contextmanager
def open_values(kind: type[Values] = Values) -> Iterator[Any]:
    values = kind(shared=True)
    try:
        yield values
    finally:
        values.close()


@pytest.fixture
def values(streams: Streams) -> Iterator[Values]:
    """Opens what arrives at these streams."""
    with open_values() as made:
        streams.values = made
        yield made


def push(streams: Streams, value: Any, *, timeout: float | None = 0.0, sender: str = "peer_0") -> None:
    streams.push(NAME, value, timeout, sender, lambda: "peer_0, peer_1")


def take(
    streams: Streams, *, sender: str | None = None, timeout: float | None = 0.0, view: bool = False
) -> Taken:
    return streams.take(NAME, sender, timeout, view, lambda: "peer_0, peer_1")


def counts(streams: Streams) -> dict[str, int]:
    return streams.stats()[NAME]


def arrived(values: Values, value: Any) -> Arrived:
    """A value as it comes by socket."""
    snapshot = values.snapshot(value)
    return Arrived(snapshot.skeleton, snapshot.size, None, snapshot.frames())


def came(
    streams: Streams, value: Arrived, *, number: int = 0, sender: str = "peer_1", age: float = 0.0
) -> None:
    """An item comes from another process."""
    since = time.monotonic() - age
    streams.came(NAME, Waiting(sender, f"{sender}:id", number, since, None, value))


# --- in one process -----------------------------------------------------------------------------


def test_items_are_taken_in_the_order_in_which_they_were_pushed(streams: Streams) -> None:
    for value in "abc":
        push(streams, value)
    items = [take(streams) for _ in range(3)]
    assert [item.value for item in items] == ["a", "b", "c"]
    assert [item.number for item in items] == [0, 1, 2]
    assert {item.sender for item in items} == {"peer_0"}
    assert all(item.seconds >= 0 for item in items)


def test_an_item_is_the_very_value_that_was_pushed(streams: Streams) -> None:
    value = object()
    push(streams, value)
    assert take(streams).value is value


def test_items_of_one_sender_are_taken_past_those_of_others_which_keep_their_order(streams: Streams) -> None:
    for sender, value in (("peer_1", 1), ("peer_2", 2), ("peer_1", 3), ("peer_2", 4)):
        push(streams, value, sender=sender)
    assert take(streams, sender="peer_2").value == 2
    assert [take(streams).value for _ in range(3)] == [1, 3, 4]


def test_streams_do_not_mix(streams: Streams) -> None:
    push(streams, 1)
    streams.push("collector_others", 2, 0.0, "peer_0", lambda: "")
    assert take(streams).value == 1
    with pytest.raises(DeadlineExceeded):
        take(streams)
    assert streams.waiting("collector_others") == 1


def test_a_stream_that_nobody_spoke_of_is_empty(streams: Streams) -> None:
    assert streams.waiting(NAME) == 0
    assert streams.stats() == {}


def test_counts_say_where_the_items_are(streams: Streams) -> None:
    for value in range(3):
        push(streams, value)
    take(streams)
    assert counts(streams) == {"outstanding": 2, "waiting": 2, "taken": 1, "dropped": 0}


# --- capacity -----------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [False, True])
def test_so_many_items_wait_where_no_capacity_was_given(declared: bool, streams: Streams) -> None:
    if declared:
        streams.declare(NAME, None, "block")
    for value in range(CAPACITY):
        push(streams, value)
    with pytest.raises(DeadlineExceeded):
        push(streams, CAPACITY)
    assert streams.waiting(NAME) == CAPACITY


def test_a_full_stream_blocks_until_an_item_is_taken(streams: Streams) -> None:
    streams.declare(NAME, 1, "block")
    push(streams, "a")
    with pytest.raises(DeadlineExceeded) as caught:
        push(streams, "b")
    assert str(caught.value) == (
        f"nobody took an item of {NAME!r} within 0 s: nobody consumes it; in the run are peer_0, peer_1"
    )
    take(streams)
    push(streams, "b")
    assert take(streams).value == "b"


def test_a_producer_never_gets_further_ahead_than_the_capacity(streams: Streams) -> None:
    streams.declare(NAME, 2, "block")
    producer = threading.Thread(target=lambda: [push(streams, value, timeout=LONG) for value in range(50)])
    producer.start()
    taken, most = [], 0
    for _ in range(50):
        taken.append(take(streams, timeout=LONG).value)
        most = max(most, counts(streams)["outstanding"])
    producer.join(LONG)
    assert taken == list(range(50))
    assert most <= 2


def test_an_item_that_found_no_room_is_not_there_later(streams: Streams) -> None:
    streams.declare(NAME, 1, "block")
    push(streams, "a")
    with pytest.raises(DeadlineExceeded):
        push(streams, "b")
    assert take(streams).value == "a"
    assert counts(streams) == {"outstanding": 0, "waiting": 0, "taken": 1, "dropped": 0}


def test_the_oldest_make_way_where_they_may_be_dropped(streams: Streams) -> None:
    streams.declare(NAME, 2, "drop_oldest")
    for value in range(5):
        push(streams, value)
    assert counts(streams) == {"outstanding": 2, "waiting": 2, "taken": 0, "dropped": 3}
    assert [take(streams).value for _ in range(2)] == [3, 4]
    assert counts(streams) == {"outstanding": 0, "waiting": 0, "taken": 2, "dropped": 3}


def test_a_full_stream_raises_at_once_where_it_shall(streams: Streams) -> None:
    streams.declare(NAME, 1, "error")
    push(streams, "a", timeout=None)
    with pytest.raises(Overloaded, match=f"1 items of '{NAME}' wait already; nobody took"):
        push(streams, "b", timeout=None)
    take(streams)
    push(streams, "b", timeout=None)
    assert take(streams).value == "b"


def test_a_stream_may_be_declared_again_but_not_otherwise(streams: Streams) -> None:
    for _ in range(2):
        streams.declare(NAME, 3, "block")
    for capacity, when_full in ((4, "block"), (3, "error"), (None, "block")):
        with pytest.raises(UsageError, match=f"'{NAME}' was declared with other settings already"):
            streams.declare(NAME, capacity, when_full)  # type: ignore[arg-type]


def test_a_declaration_holds_though_the_stream_was_used_before_it(streams: Streams) -> None:
    push(streams, "a")
    streams.declare(NAME, 1, "block")
    with pytest.raises(DeadlineExceeded):
        push(streams, "b")


@pytest.mark.parametrize("capacity", [0, -1, True])
def test_a_capacity_counts_items(capacity: Any, streams: Streams) -> None:
    with pytest.raises(UsageError, match="capacity counts items, at least 1"):
        streams.declare(NAME, capacity, "block")


def test_an_unknown_way_to_be_full_is_refused(streams: Streams) -> None:
    with pytest.raises(UsageError, match="not 'drop_newest'"):
        streams.declare(NAME, 1, "drop_newest")  # type: ignore[arg-type]


# --- waits --------------------------------------------------------------------------------------


def test_a_take_waits_for_the_item_that_another_thread_pushes(streams: Streams) -> None:
    found: list[Any] = []
    consumer = threading.Thread(target=lambda: found.append(take(streams, timeout=LONG).value))
    consumer.start()
    push(streams, "a")
    consumer.join(LONG)
    assert found == ["a"]


def test_of_two_that_wait_for_one_item_one_gets_it(streams: Streams) -> None:
    found: list[Any] = []
    late: list[DeadlineExceeded] = []

    def consume() -> None:
        try:
            found.append(take(streams, timeout=0.05).value)
        except DeadlineExceeded as error:
            late.append(error)

    push(streams, "a")
    consumers = [threading.Thread(target=consume) for _ in range(2)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(LONG)
    assert (found, len(late)) == (["a"], 1)


def test_a_take_in_vain_says_of_whom_and_who_is_there(streams: Streams) -> None:
    push(streams, "a", sender="peer_1")
    with pytest.raises(DeadlineExceeded) as caught:
        take(streams, sender="peer_2")
    assert str(caught.value) == (
        f"no item of {NAME!r} of peer_2 came within 0 s; in the run are peer_0, peer_1"
    )
    assert take(streams).value == "a"


def test_waits_end_when_the_task_is_to_finish_and_what_is_there_is_taken_first(
    gate: Gate, streams: Streams
) -> None:
    streams.declare(NAME, 1, "block")
    gate.finishing = lambda: True
    push(streams, "a", timeout=LONG)
    with pytest.raises(Finishing, match=f"room in '{NAME}'"):
        push(streams, "b", timeout=LONG)
    assert take(streams, timeout=LONG).value == "a"
    with pytest.raises(Finishing, match=f"an item of '{NAME}'"):
        take(streams, timeout=LONG)


def test_waits_end_when_the_run_has_failed_and_when_the_bus_is_closed(gate: Gate, streams: Streams) -> None:
    gate.failed = lambda: True
    with pytest.raises(Abandoned):
        take(streams, timeout=None)
    gate.failed, gate.closed = lambda: False, True
    with pytest.raises(Finishing, match="the bus was closed"):
        take(streams, timeout=None)


# --- views --------------------------------------------------------------------------------------


def test_an_item_that_is_looked_at_takes_up_room_until_it_is_released(streams: Streams) -> None:
    streams.declare(NAME, 1, "block")
    push(streams, "a")
    item = take(streams, view=True)
    assert item.value == "a"
    with pytest.raises(DeadlineExceeded):
        push(streams, "b")
    item.release()
    assert item.value is None
    push(streams, "b")


def test_a_second_release_makes_no_more_room(streams: Streams) -> None:
    for value in "ab":
        push(streams, value)
    item = take(streams, view=True)
    for _ in range(2):
        item.release()
    assert counts(streams)["outstanding"] == 1


def test_a_block_releases_its_item_also_when_it_fails(streams: Streams) -> None:
    held: list[int] = []

    def fail() -> None:
        with take(streams, view=True):
            held.append(counts(streams)["outstanding"])
            raise ValueError("unlucky")

    push(streams, "a")
    with pytest.raises(ValueError, match="unlucky"):
        fail()
    assert (held, counts(streams)["outstanding"]) == ([1], 0)


def test_an_item_that_is_not_looked_at_needs_no_release(streams: Streams) -> None:
    push(streams, "a")
    item = take(streams)
    item.release()
    assert (item.value, counts(streams)["outstanding"]) == ("a", 0)


# --- what comes from other processes ------------------------------------------------------------


def test_an_item_that_came_is_decoded_and_tells_its_age(streams: Streams, values: Values) -> None:
    came(streams, arrived(values, {"x": np.arange(3)}), number=7, age=5.0)
    item = take(streams)
    assert item.value["x"].tolist() == [0, 1, 2]
    assert (item.sender, item.number) == ("peer_1", 7)
    assert item.seconds >= 5.0


def test_a_taken_array_is_ours_to_change_and_one_that_is_looked_at_is_not(
    streams: Streams, values: Values
) -> None:
    for number in range(2):
        came(streams, arrived(values, np.zeros(3)), number=number)
    take(streams).value[0] = 1.0
    with take(streams, view=True) as item, pytest.raises(ValueError, match="read-only"):
        item.value[0] = 1.0


def test_a_take_wakes_when_an_item_comes(streams: Streams, values: Values) -> None:
    found: list[Any] = []
    consumer = threading.Thread(target=lambda: found.append(take(streams, timeout=LONG).value))
    consumer.start()
    came(streams, arrived(values, "a"))
    consumer.join(LONG)
    assert found == ["a"]


def test_what_waits_is_what_came_at_a_consumer_and_what_nobody_took_at_a_producer(
    streams: Streams, values: Values
) -> None:
    push(streams, "mine")
    push(streams, "mine too")
    with take(streams, view=True):
        assert streams.waiting(NAME) == 2, "the one that is looked at is not off this producer's hands"
        streams.get(NAME).consuming = 4
        assert streams.waiting(NAME) == 1
    came(streams, arrived(values, "a"))
    assert streams.waiting(NAME) == 2


def test_nonsense_is_passed_over_and_counted(streams: Streams, values: Values) -> None:
    came(streams, Arrived(b"\xc1 is no message", 0))
    came(streams, arrived(values, "sense"), number=1)
    assert take(streams).value == "sense"
    assert counts(streams) == {"outstanding": 0, "waiting": 0, "taken": 1, "dropped": 1}


@pytest.mark.skipif(not slots.available(), reason="there is no shared memory here")
def test_an_item_whose_memory_holds_something_newer_is_passed_over(streams: Streams, values: Values) -> None:
    size = SHARED_FROM
    with open_values() as producer:
        old = producer.snapshot(np.zeros(size, np.uint8))
        old.release()  # as if the producer took it for dead
        new = producer.snapshot(np.ones(size, np.uint8))
        for number, snapshot in enumerate((old, new)):
            assert snapshot.offer() is not None
            came(streams, Arrived(snapshot.skeleton, snapshot.size, tuple(snapshot.offer())), number=number)
        item = take(streams)
        assert (item.number, item.value.tolist()) == (1, [1] * size)
        assert counts(streams)["dropped"] == 1


def test_items_that_were_pushed_to_others_are_settled_when_they_say_so(streams: Streams) -> None:
    streams.declare(NAME, 2, "block")
    for _ in range(2):
        push(streams, "a")
    waiter = threading.Thread(target=lambda: push(streams, "b", timeout=LONG))
    waiter.start()
    streams.settled(NAME, 1)
    waiter.join(LONG)
    assert not waiter.is_alive()
    assert counts(streams)["outstanding"] == 2


class Forgetting(Values):
    """Remembers whose memory it let go of."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.forgotten: list[int] = []

    def forget(self, pid: int) -> None:
        self.forgotten.append(pid)
        super().forget(pid)


def test_the_memory_of_a_peer_that_is_gone_is_kept_until_its_last_item_is_taken(streams: Streams) -> None:
    with open_values(Forgetting) as values:
        streams.values = values
        for number in range(2):
            came(streams, arrived(values, number), number=number)
        came(streams, arrived(values, "of another"), sender="peer_2")
        streams.gone("peer_1:id", 41)
        assert [take(streams).value, values.forgotten] == [0, []]
        assert [take(streams).value, values.forgotten] == [1, [41]]
        take(streams)
        assert values.forgotten == [41]


def test_the_memory_of_a_peer_that_left_nothing_is_let_go_at_once(streams: Streams) -> None:
    with open_values(Forgetting) as values:
        streams.values = values
        streams.gone("peer_1:id", 41)
        assert values.forgotten == [41]


# --- between processes --------------------------------------------------------------------------


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def pair(stack: ExitStack) -> tuple[Any, Any]:
    """A learner that hosts, and a collector."""
    network = Network()
    learner = host(network.transport(), run="r", role="learner", roles=("collector",))
    stack.callback(learner.close, linger=0.2)
    collector = join(network.transport(), at=learner.address, run="r", role="collector", timeout=LONG)
    stack.callback(collector.close, linger=0.2)
    return learner, collector


def test_a_sender_that_is_not_in_the_run_is_not_waited_for(stack: ExitStack) -> None:
    learner, _ = pair(stack)
    with pytest.raises(PeerLost, match="nothing more comes of collector_9: it is not in the run"):
        learner.take(NAME, sender="collector_9", timeout=LONG)


def test_what_a_sender_left_behind_is_taken_before_it_is_said_that_it_is_gone(stack: ExitStack) -> None:
    learner, collector = pair(stack)
    learner.consume(NAME)
    for value in range(3):
        collector.push(NAME, value, timeout=LONG)
    assert learner.take(NAME, timeout=LONG).value == 0  # so the collector knows who consumes
    left = threading.Event()
    learner.watch(lambda what, peer, cause: left.set() if what == "left" else None)
    collector.close(linger=LONG)
    assert left.wait(LONG)
    assert [learner.take(NAME, sender="collector_0", timeout=LONG).value for _ in range(2)] == [1, 2]
    with pytest.raises(PeerLost, match="nothing more comes of collector_0"):
        learner.take(NAME, sender="collector_0", timeout=LONG)


@pytest.mark.parametrize("when_full", ["block", "error"])
def test_what_cannot_be_sent_takes_up_no_room(when_full: WhenFull, stack: ExitStack) -> None:
    learner, collector = pair(stack)
    for bus in (learner, collector):
        bus.declare(NAME, "stream", capacity=1, when_full=when_full)
    with pytest.raises(ValueError, match="a lambda"):
        collector.push(NAME, lambda: None, timeout=LONG)
    collector.push(NAME, "sense", timeout=0.0)
    assert learner.take(NAME, timeout=LONG).value == "sense"
