"""Calls by lines, over real sockets: made once, whatever becomes of the line."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import zmq
from proxy import Proxy

from engine.bus.bus import Bus, host, join
from engine.bus.codec import register
from engine.bus.gate import Gate
from engine.bus.keys import generate_keys
from engine.bus.lines import ANSWER_SECONDS, MOST_LINES, Lines
from engine.bus.message import Call, Reply, pack
from engine.bus.zeromq import ZeroMQ, parse_address
from engine.errors import DeadlineExceeded, Finishing, PeerLost, RemoteError

LONG = 60.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Pair:
    """A league that serves, and a learner that calls it; made are the calls that the league answered."""

    def __init__(self, stack: ExitStack, *, by_proxy: bool = False) -> None:
        keys = generate_keys() if by_proxy else None

        def transport() -> ZeroMQ:
            return ZeroMQ() if keys is None else ZeroMQ(ipc=False, tcp="127.0.0.1", keys=keys)

        self.league = host(transport(), run="r", role="league")
        stack.callback(self.league.close, linger=0.2)
        self.proxy = stack.enter_context(Proxy(self.league.address)) if by_proxy else None
        at = self.league.address if self.proxy is None else self.proxy.address
        self.learner = join(transport(), at=at, run="r", role="learner", timeout=LONG)
        stack.callback(self.learner.close, linger=0.2)
        self.made: Counter[int] = Counter()
        self.open = threading.Event()
        stack.callback(self.open.set)
        self.league.serve("league_count", self._count, thread="inline")
        self.league.serve("league_count_later", self._count_later, thread="service")
        self.league.serve("league_make", lambda size: np.full(size, 7, np.uint8), thread="service")
        self.league.ready()
        self.learner.wait_for_peers("league", timeout=LONG)

    def _count(self, number: int) -> int:
        self.made[number] += 1
        return number

    def _count_later(self, number: int) -> int:
        self.made[number] += 1
        assert self.open.wait(LONG)
        return number

    def use_a_line(self) -> Pair:
        """Call until there is a line: it is made by the first call, and connected some time later."""
        calls = iter(range(-1, -100_000, -1))

        def answered() -> bool | None:
            self.learner.call("league_count", next(calls), timeout=LONG)
            return (self.learner.stats()["lines"] == 1 and bool(self.heard)) or None

        Gate().until(answered, LONG, lambda: "no call went by a line", what="a line")
        return self

    @property
    def heard(self) -> dict[int, Any]:
        """What the league knows of the learner's lines."""
        league, learner = self.league._network, self.learner._network
        assert league is not None
        assert learner is not None
        return league.router._heard.get(learner.me.id, {})


def test_calls_go_by_one_line_once_it_is_there(stack: ExitStack) -> None:
    pair = Pair(stack).use_a_line()
    (before,) = (one.number for one in pair.heard.values())
    for number in range(10):
        assert pair.learner.call("league_count", number, timeout=LONG) == number
    (heard,) = pair.heard.values()
    assert heard.number == before + 10
    assert heard.way is not None
    assert pair.learner.stats()["lines"] == 1
    assert max(pair.made.values()) == 1


def test_many_threads_share_a_few_lines(stack: ExitStack) -> None:
    pair = Pair(stack).use_a_line()
    with ThreadPoolExecutor(3 * MOST_LINES) as pool:
        numbers = list(pool.map(lambda n: pair.learner.call("league_count", n, timeout=LONG), range(500)))
    assert numbers == list(range(500))
    assert max(pair.made.values()) == 1
    assert pair.learner.stats()["lines"] <= MOST_LINES


ENCODING, GO_ON = threading.Event(), threading.Event()


@register("test_lines_slow")
@dataclass
class Slow:
    """Something whose first look into it takes until `GO_ON`."""

    number: int

    def __getattribute__(self, name: str) -> Any:
        if name == "number" and not GO_ON.is_set():
            ENCODING.set()
            assert GO_ON.wait(LONG)
        return super().__getattribute__(name)


def test_calls_of_two_threads_that_begin_in_one_order_and_are_sent_in_another_are_all_made(
    stack: ExitStack,
) -> None:
    pair = Pair(stack).use_a_line()
    pair.league.serve("league_look", lambda slow: pair._count(slow.number), thread="inline")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(lambda: pair.learner.call("league_look", Slow(5), timeout=20.0))
        assert ENCODING.wait(LONG)
        for number in range(10, 15):
            pair.learner.call("league_count", number, timeout=LONG)
        GO_ON.set()
        assert slow.result(LONG) == 5
    assert max(pair.made.values()) == 1


class Chatter:
    """A line on which answers to others come without end."""

    def send(self, frame: bytes) -> bool:
        return True

    def receive(self) -> bytes:
        return pack(Reply(0, 0, b""))

    def close(self) -> None:
        pass


def test_answers_to_other_calls_do_not_hold_up_a_call() -> None:
    lines = Lines(lambda peer, number: Chatter())
    line = lines.take("league_0:1")
    assert line is not None
    start = time.monotonic()
    assert line.ask(Call(7, "league_get", 1000, 0, b"")) is True
    assert time.monotonic() - start < 100 * ANSWER_SECONDS
    lines.close()


def test_an_answer_that_takes_long_is_waited_for(stack: ExitStack) -> None:
    pair = Pair(stack).use_a_line()
    timer = threading.Timer(10 * ANSWER_SECONDS, pair.open.set)
    timer.start()
    assert pair.learner.call("league_count_later", 5, timeout=LONG) == 5
    timer.join()
    assert pair.made[5] == 1
    (heard,) = pair.heard.values()
    assert heard.way is None  # it was asked for by the lanes


def test_an_answer_too_large_for_the_line_comes_by_the_lanes(stack: ExitStack) -> None:
    pair = Pair(stack).use_a_line()
    for size in (10, 60_000, 70_000, 5_000_000):
        assert pair.learner.call("league_make", size, timeout=LONG).tolist() == [7] * size


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_calls(stack: ExitStack) -> None:
    pair = Pair(stack).use_a_line()
    with pytest.raises(DeadlineExceeded, match="'league_count_later' was not answered"):
        pair.learner.call("league_count_later", 1, timeout=3 * ANSWER_SECONDS)
    pair.open.set()
    for number in range(2, 20):
        assert pair.learner.call("league_count_later", number, timeout=LONG) == number
    assert max(pair.made.values()) == 1


def test_an_error_comes_by_the_line_with_its_traceback(stack: ExitStack) -> None:
    pair = Pair(stack).use_a_line()

    def fail() -> None:
        raise KeyError("no such player")

    pair.league.serve("league_fail", fail, thread="inline")
    Gate().until(
        lambda: "league_fail" in pair.learner._network.router.servers or None,  # type: ignore[union-attr]
        LONG,
        lambda: "not told",
        what="the service",
    )
    with pytest.raises(KeyError, match="no such player") as caught:
        pair.learner.call("league_fail", timeout=LONG)
    assert isinstance(caught.value, RemoteError)
    assert "in fail" in caught.value.__notes__[0]


def test_an_interrupted_call_leaves_the_line_fit_for_the_next(stack: ExitStack) -> None:
    pair = Pair(stack).use_a_line()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for number in range(5):
            signal.setitimer(signal.ITIMER_REAL, (0.3 + 0.4 * number) * ANSWER_SECONDS)
            with pytest.raises(KeyboardInterrupt):
                pair.learner.call("league_count_later", number, timeout=LONG)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    pair.open.set()
    for number in range(10, 20):
        assert pair.learner.call("league_count", number, timeout=LONG) == number
    assert max(pair.made.values()) == 1


def test_a_bus_that_closes_ends_the_calls_on_its_lines(stack: ExitStack) -> None:
    pair = Pair(stack).use_a_line()
    errors: list[BaseException] = []

    def call() -> None:
        try:
            while True:
                pair.learner.call("league_count_later", 1, timeout=LONG)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(2 * MOST_LINES)]
    for thread in threads:
        thread.start()
    start = time.monotonic()
    pair.learner.close(linger=0.2)
    for thread in threads:
        thread.join(LONG)
    assert time.monotonic() - start < 10
    assert len(errors) == len(threads)
    assert {type(error) for error in errors} <= {Finishing, PeerLost}


def test_calls_are_made_once_and_in_order_while_connections_are_reset(stack: ExitStack) -> None:
    pair = Pair(stack, by_proxy=True).use_a_line()
    assert pair.proxy is not None
    proxy, over = pair.proxy, threading.Event()

    def reset() -> None:
        while not over.wait(0.03):
            proxy.reset()

    thread = threading.Thread(target=reset)
    thread.start()
    stack.callback(thread.join, LONG)
    stack.callback(over.set)
    order: list[int] = []
    pair.league.serve("league_note", order.append, thread="inline")
    number = 0
    while proxy.resets < 60 or number < 300:
        pair.learner.call("league_note", number, timeout=LONG)
        number += 1
    assert order == list(range(number))


def test_values_that_came_by_sockets_are_ours_to_change_and_nobody_elses(stack: ExitStack) -> None:
    hub = host(ZeroMQ(), run="r", role="learner", shared=False)
    stack.callback(hub.close, linger=0.2)
    collector = join(ZeroMQ(), at=hub.address, run="r", role="collector", timeout=LONG, shared=False)
    stack.callback(collector.close, linger=0.2)
    looked: list[float] = []
    kept: list[Any] = []

    def change(model: Any) -> None:
        model[:] = -1.0
        kept.append(model)

    collector.on("learner_model", change)
    collector.on("learner_model", lambda model: looked.append(float(model.sum())), view=True)
    hub.declare("learner_model", "state")
    hub.emit("learner_model", np.ones(50_000))

    def delivered() -> bool | None:
        collector.deliver()
        return bool(looked) or None

    Gate().until(delivered, LONG, lambda: "no model came", what="a model")
    assert looked == [50_000.0]
    assert float(kept[0].sum()) == -50_000.0

    hub.consume("collector_rows", capacity=1)
    collector.push("collector_rows", np.ones(50_000), timeout=LONG)
    rows = hub.take("collector_rows", timeout=LONG).value
    rows[:] = 2.0
    assert float(rows.sum()) == 100_000.0
    collector.push("collector_rows", np.ones(50_000, np.longdouble), timeout=LONG)
    assert hub.take("collector_rows", timeout=LONG).value.flags.aligned


def ask(address: str, routing_id: bytes, *frames: bytes) -> list[bytes] | None:
    """Send something on a line of one's own, and return what comes back within a while."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.ROUTING_ID, routing_id)
        socket.connect(f"ipc://{parse_address(address).path}")
        socket.send_multipart(frames)
        return socket.recv_multipart() if socket.poll(200) else None


@pytest.mark.parametrize("name", ["nobody:1/1", "/1", "1"])
def test_who_is_no_member_is_not_answered(stack: ExitStack, name: str) -> None:
    pair = Pair(stack)
    skeleton = b"\x92\x91\x01\x80"  # [[1], {}]
    assert (
        ask(pair.league.address, b"l" + name.encode(), pack(Call(1, "league_count", 99, 0, skeleton, 1)))
        is None
    )
    assert not pair.made


WRONG: dict[str, Callable[[], tuple[bytes, ...]]] = {
    "nonsense": lambda: (b"nonsense",),
    "nothing": lambda: (b"",),
    "two frames": lambda: (pack(Call(1, "league_count", 99, 0, b"\x92\x91\x01\x80", 1)), b"x"),
    "too large": lambda: (pack(Call(1, "league_count", 99, 0, bytes(200_000), 1)),),
    "no line": lambda: (pack(Call(1, "league_count", 99, 0, b"\x92\x91\x01\x80")),),
    "arrays": lambda: (pack(Call(1, "league_count", 99, 64, b"\x92\x91\x01\x80", 1)),),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_what_is_no_small_call_is_dropped(stack: ExitStack, what: str) -> None:
    pair = Pair(stack)
    me = pair.learner._network
    assert me is not None
    assert ask(pair.league.address, b"l" + me.me.id.encode() + b"/9", *WRONG[what]()) is None
    assert not pair.made
    assert pair.learner.call("league_count", 3, timeout=LONG) == 3


def test_a_member_is_answered_on_its_line(stack: ExitStack) -> None:
    pair = Pair(stack)
    me = pair.learner._network
    assert me is not None
    call = pack(Call(1, "league_count", 9999, 0, b"\x92\x91\x01\x80", 1))
    assert ask(pair.league.address, b"l" + me.me.id.encode() + b"/9", call) is not None
    assert pair.made == {1: 1}


def closed(bus: Bus) -> bool:
    return bus._network is not None and not bus._network.alive


def test_nothing_is_left_of_lines(stack: ExitStack) -> None:
    with ExitStack() as inner:
        pair = Pair(inner).use_a_line()
        for _ in range(3):
            pair.learner.call("league_count", 1, timeout=LONG)
    assert closed(pair.learner)
    assert closed(pair.league)
    assert pair.learner.stats()["lines"] == 0
